//! One connection's side of the behaviour. The reply sender travels with the request for a substream through the
//! swarm (as its open info), so that an answer can't reach the wrong asker.

use super::{CONCURRENT_OPENS, Inbound, control::OpenError, substream::Substream, traffic::Traffic};
use futures::future::{Ready, ready};
use libp2p::{
    PeerId, StreamProtocol,
    core::{InboundUpgrade, OutboundUpgrade, UpgradeInfo},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, ConnectionId, Stream, StreamUpgradeError, SubstreamProtocol,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant},
};

/// A request for a substream.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) protocol: StreamProtocol,
    pub(super) until: Instant,
    pub(super) reply: oneshot::Sender<Result<Substream, OpenError>>,
}

/// Where inbound substreams go.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) peer: PeerId,
    pub(super) connection: ConnectionId,
    pub(super) queue: mpsc::Sender<Inbound>,
    pub(super) refused: Arc<AtomicU64>,
    pub(super) traffic: Traffic,
}

impl Inbox {
    fn put(&self, protocol: StreamProtocol, stream: Stream) {
        let stream = Substream::new(stream, self.traffic.clone());
        let inbound = Inbound { peer: self.peer, connection: self.connection, protocol, stream };
        // Dropping the substream resets it: the peer sees the refusal on its next read or write.
        if let Err(error) = self.queue.try_send(inbound) {
            let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(peer = %self.peer, connection = %self.connection, refused, %error, "inbound stream refused");
        }
    }
}

/// Opens and accepts substreams on one connection.
#[derive(Debug)]
pub struct Handler {
    protocol: StreamProtocol,
    waiting: mpsc::Receiver<Open>,
    opening: usize,
    inbox: Inbox,
    /// Set when [`CONCURRENT_OPENS`] stopped us from taking more.
    waker: Option<Waker>,
}

impl Handler {
    pub(super) fn new(protocol: StreamProtocol, waiting: mpsc::Receiver<Open>, inbox: Inbox) -> Self {
        Self { protocol, waiting, opening: 0, inbox, waker: None }
    }

    fn opened(&mut self) {
        self.opening = self.opening.saturating_sub(1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Offers one protocol, takes the substream as it is.
#[derive(Debug, Clone)]
pub struct Upgrade(StreamProtocol);

impl UpgradeInfo for Upgrade {
    type Info = StreamProtocol;
    // The swarm asks for the list each time it polls a connection: this one costs no allocation.
    type InfoIter = std::iter::Once<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(self.0.clone())
    }
}

impl InboundUpgrade<Stream> for Upgrade {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for Upgrade {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

/// What waits for an outbound substream: travels through the swarm beside the request.
#[derive(Debug)]
pub struct Waiter {
    protocol: StreamProtocol,
    reply: oneshot::Sender<Result<Substream, OpenError>>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = Upgrade;
    type OutboundProtocol = Upgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Waiter;

    fn listen_protocol(&self) -> SubstreamProtocol<Upgrade> {
        SubstreamProtocol::new(Upgrade(self.protocol.clone()), ())
    }

    /// Open substreams keep the connection by themselves (the swarm counts them); this adds those being opened.
    fn connection_keep_alive(&self) -> bool {
        self.opening > 0 || !self.waiting.is_empty()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Upgrade, Waiter, Infallible>> {
        loop {
            if self.opening >= CONCURRENT_OPENS {
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let Poll::Ready(Some(open)) = self.waiting.poll_recv(cx) else { return Poll::Pending };
            let left = open.until.saturating_duration_since(Instant::now());
            if open.reply.is_closed() || left.is_zero() {
                continue;
            }
            self.opening += 1;
            let upgrade = Upgrade(open.protocol.clone());
            let waiter = Waiter { protocol: open.protocol, reply: open.reply };
            let protocol = SubstreamProtocol::new(upgrade, waiter).with_timeout(left);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<Upgrade, Upgrade, (), Waiter>) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound {
                protocol: (stream, protocol), ..
            }) => {
                self.inbox.put(protocol, stream);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol: (stream, _), info }) => {
                self.opened();
                // The asker may be gone; the substream is then dropped and so reset.
                let _ = info.reply.send(Ok(Substream::new(stream, self.inbox.traffic.clone())));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                self.opened();
                let error = match error {
                    StreamUpgradeError::Timeout => OpenError::Timeout(Duration::ZERO),
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(info.protocol),
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                let _ = info.reply.send(Err(error));
            }
            _ => {}
        }
    }
}

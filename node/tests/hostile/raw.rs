//! A peer that speaks Noise and Yamux, or QUIC, and after that whatever the test wants.

use crate::victim::SOON;
use dunlin_protocol::hello::{self, HEADER_BYTES, Refusal, Reply};
use futures::{AsyncReadExt, AsyncWriteExt, future::poll_fn};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{
        Endpoint,
        muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox},
        transport::{Boxed, DialOpts, PortUse},
        upgrade::Version,
    },
    identity::Keypair,
    noise, quic, tcp, yamux,
};
use std::{io, pin::pin, task::Poll};
use tokio::time::timeout;

pub(crate) fn plain_transport(key: &Keypair) -> Boxed<(PeerId, StreamMuxerBox)> {
    let tcp = tcp::tokio::Transport::new(tcp::Config::default())
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(key).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    let quic =
        quic::tokio::Transport::new(quic::Config::new(key)).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)));
    quic.or_transport(tcp).map(|either, _| either.into_inner()).boxed()
}

/// A connection past the handshake.
pub(crate) struct Raw {
    muxer: StreamMuxerBox,
    // A dropped QUIC transport would close the endpoint.
    _transport: Boxed<(PeerId, StreamMuxerBox)>,
}

impl Raw {
    pub(crate) async fn connect(key: &Keypair, address: &Multiaddr) -> Self {
        let mut transport = plain_transport(key);
        let dial =
            transport.dial(address.clone(), DialOpts { role: Endpoint::Dialer, port_use: PortUse::New }).unwrap();
        let (_, muxer) = timeout(SOON, dial).await.unwrap().unwrap();
        Self { muxer, _transport: transport }
    }

    pub(crate) async fn open(&mut self) -> io::Result<SubstreamBox> {
        let muxer = &mut self.muxer;
        poll_fn(|cx| {
            if let Poll::Ready(opened) = muxer.poll_outbound_unpin(cx) {
                return Poll::Ready(opened);
            }
            muxer.poll_unpin(cx).map(|event| event.and_then(|_| Err(io::Error::other("address change"))))
        })
        .await
    }

    /// Runs `work` while the connection is driven.
    pub(crate) async fn drive<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        let muxer = &mut self.muxer;
        let driven = poll_fn(|cx| {
            let _ = muxer.poll_unpin(cx);
            work.as_mut().poll(cx)
        });
        timeout(SOON, driven).await.expect("nothing came")
    }

    /// Sends `bytes` on a new substream and returns everything that comes back until the end.
    pub(crate) async fn say(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.open().await.unwrap();
        self.drive(async {
            // The victim may hang up in the middle.
            let _ = stream.write_all(bytes).await;
            let _ = stream.flush().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        })
        .await
    }

    /// As [`Self::say`] with a message, expecting a refusal.
    pub(crate) async fn refusal(&mut self, message: &impl serde::Serialize) -> Refusal {
        match self.reply(message).await {
            Reply::Refused(refusal) => refusal,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    pub(crate) async fn reply(&mut self, message: &impl serde::Serialize) -> Reply {
        let answer = self.say(&hello::encode(message).unwrap()).await;
        assert!(answer.len() > HEADER_BYTES, "no answer");
        hello::decode(&answer[HEADER_BYTES..]).unwrap()
    }

    /// Waits until the victim closes the connection.
    pub(crate) async fn closed(&mut self) {
        let muxer = &mut self.muxer;
        let closed = poll_fn(|cx| match muxer.poll_inbound_unpin(cx) {
            Poll::Ready(Ok(_)) => panic!("the victim opened a substream to a stranger"),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Pending => muxer.poll_unpin(cx).map(drop),
        });
        timeout(SOON, closed).await.expect("the victim kept the connection");
    }
}

//! Raw substreams of the mesh: an own libp2p behaviour that opens a substream on a *chosen* connection and hands
//! inbound ones over through a bounded queue.
//!
//! Owned here: which connections to a peer are open, in which order they are preferred (direct before relayed), and
//! the opening of substreams on them. What is spoken on a substream is not this module's business; see [`crate::hop`].
//!
//! Why not `libp2p-stream`: it opens one substream at a time per connection, takes a random connection of the peer
//! (relayed ones included), and drops inbound substreams beyond about one that waits.
//!
//! Works with either version of protocol negotiation. With `V1Lazy` (the swarm's
//! `with_substream_upgrade_protocol_override`) opening costs no round trip and a peer that doesn't speak the protocol
//! shows on the first read; [`Substream`] is fused, since such a stream panics when polled after its error.

mod control;
mod handler;
mod substream;
mod traffic;

pub use control::{Connection, Control, OpenError};
pub use handler::Handler;
pub use substream::Substream;

use control::Connections;
use handler::{Inbox, Open};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
        ToSwarm,
    },
};
use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
};
use tokio::sync::mpsc;
use traffic::Traffic;

/// Inbound substreams that may wait for whoever serves them; beyond that they are refused by being dropped.
pub const INBOUND_QUEUE: usize = 64;
/// Requests for a substream that may wait on one connection's handler; beyond that [`OpenError::Busy`].
pub const WAITING_OPENS: usize = 32;
/// Substreams of one connection that may be in negotiation, opened by us.
pub const CONCURRENT_OPENS: usize = 32;

/// A substream that a peer has opened to us.
#[derive(Debug)]
pub struct Inbound {
    /// Who opened it; proven by the transport.
    pub peer: PeerId,
    /// The connection that it is on.
    pub connection: ConnectionId,
    /// What the peer wants to speak.
    pub protocol: StreamProtocol,
    /// The substream, negotiated.
    pub stream: Substream,
}

/// Inbound substreams, oldest first; ends when the [`Behaviour`] is dropped. At most [`INBOUND_QUEUE`] wait in it.
pub type Incoming = mpsc::Receiver<Inbound>;

/// The behaviour to embed in the swarm. It emits no events.
#[derive(Debug)]
pub struct Behaviour {
    protocol: StreamProtocol,
    connections: Connections,
    /// Handlers made for connections that the swarm hasn't confirmed yet: another behaviour may still deny them, in
    /// which case the handler, and with it the receiving end, is dropped.
    unconfirmed: Vec<(ConnectionId, mpsc::Sender<Open>, Traffic)>,
    inbound: mpsc::Sender<Inbound>,
    refused: Arc<AtomicU64>,
}

impl Behaviour {
    /// A behaviour that accepts this protocol, the handle that opens substreams, and the queue of inbound ones.
    #[must_use]
    pub fn new(protocol: StreamProtocol) -> (Self, Control, Incoming) {
        let (inbound, incoming) = mpsc::channel(INBOUND_QUEUE);
        let connections = Connections::default();
        let refused = Arc::new(AtomicU64::new(0));
        let control = Control::new(connections.clone(), Arc::clone(&refused));
        let behaviour = Self { protocol, connections, unconfirmed: Vec::new(), inbound, refused };
        (behaviour, control, incoming)
    }

    fn handler(&mut self, peer: PeerId, connection: ConnectionId) -> Handler {
        let (opens, waiting) = mpsc::channel(WAITING_OPENS);
        let traffic = Traffic::default();
        self.unconfirmed.retain(|(_, opens, _)| !opens.is_closed());
        self.unconfirmed.push((connection, opens, traffic.clone()));
        let (queue, refused) = (self.inbound.clone(), Arc::clone(&self.refused));
        let inbox = Inbox { peer, connection, queue, refused, traffic };
        Handler::new(self.protocol.clone(), waiting, inbox)
    }

    fn confirm(&mut self, peer: PeerId, connection: ConnectionId, relayed: bool) {
        let Some(position) = self.unconfirmed.iter().position(|(id, ..)| *id == connection) else {
            tracing::warn!(%peer, %connection, "connection established without a stream handler");
            return;
        };
        let (_, opens, traffic) = self.unconfirmed.swap_remove(position);
        self.connections.insert(peer, Connection { id: connection, relayed }, opens, traffic);
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _local: &Multiaddr,
        _remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(peer, connection))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(established) => {
                self.confirm(established.peer_id, established.connection_id, established.endpoint.is_relayed());
            }
            FromSwarm::ConnectionClosed(closed) => self.connections.remove(&closed.peer_id, closed.connection_id),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

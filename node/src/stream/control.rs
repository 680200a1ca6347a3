//! Opening substreams from outside of the swarm's task.

use super::{handler::Open, substream::Substream, traffic::Traffic};
use libp2p::{PeerId, StreamProtocol, swarm::ConnectionId};
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

/// An open connection to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The swarm's name for it.
    pub id: ConnectionId,
    /// Whether it goes through a relay.
    pub relayed: bool,
}

/// Why there is no substream.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No connection to the peer is open, or the one asked for isn't.
    #[error("not connected to the peer")]
    NotConnected,
    /// The connection closed before the substream was negotiated.
    #[error("the connection closed while a stream was being opened")]
    ConnectionClosed,
    /// Too many requests for substreams wait on this connection ([`super::WAITING_OPENS`]).
    #[error("too many streams are being opened on this connection")]
    Busy,
    /// The deadline passed.
    #[error("opening a stream took longer than {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The peer doesn't speak the protocol.
    #[error("the peer does not speak {0}")]
    Unsupported(StreamProtocol),
    /// The connection failed.
    #[error("the stream failed while it was being opened")]
    Io(#[source] io::Error),
}

/// Opens substreams; cheap to clone, usable from any task.
#[derive(Debug, Clone)]
pub struct Control {
    connections: Connections,
    refused: Arc<AtomicU64>,
}

impl Control {
    pub(super) fn new(connections: Connections, refused: Arc<AtomicU64>) -> Self {
        Self { connections, refused }
    }

    /// Opens a substream to the peer on this connection, or on the best one when `connection` is `None`: a direct one
    /// if there is one, the oldest among equals. Never dials. Cancel-safe: a dropped future leaves nothing open.
    ///
    /// # Errors
    /// [`OpenError`]; at the latest after `deadline`.
    pub async fn open(
        &self,
        peer: PeerId,
        connection: Option<ConnectionId>,
        protocol: StreamProtocol,
        deadline: Duration,
    ) -> Result<Substream, OpenError> {
        let opens = self.connections.opens(&peer, connection).ok_or(OpenError::NotConnected)?;
        let (reply, answer) = oneshot::channel();
        let open = Open { protocol, until: Instant::now() + deadline, reply };
        opens.try_send(open).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => OpenError::Busy,
            mpsc::error::TrySendError::Closed(_) => OpenError::ConnectionClosed,
        })?;
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(Err(OpenError::Timeout(_)))) | Err(_) => Err(OpenError::Timeout(deadline)),
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(OpenError::ConnectionClosed),
        }
    }

    /// The open connections to a peer, best first.
    #[must_use]
    pub fn connections(&self, peer: &PeerId) -> Vec<Connection> {
        self.connections.of(peer)
    }

    /// When bytes last came in on any substream of the peer's open connections.
    #[must_use]
    pub fn last_heard(&self, peer: &PeerId) -> Option<std::time::Instant> {
        self.connections.read(|peers| peers.get(peer)?.iter().filter_map(|entry| entry.traffic.heard()).max())
    }

    /// Substreams that are open on one connection of the peer.
    #[must_use]
    pub fn open_substreams(&self, peer: &PeerId, connection: ConnectionId) -> usize {
        let of = |entry: &&Entry| entry.connection.id == connection;
        self.connections
            .read(|peers| peers.get(peer)?.iter().find(of).map(|entry| entry.traffic.open()))
            .unwrap_or_default()
    }

    /// Whether any connection to the peer is open.
    #[must_use]
    pub fn is_connected(&self, peer: &PeerId) -> bool {
        self.connections.contains(peer)
    }

    /// Peers with at least one entry: for tests of leaks, and for metrics.
    #[must_use]
    pub fn connected_peers(&self) -> usize {
        self.connections.read(HashMap::len)
    }

    /// Inbound substreams refused because the queue was full, since the start.
    #[must_use]
    pub fn refused_inbound(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone)]
struct Entry {
    connection: Connection,
    opens: mpsc::Sender<Open>,
    traffic: Traffic,
}

/// Open connections per peer, best first. Shared between the behaviour, which writes, and every [`Control`].
#[derive(Debug, Clone, Default)]
pub(super) struct Connections(Arc<RwLock<HashMap<PeerId, Vec<Entry>>>>);

impl Connections {
    pub(super) fn insert(&self, peer: PeerId, connection: Connection, opens: mpsc::Sender<Open>, traffic: Traffic) {
        let mut peers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entries = peers.entry(peer).or_default();
        entries.push(Entry { connection, opens, traffic });
        // Stable: among equals the oldest stays first, so that both ends settle on few connections.
        entries.sort_by_key(|entry| entry.connection.relayed);
    }

    pub(super) fn remove(&self, peer: &PeerId, connection: ConnectionId) {
        let mut peers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entries) = peers.get_mut(peer) else { return };
        entries.retain(|entry| entry.connection.id != connection);
        if entries.is_empty() {
            peers.remove(peer);
        }
    }

    fn read<T>(&self, look: impl FnOnce(&HashMap<PeerId, Vec<Entry>>) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn opens(&self, peer: &PeerId, connection: Option<ConnectionId>) -> Option<mpsc::Sender<Open>> {
        self.read(|peers| {
            let mut entries = peers.get(peer)?.iter();
            let entry = match connection {
                Some(id) => entries.find(|entry| entry.connection.id == id)?,
                None => entries.next()?,
            };
            Some(entry.opens.clone())
        })
    }

    fn of(&self, peer: &PeerId) -> Vec<Connection> {
        self.read(|peers| peers.get(peer).map(|list| list.iter().map(|entry| entry.connection).collect()))
            .unwrap_or_default()
    }

    fn contains(&self, peer: &PeerId) -> bool {
        self.read(|peers| peers.contains_key(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_connections_come_first_then_the_oldest() {
        let connections = Connections::default();
        let peer = PeerId::random();
        let connection = |id, relayed| Connection { id: ConnectionId::new_unchecked(id), relayed };
        let add =
            |id, relayed| connections.insert(peer, connection(id, relayed), mpsc::channel(1).0, Traffic::default());
        add(1, true);
        assert_eq!(connections.of(&peer), [connection(1, true)]);
        add(2, false);
        add(3, false);
        add(4, true);
        let expected = [connection(2, false), connection(3, false), connection(1, true), connection(4, true)];
        assert_eq!(connections.of(&peer), expected);
        connections.remove(&peer, ConnectionId::new_unchecked(2));
        assert_eq!(connections.of(&peer)[0], connection(3, false));
        for id in [1, 3, 4] {
            connections.remove(&peer, ConnectionId::new_unchecked(id));
        }
        assert!(!connections.contains(&peer) && connections.read(HashMap::is_empty));
    }
}

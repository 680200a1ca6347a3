//! Connections and listeners: who is there, and where this node listens.

use crate::{
    addresses, admission,
    behaviour::BehaviourEvent,
    directory::{self, Rights},
    event_loop::{Connection, EventLoop, STORE_NEW_PEERS},
    handle::ConnectError,
};
use dunlin_protocol::id::{PeerId, Role};
use libp2p::{
    Multiaddr, TransportError,
    core::ConnectedPoint,
    swarm::{ConnectionId, DialError, SwarmEvent},
};
use std::{
    io,
    time::{Duration, Instant},
};

/// Time that both ends get to move from a relayed connection to a direct one.
const MOVE: Duration = Duration::from_secs(2);
/// Longest time that a relayed connection is kept beside a direct one for what is in flight on it.
const RELAYED_LONGEST: Duration = Duration::from_secs(1800);

impl EventLoop {
    pub(crate) fn on_connection_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_established(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, cause, .. } => {
                let cause = cause.map_or_else(|| "closed".to_owned(), |cause| cause.to_string());
                tracing::debug!(peer = %peer_id, cause, "connection closed");
                self.on_closed(peer_id, connection_id);
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => self.on_dial_error(peer, &error),
            SwarmEvent::OutgoingConnectionError { error, .. } => tracing::debug!(cause = cause(&error), "dial failed"),
            SwarmEvent::IncomingConnectionError { send_back_addr, error, peer_id, .. } => {
                tracing::debug!(from = %send_back_addr, %error, "connection refused");
                if peer_id.is_some_and(|peer| self.blocked.contains(&peer)) {
                    self.unblock();
                }
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                self.on_listeners();
            }
            SwarmEvent::ExpiredListenAddr { .. } => self.on_listeners(),
            SwarmEvent::ListenerClosed { listener_id, addresses, reason } => {
                let error = reason.err().map(tracing::field::display);
                if self.places.lose(listener_id, Instant::now()) {
                    tracing::warn!(?addresses, error, "the place at the relay is lost; it is asked for again");
                } else if error.is_some() {
                    tracing::error!(?addresses, error, "listener ended");
                }
                self.on_listeners();
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "listener"),
            _ => {}
        }
    }

    fn on_established(&mut self, peer: PeerId, id: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let remote = endpoint.get_remote_address();
        let relayed = endpoint.is_relayed();
        self.book.met(peer, remote);
        if let ConnectedPoint::Dialer { address, .. } = endpoint {
            self.book.add(peer, address.clone());
            self.bootstrap.found(address, peer);
        }
        let connections = self.connections.entry(peer).or_default();
        connections.push(Connection { id, relayed, since: now, epoch: None });
        let first = connections.len() == 1;
        if first {
            self.lost.remove(&peer);
            self.due.store_peers = self.due.store_peers.min(now + STORE_NEW_PEERS);
            self.liveness.connected(peer, now);
        } else {
            self.on_heard(peer, now);
        }
        self.prefer_direct(peer);
        self.tell_directory(peer);
        self.dials.connected(&peer);
        // Also when it is a further one: a process that was killed and comes back is known by its old connection still.
        self.pull(peer);
    }

    /// Moves the hop to a direct connection as soon as there is one: links on the relayed one take nothing new then, and
    /// end with what is in flight on them.
    fn prefer_direct(&mut self, peer: PeerId) {
        let Some(connections) = self.connections.get(&peer) else { return };
        if !connections.iter().any(|connection| connection.relayed) || !self.has_direct(&peer) {
            return;
        }
        if self.hop.ready(&peer) {
            self.hop.prepare(peer);
        }
    }

    /// Closes relayed connections beside direct ones once nothing is in flight on them, or after [`RELAYED_LONGEST`]:
    /// they are only a worse way for the same requests.
    pub(crate) fn close_spare_relayed(&mut self, now: Instant) {
        let mut spare = Vec::new();
        for (peer, connections) in &self.connections {
            let direct = connections.iter().filter(|connection| !connection.relayed).map(|direct| direct.since).min();
            let Some(age) = direct.map(|since| now.saturating_duration_since(since)) else { continue };
            let idle = |id| age >= MOVE && self.streams.open_substreams(peer, id) == 0;
            let relayed = connections.iter().filter(|connection| connection.relayed);
            spare.extend(relayed.filter(|it| age >= RELAYED_LONGEST || idle(it.id)).map(|it| it.id));
        }
        for connection in spare {
            self.swarm.close_connection(connection);
        }
    }

    fn tell_directory(&self, peer: PeerId) {
        let Some(connections) = self.connections.get(&peer) else { return };
        self.tell_rights(peer);
        let relayed = connections.iter().all(|connection| connection.relayed);
        self.learn(directory::Event::Connected { peer, relayed });
    }

    pub(crate) fn tell_rights(&self, peer: PeerId) {
        let Some(membership) = self.members.get(&peer) else { return };
        let rights =
            Rights { roles: membership.roles, models: membership.models.clone(), issued_at: membership.issued_at };
        self.learn(directory::Event::Member { peer, rights });
    }

    fn on_closed(&mut self, peer: PeerId, id: ConnectionId) {
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        connections.retain(|connection| connection.id != id);
        if !connections.is_empty() {
            self.tell_directory(peer);
            return;
        }
        self.connections.remove(&peer);
        if !self.blocked.contains(&peer) {
            self.lost.add(peer);
        }
        self.liveness.disconnected(&peer);
        self.learn(directory::Event::Disconnected { peer });
        self.hop.disconnected(&peer);
    }

    pub(crate) fn on_heard(&mut self, peer: PeerId, now: Instant) {
        if self.liveness.heard(peer, now) {
            tracing::info!(%peer, "peer speaks again");
            self.learn(directory::Event::Heard { peer });
        }
    }

    fn on_dial_error(&mut self, peer: PeerId, error: &DialError) {
        if matches!(error, DialError::DialPeerConditionFalse(_)) {
            return;
        }
        let now = Instant::now();
        if self.blocked.contains(&peer) {
            self.unblock();
        }
        let cause = cause(error);
        tracing::debug!(%peer, cause, "dial failed");
        if self.is_connected(&peer) {
            // Still no direct way: tried again, ever less often.
            let error = ConnectError::Failed { peer, cause };
            self.dials.failed(peer, &error, false, now);
            return;
        }
        self.swarm.behaviour_mut().kad.remove_peer(&peer);
        let refused = self.members.refused(&peer, now).is_some();
        let error = match error {
            _ if refused => ConnectError::Refused(peer),
            DialError::NoAddresses => ConnectError::NoAddress(peer),
            _ => ConnectError::Failed { peer, cause },
        };
        self.dials.failed(peer, &error, refused, now);
        self.learn(directory::Event::Unreachable { peer });
    }

    fn on_listeners(&mut self) {
        let listening: Vec<Multiaddr> = self.swarm.listeners().cloned().map(addresses::without_peer).collect();
        let told = addresses::own(&self.external, &listening);
        if self.roles.contains(Role::Relay) {
            // A relay tells its external addresses to those who reserve, and grants nothing without any.
            for address in &told {
                self.swarm.add_external_address(address.clone());
            }
        }
        self.shared.listen.send_replace(listening);
        if self.registration.set_addresses(told) {
            // Records with the old addresses would lead nowhere.
            self.due.refresh = self.due.refresh.min(Instant::now());
        }
    }
}

/// Why a dial failed, in plain words: what the other side's admission said, or at each address what went wrong.
fn cause(error: &DialError) -> String {
    let DialError::Transport(attempts) = error else { return error.to_string() };
    let plain = |(address, error): &(Multiaddr, TransportError<io::Error>)| match error {
        TransportError::MultiaddrNotSupported(_) => format!("{address}: no transport for this address"),
        TransportError::Other(error) => {
            let admission = admission::Error::find(error);
            format!("{address}: {}", admission.map_or_else(|| error.to_string(), ToString::to_string))
        }
    };
    attempts.iter().map(plain).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::NotAdmitted;
    use dunlin_protocol::hello::Refusal;
    use std::{error::Error, fmt};

    /// As `either`, which libp2p nests errors in: shows itself as the error inside, and hands on only its source.
    #[derive(Debug)]
    struct Nested<E>(E);

    impl<E: fmt::Debug> fmt::Display for Nested<E> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Left(Right({:?}))", self.0)
        }
    }

    impl<E: Error> Error for Nested<E> {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.source()
        }
    }

    fn at(address: &str, error: io::Error) -> (Multiaddr, TransportError<io::Error>) {
        (address.parse().unwrap(), TransportError::Other(error))
    }

    #[test]
    fn a_failed_dial_says_why_in_plain_words() {
        let peer = PeerId::random();
        let refused = admission::Error::RefusedByPeer { peer, refusal: Refusal::Expired };
        let nested = io::Error::other(Nested(Nested(NotAdmitted(refused))));
        let closed = io::Error::from(io::ErrorKind::ConnectionRefused);
        let addresses = vec![at("/ip4/127.0.0.1/tcp/1", nested), at("/ip4/127.0.0.1/tcp/2", closed)];
        assert_eq!(
            cause(&DialError::Transport(addresses)),
            format!(
                "/ip4/127.0.0.1/tcp/1: peer {peer} refused this one: {}; /ip4/127.0.0.1/tcp/2: connection refused",
                Refusal::Expired
            )
        );
        assert_eq!(cause(&DialError::NoAddresses), DialError::NoAddresses.to_string());
    }
}

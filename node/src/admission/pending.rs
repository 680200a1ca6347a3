//! How many incoming connections are on their way to admission at once, in all and from one address. Counted from the
//! moment that one is accepted, so that those who never finish a handshake count as well.

use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    multiaddr::Protocol,
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
        ToSwarm, dummy,
    },
};
use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    task::{Context, Poll},
};

/// Incoming connections that are on their way at once. Each may hold one [`dunlin_protocol::hello::Hello`] of at most
/// 32 KiB.
pub const PENDING: usize = 256;
/// Of these, from one IPv4 address or one IPv6 network of 64 bits.
pub const PENDING_PER_ADDRESS: usize = 64;

/// Where a connection comes from. Whoever has one IPv6 address has all of its network of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    V4([u8; 4]),
    V6([u8; 8]),
    /// Relayed, or without an address.
    Unknown,
}

impl Origin {
    fn of(address: &Multiaddr) -> Self {
        let ip = address.iter().find_map(|part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => Some(ip.to_canonical()),
            _ => None,
        });
        match ip {
            Some(IpAddr::V4(ip)) => Self::V4(ip.octets()),
            Some(IpAddr::V6(ip)) => {
                let octets = ip.octets();
                Self::V6(std::array::from_fn(|i| octets[i]))
            }
            None => Self::Unknown,
        }
    }
}

/// Refuses incoming connections beyond the bounds. Belongs first among the behaviours of a swarm.
#[derive(Debug)]
pub struct Behaviour {
    all: usize,
    per_address: usize,
    pending: HashMap<ConnectionId, Origin>,
    by_origin: HashMap<Origin, usize>,
}

/// Too many connections are on their way.
#[derive(Debug, thiserror::Error)]
#[error("{here} connections from there, {all} in all, are waiting for admission")]
struct Exceeded {
    here: usize,
    all: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self::new(PENDING, PENDING_PER_ADDRESS)
    }
}

impl Behaviour {
    /// With these bounds, in all and from one address.
    #[must_use]
    pub fn new(all: usize, per_address: usize) -> Self {
        Self { all, per_address, pending: HashMap::new(), by_origin: HashMap::new() }
    }

    fn enter(&mut self, connection: ConnectionId, address: &Multiaddr) -> Result<(), Exceeded> {
        let origin = Origin::of(address);
        let (here, all) = (self.by_origin.get(&origin).copied().unwrap_or(0), self.pending.len());
        if all >= self.all || here >= self.per_address {
            return Err(Exceeded { here, all });
        }
        self.pending.insert(connection, origin);
        self.by_origin.insert(origin, here + 1);
        Ok(())
    }

    fn leave(&mut self, connection: ConnectionId) {
        let Some(origin) = self.pending.remove(&connection) else { return };
        let left = self.by_origin.get(&origin).map_or(0, |here| here.saturating_sub(1));
        if left == 0 {
            self.by_origin.remove(&origin);
        } else {
            self.by_origin.insert(origin, left);
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.enter(connection, remote).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        _connection: ConnectionId,
        _peer: PeerId,
        _local: &Multiaddr,
        _remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _connection: ConnectionId,
        _peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(established) => self.leave(established.connection_id),
            // Also when another behaviour denies it, before or after.
            FromSwarm::ListenFailure(failure) => self.leave(failure.connection_id),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn enter(behaviour: &mut Behaviour, n: usize, from: &str) -> bool {
        behaviour.enter(ConnectionId::new_unchecked(n), &address(from)).is_ok()
    }

    #[test]
    fn connections_are_counted_per_address_and_in_all() {
        let mut pending = Behaviour::new(3, 2);
        assert!(enter(&mut pending, 1, "/ip4/192.0.2.1/tcp/1"));
        assert!(enter(&mut pending, 2, "/ip4/192.0.2.1/udp/9/quic-v1"));
        assert!(!enter(&mut pending, 3, "/ip4/192.0.2.1/tcp/1"), "two from one address");
        assert!(enter(&mut pending, 4, "/ip4/192.0.2.2/tcp/1"));
        assert!(!enter(&mut pending, 5, "/ip4/192.0.2.3/tcp/1"), "three in all");
        pending.leave(ConnectionId::new_unchecked(1));
        assert!(enter(&mut pending, 6, "/ip4/192.0.2.1/tcp/1"));
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let mut pending = Behaviour::new(9, 1);
        assert!(enter(&mut pending, 1, "/ip6/2001:db8::1/tcp/1"));
        assert!(!enter(&mut pending, 2, "/ip6/2001:db8::2/tcp/1"));
        assert!(enter(&mut pending, 3, "/ip6/2001:db8:0:1::1/tcp/1"));
        assert!(enter(&mut pending, 4, "/ip6/::ffff:192.0.2.1/tcp/1"));
        assert!(!enter(&mut pending, 5, "/ip4/192.0.2.1/tcp/1"));
    }

    #[test]
    fn nothing_remains_when_all_have_left() {
        let mut pending = Behaviour::new(9, 1);
        assert!(enter(&mut pending, 1, "/p2p-circuit"));
        assert!(!enter(&mut pending, 2, "/p2p-circuit"));
        for n in 1..=3 {
            pending.leave(ConnectionId::new_unchecked(n));
        }
        assert!(pending.pending.is_empty() && pending.by_origin.is_empty());
    }
}

//! Which addresses are worth telling and worth dialling, in which order, and where peers were met.
//!
//! Loopback addresses mean this machine to everybody, so they count only for peers that were met on it; private ranges
//! are kept, since meshes live in them; relayed addresses come last; DNS names stay as they were written.

use dunlin_protocol::{id::PeerId, limits};
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::collections::HashMap;

/// Addresses kept for one peer.
pub const ADDRESSES_PER_PEER: usize = 8;
/// Peers whose addresses are kept.
pub const PEERS: usize = 4096;

/// What kind of way an address is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A DNS name: written by somebody who knew why.
    Name,
    /// A public or private unicast address.
    Unicast,
    /// This machine.
    Loopback,
    /// Through a relay.
    Relayed,
}

/// The kind of `address`; `None` for what no other peer could ever dial: unspecified, multicast, link-local, port 0,
/// other transports.
#[must_use]
pub fn kind(address: &Multiaddr) -> Option<Kind> {
    if address.iter().any(|part| matches!(part, Protocol::P2pCircuit)) {
        return Some(Kind::Relayed);
    }
    let mut parts = address.iter();
    let kind = match parts.next()? {
        Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) => Kind::Name,
        Protocol::Ip4(ip) if ip.is_loopback() => Kind::Loopback,
        Protocol::Ip4(ip) if ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_link_local() => {
            return None;
        }
        Protocol::Ip4(_) => Kind::Unicast,
        Protocol::Ip6(ip) if ip.is_loopback() => Kind::Loopback,
        Protocol::Ip6(ip) if ip.is_unspecified() || ip.is_multicast() || ip.is_unicast_link_local() => return None,
        Protocol::Ip6(_) => Kind::Unicast,
        _ => return None,
    };
    let carried = match parts.next()? {
        Protocol::Tcp(port) => port != 0,
        Protocol::Udp(port) => port != 0 && matches!(parts.next(), Some(Protocol::QuicV1)),
        _ => false,
    };
    carried.then_some(kind)
}

/// Whether `address` lies on this machine.
#[must_use]
pub fn is_loopback(address: &Multiaddr) -> bool {
    kind(address) == Some(Kind::Loopback)
}

/// Whether `address` goes through a relay.
#[must_use]
pub fn is_relayed(address: &Multiaddr) -> bool {
    kind(address) == Some(Kind::Relayed)
}

/// `address` without a `/p2p` at its end.
#[must_use]
pub fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

/// The peer that `address` ends in, if it names one.
#[must_use]
pub fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

/// The addresses of `given` that are worth dialling, each once, best kind first and otherwise in their order.
#[must_use]
pub fn dialable(given: impl IntoIterator<Item = Multiaddr>, loopback: bool, most: usize) -> Vec<Multiaddr> {
    let mut kept: Vec<(Kind, Multiaddr)> = Vec::new();
    for address in given {
        let address = without_peer(address);
        let Some(kind) = kind(&address) else { continue };
        if (kind == Kind::Loopback && !loopback) || kept.iter().any(|(_, known)| *known == address) {
            continue;
        }
        kept.push((kind, address));
    }
    kept.sort_by_key(|(kind, _)| *kind);
    kept.truncate(most);
    kept.into_iter().map(|(_, address)| address).collect()
}

/// Leaves out QUIC where the same host offers TCP and is on this machine or in a private range: there TCP moves more per
/// CPU second and nothing blocks it. Elsewhere both stay and the quicker one wins.
#[must_use]
pub fn preferred(addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
    let near_tcp: Vec<Multiaddr> =
        addresses.iter().filter(|address| is_near(address) && is_tcp(address)).filter_map(host).collect();
    let spare = |address: &Multiaddr| {
        !is_tcp(address) && !is_relayed(address) && host(address).is_some_and(|host| near_tcp.contains(&host))
    };
    addresses.into_iter().filter(|address| !spare(address)).collect()
}

fn host(address: &Multiaddr) -> Option<Multiaddr> {
    address.iter().next().map(Multiaddr::from)
}

fn is_tcp(address: &Multiaddr) -> bool {
    matches!(address.iter().nth(1), Some(Protocol::Tcp(_)))
}

fn is_near(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_private() || ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_unique_local() || ip.is_loopback(),
        _ => false,
    }
}

/// The addresses that this peer's records tell: those configured as external first, then those it listens on, at most
/// [`limits::RECORD_ADDRESSES`]. Loopback only when there is nothing else: then the whole mesh is on this machine.
#[must_use]
pub fn own(external: &[Multiaddr], listening: &[Multiaddr]) -> Vec<Multiaddr> {
    let all = || external.iter().chain(listening).cloned();
    let elsewhere = dialable(all(), false, usize::MAX);
    let mut told = if elsewhere.is_empty() { dialable(all(), true, usize::MAX) } else { elsewhere };
    // What was configured comes first even before names.
    let position = |address: &Multiaddr| external.iter().position(|known| known == address).unwrap_or(usize::MAX);
    told.sort_by_key(|address| (is_relayed(address), position(address)));
    told.truncate(limits::RECORD_ADDRESSES);
    told
}

/// Where peers were met, said to be, or found by mDNS.
#[derive(Debug, Default)]
pub struct Book {
    peers: HashMap<PeerId, Known>,
    met_on_loopback: bool,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<Multiaddr>,
    loopback: bool,
}

impl Book {
    /// Notes where `peer` was reached or came from.
    pub fn met(&mut self, peer: PeerId, remote: &Multiaddr) {
        if is_loopback(remote)
            && let Some(known) = self.entry(peer)
        {
            known.loopback = true;
            self.met_on_loopback = true;
        }
    }

    /// Adds an address that worked, or that somebody who should know it gave; it comes first from now on.
    pub fn add(&mut self, peer: PeerId, address: Multiaddr) {
        let address = without_peer(address);
        if kind(&address).is_none() {
            return;
        }
        if let Some(known) = self.entry(peer) {
            known.addresses.retain(|old| *old != address);
            known.addresses.insert(0, address);
            known.addresses.truncate(ADDRESSES_PER_PEER);
        }
    }

    /// Whether this process met anybody on its own machine, so that loopback addresses in records may mean something.
    #[must_use]
    pub fn on_loopback(&self) -> bool {
        self.met_on_loopback
    }

    /// Whether `peer` was met on this machine.
    #[must_use]
    pub fn met_on_loopback(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_some_and(|known| known.loopback)
    }

    /// Where to dial `peer`: addresses of its records, then those noted here.
    #[must_use]
    pub fn of(&self, peer: &PeerId, recorded: &[Multiaddr]) -> Vec<Multiaddr> {
        let noted = self.noted(peer);
        let loopback = self.met_on_loopback || noted.iter().any(is_loopback);
        dialable(noted.iter().chain(recorded).cloned(), loopback, ADDRESSES_PER_PEER)
    }

    /// What is noted of `peer`, to be kept on disk.
    #[must_use]
    pub fn noted(&self, peer: &PeerId) -> &[Multiaddr] {
        self.peers.get(peer).map(|known| known.addresses.as_slice()).unwrap_or_default()
    }

    /// Forgets a peer that is no longer a member.
    pub fn forget(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    fn entry(&mut self, peer: PeerId) -> Option<&mut Known> {
        if self.peers.len() >= PEERS && !self.peers.contains_key(&peer) {
            return None;
        }
        Some(self.peers.entry(peer).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn drops_what_nobody_else_can_dial() {
        let useless = [
            "/ip4/0.0.0.0/tcp/1",
            "/ip4/224.0.0.1/tcp/1",
            "/ip4/169.254.1.1/tcp/1",
            "/ip6/fe80::1/tcp/1",
            "/ip6/::/tcp/1",
            "/ip4/10.0.0.1/tcp/0",
            "/ip4/10.0.0.1/udp/5",
            "/unix/tmp",
        ];
        assert!(dialable(addresses(&useless), true, 99).is_empty());
    }

    #[test]
    fn keeps_private_ranges_and_names_and_puts_relays_last() {
        let relay = "/ip4/9.9.9.9/tcp/1/p2p/12D3KooWRaQ6Ykg1xEcn5KdvT4aX2ZkdDDKAiSAdNHLpHZ7zhDqz/p2p-circuit";
        let given = addresses(&[relay, "/ip4/192.168.1.5/udp/4480/quic-v1", "/ip4/127.0.0.1/tcp/1", "/dns4/a.b/tcp/1"]);
        let kept = dialable(given, false, 4);
        assert_eq!(kept, addresses(&["/dns4/a.b/tcp/1", "/ip4/192.168.1.5/udp/4480/quic-v1", relay]));
    }

    #[test]
    fn prefers_tcp_on_hosts_nearby_only() {
        let given = addresses(&["/ip4/10.0.0.1/udp/1/quic-v1", "/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/udp/1/quic-v1"]);
        assert_eq!(preferred(given.clone()), given[1..]);
        let public = addresses(&["/ip4/5.5.5.5/udp/1/quic-v1", "/ip4/5.5.5.5/tcp/1"]);
        assert_eq!(preferred(public.clone()), public);
    }

    #[test]
    fn own_loopback_is_told_only_when_there_is_nothing_else() {
        let only = addresses(&["/ip4/127.0.0.1/tcp/1"]);
        assert_eq!(own(&[], &only), only);
        let both = addresses(&["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1"]);
        assert_eq!(own(&[], &both), both[1..]);
        let external = addresses(&["/ip4/5.5.5.5/tcp/9"]);
        assert_eq!(own(&external, &both)[0], external[0]);
    }

    #[test]
    fn loopback_counts_only_after_somebody_was_met_there() {
        let peer = PeerId::random();
        let recorded = addresses(&["/ip4/127.0.0.1/tcp/1"]);
        let mut book = Book::default();
        assert!(book.of(&peer, &recorded).is_empty());
        book.met(PeerId::random(), &recorded[0]);
        assert_eq!(book.of(&peer, &recorded), recorded);
    }
}

//! How many connections are being admitted at once, in all and from one address.

use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

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

/// Counts places.
#[derive(Debug, Clone)]
pub(super) struct Pending(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    all: usize,
    per_origin: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_origin: HashMap<Origin, usize>,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    origin: Origin,
}

impl Pending {
    pub(super) fn new(all: usize, per_origin: usize) -> Self {
        Self(Arc::new(Shared { all, per_origin, taken: Mutex::default() }))
    }

    /// A place for a connection from `address`, unless all are taken.
    pub(super) fn enter(&self, address: &Multiaddr) -> Option<Place> {
        let origin = Origin::of(address);
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let here = taken.by_origin.get(&origin).copied().unwrap_or(0);
        if taken.all >= self.0.all || here >= self.0.per_origin {
            return None;
        }
        taken.all += 1;
        taken.by_origin.insert(origin, here + 1);
        Some(Place { shared: self.0.clone(), origin })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all = taken.all.saturating_sub(1);
        let left = taken.by_origin.get(&self.origin).map_or(0, |here| here.saturating_sub(1));
        if left == 0 {
            taken.by_origin.remove(&self.origin);
        } else {
            taken.by_origin.insert(self.origin, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_counted_per_address_and_in_all() {
        let pending = Pending::new(3, 2);
        let one = address("/ip4/192.0.2.1/tcp/1");
        let first = pending.enter(&one).unwrap();
        let _second = pending.enter(&address("/ip4/192.0.2.1/udp/9/quic-v1")).unwrap();
        assert!(pending.enter(&one).is_none(), "two from one address");
        let _third = pending.enter(&address("/ip4/192.0.2.2/tcp/1")).unwrap();
        assert!(pending.enter(&address("/ip4/192.0.2.3/tcp/1")).is_none(), "three in all");
        drop(first);
        assert!(pending.enter(&one).is_some());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let pending = Pending::new(9, 1);
        let _place = pending.enter(&address("/ip6/2001:db8::1/tcp/1")).unwrap();
        assert!(pending.enter(&address("/ip6/2001:db8::2/tcp/1")).is_none());
        assert!(pending.enter(&address("/ip6/2001:db8:0:1::1/tcp/1")).is_some());
        let _mapped = pending.enter(&address("/ip6/::ffff:192.0.2.1/tcp/1")).unwrap();
        assert!(pending.enter(&address("/ip4/192.0.2.1/tcp/1")).is_none());
    }

    #[test]
    fn nothing_remains_when_all_have_left() {
        let pending = Pending::new(9, 9);
        drop(pending.enter(&address("/p2p-circuit")));
        let taken = pending.0.taken.lock().unwrap();
        assert!(taken.all == 0 && taken.by_origin.is_empty());
    }
}

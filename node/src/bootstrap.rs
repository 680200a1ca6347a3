//! The members that this node was told to dial: kept connected, redialled with back-off. Pure.

use crate::addresses;
use dunlin_protocol::id::PeerId;
use libp2p::Multiaddr;
use std::time::{Duration, Instant};

const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// One place to dial.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Without `/p2p`.
    pub(crate) address: Multiaddr,
    /// Who is there: configured, or found out by the first connection.
    pub(crate) peer: Option<PeerId>,
    next: Instant,
    wait: Duration,
    /// Configured ones are kept connected; those remembered from earlier are dialled only while nobody is connected.
    configured: bool,
}

/// All places to dial.
#[derive(Debug, Default)]
pub(crate) struct Bootstrap(Vec<Entry>);

impl Bootstrap {
    pub(crate) fn add(&mut self, address: &Multiaddr, peer: Option<PeerId>, configured: bool, now: Instant) {
        let peer = peer.or_else(|| addresses::peer_of(address));
        let address = addresses::without_peer(address.clone());
        self.0.push(Entry { address, peer, next: now, wait: BACK_OFF, configured });
    }

    /// Who was found at an address.
    pub(crate) fn found(&mut self, address: &Multiaddr, peer: PeerId) {
        let address = addresses::without_peer(address.clone());
        for entry in self.0.iter_mut().filter(|entry| entry.address == address) {
            entry.peer = Some(peer);
        }
    }

    /// Places to dial now. Counts them as tried. `connected` says whether the peer is connected at least as well as
    /// through that address.
    pub(crate) fn due(
        &mut self,
        connected: impl Fn(&PeerId, &Multiaddr) -> bool,
        alone: bool,
        now: Instant,
    ) -> Vec<(Multiaddr, Option<PeerId>)> {
        let mut due = Vec::new();
        for entry in &mut self.0 {
            if entry.peer.as_ref().is_some_and(|peer| connected(peer, &entry.address)) {
                entry.wait = BACK_OFF;
                entry.next = now;
                continue;
            }
            if entry.next > now || !(entry.configured || alone) {
                continue;
            }
            entry.next = now + entry.wait;
            entry.wait = (entry.wait * 2).min(BACK_OFF_MAX);
            due.push((entry.address.clone(), entry.peer));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redials_with_back_off_until_connected() {
        let (mut bootstrap, start, peer) = (Bootstrap::default(), Instant::now(), PeerId::random());
        let address: Multiaddr = "/ip4/10.0.0.1/tcp/1".parse().unwrap();
        bootstrap.add(&address, None, true, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(bootstrap.due(|_, _| false, true, at(0)).len(), 1);
        assert!(bootstrap.due(|_, _| false, true, start + Duration::from_millis(900)).is_empty());
        assert_eq!(bootstrap.due(|_, _| false, true, at(1)).len(), 1);
        assert!(bootstrap.due(|_, _| false, true, at(2)).is_empty());
        bootstrap.found(&address, peer);
        assert!(bootstrap.due(|connected, _| *connected == peer, false, at(99)).is_empty());
        assert_eq!(bootstrap.due(|_, _| false, false, at(100)).len(), 1, "dialled again at once after a loss");
    }

    #[test]
    fn remembered_peers_are_dialled_only_while_alone() {
        let (mut bootstrap, start) = (Bootstrap::default(), Instant::now());
        bootstrap.add(&"/ip4/10.0.0.1/tcp/1".parse().unwrap(), Some(PeerId::random()), false, start);
        assert!(bootstrap.due(|_, _| false, false, start).is_empty());
        assert_eq!(bootstrap.due(|_, _| false, true, start).len(), 1);
    }
}

//! Which proxies there are, who owns a key's account, and which share of a limit is whose. Pure.

use dunlin_protocol::id::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Whose owner was not agreed with for so long goes by its share of each limit.
pub(super) const DETACHED: Duration = Duration::from_secs(2);
/// What a proxy that is gone held comes back so long after it was last heard: by then all of it is older than the window.
pub(crate) const LEASE: Duration = super::log::WINDOW;
/// For so long a proxy that is cut off keeps its share, here and on its own side.
pub(crate) const CUT: Duration = Duration::from_secs(10 * 60);
/// A proxy that nobody has heard for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// Whose connection closed within this time of its last word has ended; whose fell silent before may go on elsewhere.
const WORD: Duration = Duration::from_secs(3);

/// A proxy that was here and is not reached now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ghost {
    /// When it was heard last.
    pub(super) heard: Instant,
    /// When it was noticed.
    since: Instant,
    /// Whether its process has ended, so that it uses nothing any more.
    pub(super) ended: bool,
}

/// What this proxy sees.
#[derive(Debug, Clone)]
pub(super) struct View {
    me: PeerId,
    /// Those that are there, this one among them.
    members: BTreeSet<PeerId>,
    ghosts: BTreeMap<PeerId, Ghost>,
    /// Of the members, those not heard of for so long that they go by their shares: their connections may be cut already.
    silent: BTreeSet<PeerId>,
    hash: u64,
    /// Since when the members are these.
    pub(super) since: Instant,
}

impl View {
    /// `known`: others that were there before this process started; they may be cut off now.
    pub(super) fn new(me: PeerId, known: impl IntoIterator<Item = PeerId>, now: Instant) -> Self {
        let ghost = Ghost { heard: now, since: now, ended: false };
        let ghosts = known.into_iter().filter(|peer| *peer != me).map(|peer| (peer, ghost)).collect();
        let (members, silent) = (BTreeSet::from([me]), BTreeSet::new());
        let mut view = Self { me, members, ghosts, silent, hash: 0, since: now };
        view.rehash();
        view
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn others(&self) -> impl Iterator<Item = PeerId> {
        self.members.iter().copied().filter(|peer| *peer != self.me)
    }

    pub(super) fn contains(&self, peer: &PeerId) -> bool {
        self.members.contains(peer)
    }

    pub(super) fn ghosts(&self) -> &BTreeMap<PeerId, Ghost> {
        &self.ghosts
    }

    /// Notes who has said nothing for [`DETACHED`]. `heard`: when each was heard last.
    pub(super) fn listen(&mut self, heard: impl Fn(&PeerId) -> Option<Instant>, now: Instant) {
        let silent = |peer: &PeerId| heard(peer).is_some_and(|at| now.saturating_duration_since(at) >= DETACHED);
        self.silent = self.others().filter(silent).collect();
    }

    pub(super) fn silent(&self) -> &BTreeSet<PeerId> {
        &self.silent
    }

    /// All that count, there or not.
    pub(super) fn known(&self) -> impl Iterator<Item = PeerId> {
        self.members.iter().chain(self.ghosts.keys()).copied()
    }

    /// Takes in who is connected now; `heard`: when each was heard last. Returns whether the members changed.
    pub(super) fn update(
        &mut self,
        connected: &BTreeSet<PeerId>,
        heard: impl Fn(&PeerId) -> Option<Instant>,
        now: Instant,
    ) -> bool {
        let me = self.me;
        let gone: Vec<_> = self.others().filter(|peer| !connected.contains(peer)).collect();
        let come: Vec<_> = connected.iter().copied().filter(|peer| *peer != me && !self.contains(peer)).collect();
        for peer in &gone {
            self.members.remove(peer);
            let heard = heard(peer).unwrap_or(now);
            let ended = now.saturating_duration_since(heard) < WORD;
            self.ghosts.insert(*peer, Ghost { heard, since: now, ended });
        }
        for peer in &come {
            self.members.insert(*peer);
            self.ghosts.remove(peer);
        }
        self.lay_ghosts(now);
        let changed = !gone.is_empty() || !come.is_empty();
        if changed {
            self.since = now;
            self.rehash();
        }
        changed
    }

    /// Forgets a proxy that will not come back: its membership was revoked.
    pub(super) fn forget(&mut self, peer: &PeerId) {
        if let Some(ghost) = self.ghosts.get_mut(peer) {
            ghost.ended = true;
        }
    }

    fn lay_ghosts(&mut self, now: Instant) {
        let larger = self.is_larger();
        self.ghosts.retain(|_, ghost| {
            let silent = now.saturating_duration_since(ghost.since);
            let kept = match (ghost.ended, larger) {
                (true, _) => return now.saturating_duration_since(ghost.heard) < LEASE,
                (false, true) => CUT,
                (false, false) => FORGOTTEN,
            };
            silent < kept
        });
    }

    /// Whether those who are there are more than those who are not; of two equal sides it is the one with the first id.
    fn is_larger(&self) -> bool {
        match self.members.len().cmp(&self.ghosts.len()) {
            std::cmp::Ordering::Equal => self.members.first() < self.ghosts.keys().next(),
            order => order.is_gt(),
        }
    }

    fn rehash(&mut self) {
        self.hash = self.members.iter().fold(FNV_OFFSET, |hash, peer| fnv(hash, &peer.to_bytes()));
    }

    /// Who owns the account of a key: the same on all that see the same members.
    pub(super) fn owner(&self, key: &str) -> PeerId {
        highest(self.members.iter(), key).unwrap_or(self.me)
    }

    /// Which part of `limit` is `peer`'s when nobody can be asked: the parts of all that count make the whole. What does
    /// not divide is the one's that would own the account if all were there, so that this one has all of a limit below
    /// their number.
    pub(super) fn share(&self, peer: &PeerId, key: &str, limit: i64) -> i64 {
        let count = i64::try_from(self.members.len() + self.ghosts.len()).unwrap_or(i64::MAX);
        let home = highest(self.members.iter().chain(self.ghosts.keys()), key);
        limit / count + if home == Some(*peer) { limit % count } else { 0 }
    }
}

/// Rendezvous hashing: whoever has the highest score. Adding or removing a proxy moves the keys of that one only.
fn highest<'a>(peers: impl Iterator<Item = &'a PeerId>, key: &str) -> Option<PeerId> {
    let seed = fnv(FNV_OFFSET, key.as_bytes());
    peers.max_by_key(|peer| mix(fnv(seed, &peer.to_bytes()))).copied()
}

/// FNV-1a, 64 bits: part of the wire, since all sides must find the same owner.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): FNV alone spreads its last bytes badly.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(count: usize) -> Vec<PeerId> {
        // An identity multihash around some bytes.
        (0..count).map(|n| PeerId::from_bytes(&[0, 4, 8, 1, 18, n as u8]).unwrap()).collect()
    }

    #[test]
    fn shares_make_the_whole_and_owners_are_spread() {
        let now = Instant::now();
        let all = peers(3);
        let mut view = View::new(all[0], [], now);
        assert!(view.update(&all[1..].iter().copied().collect(), |_| Some(now), now));
        for limit in [0, 1, 2, 3, 59, 60, 1000] {
            for key in ["a", "b", "c", "d"] {
                let shares = all.iter().map(|peer| view.share(peer, key, limit)).sum::<i64>();
                assert_eq!(shares, limit);
            }
        }
        let owned = |peer: &PeerId| (0..3000).filter(|n| view.owner(&format!("key{n}")) == *peer).count();
        assert!(
            all.iter().all(|peer| (800..1200).contains(&owned(peer))),
            "{:?}",
            all.iter().map(owned).collect::<Vec<_>>()
        );
    }

    #[test]
    fn who_has_ended_is_forgotten_with_its_lease_and_who_is_cut_off_keeps_its_share() {
        let start = Instant::now();
        let all = peers(3);
        let both: BTreeSet<_> = all[1..].iter().copied().collect();
        let mut view = View::new(all[0], [], start);
        view.update(&both, |_| None, start);
        let now = start + Duration::from_secs(100);
        // One closed its connection while it spoke, the other was silent.
        let heard = |peer: &PeerId| Some(if *peer == all[1] { now } else { now - Duration::from_secs(10) });
        assert!(view.update(&BTreeSet::from([all[2]]), heard, now));
        assert_eq!(view.known().count(), 3);
        view.update(&BTreeSet::from([all[2]]), heard, now + LEASE);
        assert_eq!(view.known().count(), 2, "the lease of the dead");
        view.update(&BTreeSet::new(), heard, now + LEASE);
        view.update(&BTreeSet::new(), heard, now + LEASE + CUT);
        // One of two: the first id decides which side is the larger.
        assert_eq!(view.known().count(), if all[0] < all[2] { 1 } else { 2 });
        view.update(&BTreeSet::new(), heard, now + LEASE + FORGOTTEN);
        assert_eq!(view.known().count(), 1);
    }
}

//! Members that were connected once and are not now: they are looked for as long as there is room to remember them, however
//! long they stay away. Without that, the two halves of a mesh that was cut for longer than records live would have
//! forgotten each other, each content with itself, and never meet again. Pure.

use crate::state::KNOWN_PEERS;
use dunlin_protocol::id::PeerId;

/// Of those that were lost last, so many are dialled though nobody asks for them.
const DIALLED: usize = 16;

/// Those that are away, last lost last.
#[derive(Debug, Default)]
pub(crate) struct Lost(Vec<PeerId>);

impl Lost {
    /// The last connection to `peer` ended, or it is remembered from an earlier start.
    pub(crate) fn add(&mut self, peer: PeerId) {
        self.remove(&peer);
        if self.0.len() >= KNOWN_PEERS {
            self.0.remove(0);
        }
        self.0.push(peer);
    }

    /// `peer` is connected, or no member any more.
    pub(crate) fn remove(&mut self, peer: &PeerId) {
        self.0.retain(|lost| lost != peer);
    }

    /// Whom to dial.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = PeerId> {
        self.all().take(DIALLED)
    }

    /// All, last lost first.
    pub(crate) fn all(&self) -> impl Iterator<Item = PeerId> {
        self.0.iter().rev().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_lost_last_is_looked_for_first_and_all_are_bounded() {
        let mut lost = Lost::default();
        let peers: Vec<PeerId> = (0..KNOWN_PEERS + 10).map(|_| PeerId::random()).collect();
        peers.iter().for_each(|peer| lost.add(*peer));
        let newest: Vec<PeerId> = peers.iter().rev().copied().collect();
        assert_eq!(lost.wanted().collect::<Vec<_>>(), newest[..DIALLED]);
        assert_eq!(lost.all().collect::<Vec<_>>(), newest[..KNOWN_PEERS]);
        lost.remove(&newest[0]);
        assert!(!lost.all().any(|peer| peer == newest[0]));
        lost.add(newest[KNOWN_PEERS - 1]);
        assert_eq!(lost.all().next(), Some(newest[KNOWN_PEERS - 1]), "lost once more");
        assert_eq!(lost.all().count(), KNOWN_PEERS - 1);
    }
}

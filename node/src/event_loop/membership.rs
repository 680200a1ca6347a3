//! Memberships that ended while their peers were connected, and those that came back.

use super::EventLoop;
use crate::{clock, directory, members::Denied, pulls};
use dunlin_protocol::id::PeerId;
use std::{collections::HashSet, time::Instant};

impl EventLoop {
    /// Asks the members whose turn it is for their revocation lists.
    pub(super) fn compare_lists(&mut self, now: Instant) {
        let own = self.members.revocations().version();
        let connected = || self.connections.keys().copied();
        for peer in self.anti_entropy.due(connected, own, now, &mut self.rng) {
            self.hop.prepare(peer);
            self.pulls.revocations(self.hop.clone(), self.members.clone(), peer);
        }
    }

    pub(super) fn on_pulled(&mut self, outcome: pulls::Outcome) {
        match outcome {
            pulls::Outcome::Done => {}
            pulls::Outcome::Revocations { peer, news } => self.anti_entropy.answered(&peer, news, Instant::now()),
            pulls::Outcome::Untold(peer) => self.told.forget(&peer),
        }
    }

    /// Stores and carries out what was revoked.
    pub(super) fn enforce_revocations(&mut self) {
        self.pulls.store_revocations(self.state.clone(), self.members.clone());
        self.anti_entropy.changed(Instant::now(), &mut self.rng);
        for peer in self.members.revoked() {
            if self.blocked.insert(peer) {
                tracing::info!(%peer, "membership revoked");
            }
            let behaviour = self.swarm.behaviour_mut();
            // Closes its connections as well.
            behaviour.blocked.block_peer(peer);
            behaviour.kad.remove_peer(&peer);
            behaviour.kad.store_mut().forget(&peer);
            self.book.forget(&peer);
            self.lost.remove(&peer);
            self.learn(directory::Event::Revoked { peer });
        }
    }

    /// Tells the directory of a membership that it does not know, or forgot since the peer was last heard of.
    pub(super) fn vouch_for(&self, peer: &PeerId) {
        let proven = self.shared.directory.read(|directory| directory.is_proven(peer));
        if !proven && self.members.check(peer, clock::unix_s()).is_ok() {
            self.tell_rights(*peer);
        }
    }

    /// Ends the connections of those who have no rights any more: a certificate ended, or a revocation came while it was
    /// being shown.
    pub(super) fn close_denied(&mut self) {
        let unix_s = clock::unix_s();
        let denied = |peer: &PeerId| self.members.check(peer, unix_s).err().map(|denied| (*peer, denied));
        let denied: Vec<(PeerId, Denied)> = self.connections.keys().filter_map(denied).collect();
        for (peer, denied) in denied {
            tracing::info!(%peer, reason = %denied, "peer is disconnected");
            // An error means that it closed by itself meanwhile.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    /// Lets those back in who were invited again.
    pub(crate) fn unblock(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        let revoked: HashSet<PeerId> = self.members.revoked().into_iter().collect();
        let back: Vec<PeerId> = self.blocked.iter().filter(|peer| !revoked.contains(peer)).copied().collect();
        for peer in back {
            self.blocked.remove(&peer);
            self.swarm.behaviour_mut().blocked.unblock_peer(peer);
            self.dials.forgive(&peer);
        }
    }
}

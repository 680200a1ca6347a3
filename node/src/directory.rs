//! The directory: which replicas serve which models, how their peers can be reached, and how loaded they are.
//!
//! A pure, order-independent merge. What a peer says about itself is ordered by its own (epoch, sequence) and nothing
//! else; what this process sees of connections touches reachability, never membership of the directory. Time comes in
//! as an argument and is this machine's monotonic clock.

mod entry;
mod event;
mod peers;
mod read;
mod shared;
mod unproven;

pub use event::Event;
pub use peers::{PeerView, Reachability, Rights};
pub use shared::SharedDirectory;
pub use unproven::Stranger;

use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, ServedModel},
    id::{ModelId, PeerId, ReplicaId, Role, RuntimeName, Version},
    limits,
    load::LoadReport,
    record::{Continuation, RecordState, TopicRecord},
    topic::Topic,
};
use entry::Entry;
use libp2p::Multiaddr;
use peers::PeerEntry;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};
use unproven::Unproven;

/// How long a record or announcement counts after its version was first seen. A replayed copy does not lengthen it:
/// peers refresh with a new version every three minutes.
pub const EXPIRY: Duration = Duration::from_secs(600);
/// Replicas that the directory holds.
pub const REPLICAS: usize = 4096;
/// Replicas of one peer that the directory holds.
pub const REPLICAS_PER_PEER: usize = 64;
/// Models under which replicas are indexed.
pub const MODELS: usize = 16 * 1024;
/// Members that the directory holds for one role.
pub const MEMBERS_PER_ROLE: usize = 4096;
/// Peers of which the directory holds anything.
pub const PEERS: usize = 8192;

/// One replica as the directory sees it now.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// Peer and index.
    pub id: ReplicaId,
    /// Where it stands; never [`ReplicaState::Gone`], such replicas are not shown.
    pub state: ReplicaState,
    /// The engine's runtime, where known.
    pub runtime: Option<RuntimeName>,
    /// The self-test's verdict.
    pub continuation: Continuation,
    /// Its connection was lost, and it has not been heard since: what it proved may be another process's.
    pub unconfirmed: bool,
    /// Requests that the engine works on at once; 0 until its announcement or a load report says.
    pub slots: u16,
    /// Models that it serves and may serve.
    pub models: Vec<ServedModel>,
    /// Newest version that the view is built from.
    pub version: Version,
    /// Where its peer may be dialled.
    pub addresses: Vec<Multiaddr>,
    /// How its peer is reached now.
    pub reachability: Reachability,
    /// The newest load report of the replica's present process, and when this machine received it.
    pub load: Option<(LoadReport, Instant)>,
}

/// All that is known of replicas and of the peers that play a role.
#[derive(Debug, Default)]
pub struct Directory {
    replicas: HashMap<ReplicaId, Entry>,
    by_model: HashMap<ModelId, BTreeSet<ReplicaId>>,
    roles: BTreeMap<Role, HashMap<PeerId, RoleEntry>>,
    peers: HashMap<PeerId, PeerEntry>,
    unproven: Unproven,
}

/// A peer's newest record of one role.
#[derive(Debug)]
struct RoleEntry {
    version: Version,
    live: bool,
    expires: Instant,
}

impl Directory {
    /// Takes in what was learnt at `now`. Returns whether a reader could see a difference.
    ///
    /// What a peer says counts from the moment on that its certificate is known; until then a little of it is kept, and
    /// shown to nobody.
    pub fn apply(&mut self, event: Event, now: Instant) -> bool {
        self.take(None, event, now)
    }

    /// The same, of something that `source` handed over: what one source hands over of peers that are not known to be
    /// members never crowds out what others do.
    pub fn apply_from(&mut self, source: PeerId, event: Event, now: Instant) -> bool {
        self.take(Some(source), event, now)
    }

    fn take(&mut self, source: Option<PeerId>, event: Event, now: Instant) -> bool {
        if let Some(peer) = event.speaker().filter(|peer| !self.is_proven(peer)) {
            self.unproven.hold(peer, source, event, now);
            return false;
        }
        match event {
            Event::Record(record) => self.apply_record(record, now),
            Event::Announcement(announcement) => self.apply_announcement(announcement, now),
            Event::Load { from, report } => self.apply_load(from, report, now),
            Event::Member { peer, rights } => self.apply_rights(peer, rights, now),
            Event::Revoked { peer } => {
                self.unproven.take(&peer);
                self.edit_peer(peer, PeerEntry::revoke) && self.rebuild_peer(peer)
            }
            Event::Unreachable { peer } => {
                // Whoever waits to see it proven need not.
                !self.unproven.take(&peer).is_empty()
            }
            Event::Connected { peer, relayed } => self.edit_reachability(peer, |entry| entry.connected(relayed)),
            Event::Disconnected { peer } => self.edit_reachability(peer, PeerEntry::disconnected),
            Event::Suspect { peer } => self.edit_reachability(peer, PeerEntry::suspect),
            Event::Heard { peer } => self.edit_reachability(peer, PeerEntry::heard),
            Event::RoundTrip { peer, rtt } => self.edit_reachability(peer, |entry| entry.round_trip(rtt)),
        }
    }

    /// Forgets what is past its time. Returns whether a reader could see a difference.
    pub fn expire(&mut self, now: Instant) -> bool {
        self.unproven.expire(now);
        for entries in self.roles.values_mut() {
            entries.retain(|_, entry| entry.expires > now);
        }
        let aged: Vec<ReplicaId> =
            self.replicas.iter().filter(|(_, entry)| entry.expired(now)).map(|(id, _)| *id).collect();
        let mut changed = false;
        for id in aged {
            changed |= self.edit_replica(id, |entry| entry.expire(now));
        }
        let (replicas, roles) = (&self.replicas, &self.roles);
        self.peers.retain(|peer, entry| {
            entry.indices.retain(|&index| replicas.contains_key(&ReplicaId { peer: *peer, index }));
            !entry.forgettable(now) || roles.values().any(|members| members.contains_key(peer))
        });
        changed
    }

    fn apply_rights(&mut self, peer: PeerId, rights: Rights, now: Instant) -> bool {
        if !self.edit_peer(peer, |entry| entry.take_rights(rights)) {
            return false;
        }
        let plays = self.roles.values().any(|members| members.contains_key(&peer));
        let mut changed = self.rebuild_peer(peer) | plays;
        for event in self.unproven.take(&peer) {
            changed |= self.apply(event, now);
        }
        changed
    }

    fn apply_announcement(&mut self, announcement: Announcement, now: Instant) -> bool {
        let id = announcement.replica;
        let Some(changed) = self.hear(id.peer, announcement.version.epoch) else { return false };
        self.edit_replica(id, |entry| entry.announce(announcement, now)) | changed
    }

    /// Every word of a peer says which of its processes speaks: what an earlier one said has ended with that.
    ///
    /// Returns whether a reader could see a difference; `None` when the word itself is of such an earlier process.
    fn hear(&mut self, peer: PeerId, epoch: u64) -> Option<bool> {
        if self.peers.len() >= PEERS && !self.peers.contains_key(&peer) {
            return None;
        }
        let entry = self.peers.entry(peer).or_default();
        if !entry.raise_epoch(epoch)? {
            return Some(false);
        }
        let mut changed = false;
        for members in self.roles.values_mut() {
            let ended = members.get(&peer).filter(|entry| entry.version.epoch < epoch).map(|entry| entry.live);
            changed |= ended.unwrap_or(false);
            if ended.is_some() {
                members.remove(&peer);
            }
        }
        for index in self.peers.get(&peer).map(|entry| entry.indices.clone()).unwrap_or_default() {
            changed |= self.edit_replica(ReplicaId { peer, index }, |entry| entry.forget_before(epoch));
        }
        Some(changed)
    }

    fn apply_record(&mut self, record: TopicRecord, now: Instant) -> bool {
        let TopicRecord { topic, replica, version, state } = record;
        if let RecordState::Live { addresses, .. } = &state {
            // Addresses belong to the peer: whichever of its records is newest knows best.
            let known = self.edit_peer(replica.peer, |entry| entry.take_addresses(version, addresses, now));
            if known {
                self.rebuild_peer(replica.peer);
            }
        }
        let Some(changed) = self.hear(replica.peer, version.epoch) else { return false };
        let news = match topic {
            Topic::Model(model) => self.edit_replica(replica, |entry| entry.record(model, version, state, now)),
            Topic::Role(role) => self.apply_role(role, replica.peer, version, &state, now),
            // Jobs are found by their models; their own topics are read by the orchestrator alone.
            Topic::Job(_) => false,
        };
        news | changed
    }

    fn apply_role(&mut self, role: Role, peer: PeerId, version: Version, state: &RecordState, now: Instant) -> bool {
        let entries = self.roles.entry(role).or_default();
        let live = matches!(state, RecordState::Live { .. });
        match entries.get(&peer) {
            Some(known) if known.version >= version => return false,
            None if entries.len() >= MEMBERS_PER_ROLE => return false,
            _ => {}
        }
        let before = entries.insert(peer, RoleEntry { version, live, expires: now + EXPIRY });
        before.is_some_and(|entry| entry.live) != live
    }

    fn apply_load(&mut self, from: PeerId, report: LoadReport, now: Instant) -> bool {
        // A report about somebody else is a lie or a mistake either way.
        if report.replica.peer != from {
            return false;
        }
        let heard = self.hear(from, report.version.epoch);
        self.edit_peer(from, |entry| entry.spoke(heard.is_none(), now));
        let Some(changed) = heard else { return false };
        let Some(entry) = self.replicas.get_mut(&report.replica) else {
            return self.edit_replica(report.replica, |entry| entry.report(report, now)) | changed;
        };
        // In place: a report changes neither models nor index.
        (entry.report(report, now) && entry.view().is_some()) | changed
    }

    /// Changes a peer's own entry, making one within bounds. Returns what `edit` returns.
    fn edit_peer(&mut self, peer: PeerId, edit: impl FnOnce(&mut PeerEntry) -> bool) -> bool {
        if self.peers.len() >= PEERS && !self.peers.contains_key(&peer) {
            return false;
        }
        edit(self.peers.entry(peer).or_default())
    }

    fn edit_reachability(&mut self, peer: PeerId, edit: impl FnOnce(&mut PeerEntry) -> bool) -> bool {
        if !self.edit_peer(peer, edit) {
            return false;
        }
        let Some(entry) = self.peers.get(&peer) else { return false };
        for index in &entry.indices {
            if let Some(replica) = self.replicas.get_mut(&ReplicaId { peer, index: *index }) {
                replica.set_reachability(entry.reachability);
            }
        }
        true
    }

    /// Changes one replica's entry, making one within bounds, and brings view and index up to date.
    fn edit_replica(&mut self, id: ReplicaId, edit: impl FnOnce(&mut Entry) -> bool) -> bool {
        if !self.replicas.contains_key(&id) && !self.has_room(&id) {
            return false;
        }
        let entry = self.replicas.entry(id).or_insert_with(|| Entry::new(id));
        if !edit(entry) {
            if entry.is_empty() {
                self.replicas.remove(&id);
            }
            return false;
        }
        self.peers.entry(id.peer).or_default().indices.insert(id.index);
        self.rebuild(id)
    }

    fn has_room(&self, id: &ReplicaId) -> bool {
        let peer = self.peers.get(&id.peer);
        self.replicas.len() < REPLICAS
            && peer.map_or(self.peers.len() < PEERS, |entry| entry.indices.len() < REPLICAS_PER_PEER)
    }

    fn rebuild_peer(&mut self, peer: PeerId) -> bool {
        let indices = self.peers.get(&peer).map(|entry| entry.indices.clone()).unwrap_or_default();
        indices.into_iter().fold(false, |changed, index| self.rebuild(ReplicaId { peer, index }) | changed)
    }

    /// Derives the view of one replica anew and corrects the index.
    fn rebuild(&mut self, id: ReplicaId) -> bool {
        let Some(entry) = self.replicas.get_mut(&id) else { return false };
        let Some(peer) = self.peers.get(&id.peer) else { return false };
        let before: Vec<ModelId> = entry.view().map(Replica::model_ids).unwrap_or_default();
        let changed = entry.derive(peer);
        let after: Vec<ModelId> = entry.view().map(Replica::model_ids).unwrap_or_default();
        if entry.is_empty() {
            self.replicas.remove(&id);
        }
        if before != after {
            self.reindex(id, &before, after);
        }
        changed
    }

    fn reindex(&mut self, id: ReplicaId, before: &[ModelId], after: Vec<ModelId>) {
        for model in before {
            if let Some(ids) = self.by_model.get_mut(model.as_str()) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_model.remove(model.as_str());
                }
            }
        }
        for model in after {
            if self.by_model.len() < MODELS || self.by_model.contains_key(model.as_str()) {
                self.by_model.entry(model).or_default().insert(id);
            }
        }
    }
}

impl Replica {
    fn model_ids(&self) -> Vec<ModelId> {
        self.models.iter().map(|model| model.id.clone()).collect()
    }

    /// Whether it serves `model`.
    #[must_use]
    pub fn serves(&self, model: &ModelId) -> bool {
        self.models.iter().any(|served| served.id == *model)
    }
}

/// Models that one replica may hold records of: as many as it may announce.
const RECORDS_PER_REPLICA: usize = limits::MODELS_PER_REPLICA;

#[cfg(test)]
mod tests;

//! What the directory tells.

use super::{
    Directory, Replica, Stranger,
    entry::Entry,
    peers::{PeerEntry, PeerView},
};
use dunlin_protocol::{
    id::{ModelId, PeerId, ReplicaId, Role, Version},
    topic::Topic,
};
use libp2p::Multiaddr;
use std::time::Instant;

impl Directory {
    /// Replicas that serve `model`, in order of their ids.
    pub fn replicas(&self, model: &ModelId) -> impl Iterator<Item = &Replica> {
        let ids = self.by_model.get(model.as_str());
        ids.into_iter().flatten().filter_map(|id| self.replica(id))
    }

    /// Every replica that is shown, in no order.
    pub fn all_replicas(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.values().filter_map(Entry::view)
    }

    /// One replica.
    #[must_use]
    pub fn replica(&self, id: &ReplicaId) -> Option<&Replica> {
        self.replicas.get(id).and_then(Entry::view)
    }

    /// Whether any replica, in whatever state, serves `model`.
    #[must_use]
    pub fn knows(&self, model: &ModelId) -> bool {
        self.by_model.contains_key(model.as_str())
    }

    /// Models that some replica serves, in no order.
    pub fn models(&self) -> impl Iterator<Item = &ModelId> {
        self.by_model.keys()
    }

    /// Peers of which anything is known, in no order.
    pub fn peers(&self) -> impl Iterator<Item = PeerView<'_>> {
        self.peers.iter().map(|(peer, entry)| entry.view(*peer))
    }

    /// One peer.
    #[must_use]
    pub fn peer(&self, peer: &PeerId) -> Option<PeerView<'_>> {
        self.peers.get(peer).map(|entry| entry.view(*peer))
    }

    /// Members that registered `role`, which their certificates have, in no order.
    pub fn members(&self, role: Role) -> impl Iterator<Item = PeerId> {
        let entries = self.roles.get(&role);
        let live = entries.into_iter().flatten().filter(|(_, entry)| entry.live).map(|(peer, _)| *peer);
        // A storer checks this too, but who says that the storer is honest?
        live.filter(move |peer| self.peers.get(peer).is_some_and(|entry| entry.may_play(role)))
    }

    /// Whether a certificate of `peer` is known, so that what it says counts.
    #[must_use]
    pub fn is_proven(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_some_and(PeerEntry::is_proven)
    }

    /// Peers that said something without being proven members: the newest of each source in turn, then the one before that,
    /// and so on. A connection would prove them.
    pub fn strangers(&self) -> impl Iterator<Item = Stranger> {
        self.unproven.strangers()
    }

    /// Whether any of the strangers registered `topic`.
    #[must_use]
    pub fn awaits(&self, topic: &Topic) -> bool {
        self.unproven.registers(topic)
    }

    /// Where the newest record of `peer` says that it listens, whether it is proven or not.
    #[must_use]
    pub fn addresses(&self, peer: &PeerId) -> &[Multiaddr] {
        let addresses = self.peers.get(peer).map(PeerEntry::addresses).unwrap_or_default();
        if addresses.is_empty() { self.unproven.addresses(peer) } else { addresses }
    }

    /// When the newest load report of `peer` came, whatever replica it was about.
    #[must_use]
    pub fn last_report(&self, peer: &PeerId) -> Option<Instant> {
        self.peers.get(peer).and_then(|entry| entry.last_report)
    }

    /// Whether `version` is of a process of `peer` that a later one has replaced: nothing that it said counts.
    #[must_use]
    pub fn is_outdated(&self, peer: &PeerId, version: Version) -> bool {
        self.peers.get(peer).and_then(|entry| entry.epoch()).is_some_and(|epoch| epoch > version.epoch)
    }

    /// The newest version that is known of a topic's record.
    #[must_use]
    pub fn record_version(&self, topic: &Topic, replica: &ReplicaId) -> Option<Version> {
        if !self.is_proven(&replica.peer) {
            return self.unproven.record_version(topic, replica);
        }
        match topic {
            Topic::Model(model) => self.replicas.get(replica)?.record_version(model),
            Topic::Role(role) => Some(self.roles.get(role)?.get(&replica.peer)?.version),
            Topic::Job(_) => None,
        }
    }

    /// The version of the newest announcement of `replica`.
    #[must_use]
    pub fn announced_version(&self, replica: &ReplicaId) -> Option<Version> {
        if !self.is_proven(&replica.peer) {
            return self.unproven.announced_version(replica);
        }
        self.replicas.get(replica).and_then(Entry::announced_version)
    }

    /// Peers that have replicas or say that they are agents, proven or not: agents have no connections among each other,
    /// and the more there are, the less often each should report.
    #[must_use]
    pub fn agents(&self) -> usize {
        let with_replicas = |peer: &PeerId| self.peers.get(peer).is_some_and(|entry| !entry.indices.is_empty());
        let without = self.members(Role::Agent).filter(|peer| !with_replicas(peer)).count();
        let unproven = self.unproven.agents();
        self.peers.values().filter(|entry| !entry.indices.is_empty()).count() + without + unproven
    }
}

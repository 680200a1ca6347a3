//! What this process says of itself: the signed records and announcements that follow from its roles, its replicas and
//! its addresses. Pure: says what to put and gossip, and does neither.

use crate::handle::Offer;
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, ServedModel, SignedAnnouncement},
    id::{ModelId, PeerId, ReplicaId, Role, Roles, RuntimeName, Version},
    limits,
    record::{self, Continuation, RecordState, SignedRecord, TopicRecord},
    signed,
    topic::Topic,
};
use libp2p::{Multiaddr, identity::Keypair};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Longest that a tombstone is put again: as long as the longest record may live anywhere.
const TOMBSTONE: Duration = crate::record_store::EXPIRY;

/// Something to be said to the mesh.
#[derive(Debug, Clone)]
pub(crate) enum Statement {
    /// Gossip this on the topic `mesh`.
    Announce { announcement: Announcement, signed: SignedAnnouncement },
    /// Put this value under the topic's key.
    Put { topic: Topic, value: Vec<u8> },
}

/// All that this process has to say of itself.
pub(crate) struct Registration {
    keypair: Keypair,
    peer: PeerId,
    version: Version,
    addresses: Vec<Multiaddr>,
    offers: BTreeMap<u16, Announced>,
    /// Own records by topic and replica index, tombstones included.
    records: BTreeMap<Topic, BTreeMap<u16, Own>>,
    roles: Roles,
}

struct Announced {
    offer: Offer,
    signed: SignedAnnouncement,
}

struct Own {
    record: SignedRecord,
    description: Option<Description>,
    withdrawn: Option<Instant>,
}

/// The part of a live record that the replica determines.
#[derive(Clone, PartialEq)]
struct Description {
    runtime: Option<RuntimeName>,
    continuation: Continuation,
}

impl Registration {
    pub(crate) fn new(keypair: Keypair, epoch: u64, roles: Roles) -> Self {
        Self {
            peer: keypair.public().to_peer_id(),
            keypair,
            version: Version { epoch, seq: 0 },
            addresses: Vec::new(),
            offers: BTreeMap::new(),
            records: BTreeMap::new(),
            roles,
        }
    }

    /// Announcements of the replicas of this process, as they were last signed.
    pub(crate) fn announcements(&self) -> Vec<SignedAnnouncement> {
        self.offers.values().map(|announced| announced.signed.clone()).collect()
    }

    /// Whether the last word on any replica was that it is ready.
    pub(crate) fn any_ready(&self) -> bool {
        self.offers.values().any(|announced| announced.offer.state == ReplicaState::Ready)
    }

    /// Takes in new addresses, best first. Returns whether they differ, so that a refresh is due.
    pub(crate) fn set_addresses(&mut self, addresses: Vec<Multiaddr>) -> bool {
        let changed = self.addresses != addresses;
        self.addresses = addresses;
        changed
    }

    /// Registers the roles that this process plays.
    pub(crate) fn register_roles(&mut self) -> Vec<Statement> {
        let version = self.next_version();
        // An operator is looked for by nobody, and older storers don't know the role.
        let roles: Vec<Role> = self.roles.iter().filter(|role| *role != Role::Operator).collect();
        let plain = Description { runtime: None, continuation: Continuation::None };
        roles.into_iter().filter_map(|role| self.put_live(Topic::Role(role), 0, plain.clone(), version)).collect()
    }

    /// Takes in the truth about one replica. `may_serve` answers for this peer's own certificate.
    ///
    /// # Errors
    /// The announcement does not fit its limit: the caller offers too many or too long models.
    pub(crate) fn offer(
        &mut self,
        mut offer: Offer,
        may_serve: impl Fn(&ModelId) -> bool,
        now: Instant,
    ) -> Result<Vec<Statement>, signed::Error> {
        offer.models.retain(|model| may_serve(&model.id));
        offer.models.truncate(limits::MODELS_PER_REPLICA);
        if self.offers.get(&offer.index).is_some_and(|known| known.offer == offer) {
            return Ok(Vec::new());
        }
        let version = self.next_version();
        let index = offer.index;
        let mut statements = vec![self.announce(&offer, version)?];
        let wanted = wanted_topics(&offer);
        let description = Description { runtime: Some(offer.runtime.clone()), continuation: offer.continuation };
        statements.extend(self.withdraw_except(index, &wanted, version, now));
        for topic in wanted {
            if self.says(&topic, index, &description) {
                continue;
            }
            statements.extend(self.put_live(topic, index, description.clone(), version));
        }
        Ok(statements)
    }

    /// Everything again under a new version, so that storers and directories keep it; tombstones as they are.
    pub(crate) fn refresh(&mut self, now: Instant) -> Vec<Statement> {
        for records in self.records.values_mut() {
            records.retain(|_, own| own.withdrawn.is_none_or(|at| at + TOMBSTONE > now));
        }
        self.records.retain(|_, records| !records.is_empty());
        self.offers.retain(|_, announced| announced.offer.state != ReplicaState::Gone);
        let mut statements = self.announce_again();
        let version = self.version;
        let live: Vec<(Topic, u16, Description)> = self.live().collect();
        for (topic, index, description) in live {
            self.sign_live(topic, index, description, version);
        }
        statements.extend(self.puts());
        statements
    }

    /// The announcements again, under a new version: a copy of the old one would be taken for a duplicate.
    pub(crate) fn announce_again(&mut self) -> Vec<Statement> {
        let version = self.next_version();
        let offers: Vec<Offer> = self.offers.values().map(|announced| announced.offer.clone()).collect();
        offers.iter().filter_map(|offer| self.announce(offer, version).ok()).collect()
    }

    /// Every topic's own records as last signed: for storers that have just appeared.
    pub(crate) fn puts(&self) -> Vec<Statement> {
        self.records.keys().filter_map(|topic| self.put_of(topic)).collect()
    }

    /// Takes everything back, at the end of the process.
    pub(crate) fn withdraw_all(&mut self, now: Instant) -> Vec<Statement> {
        let version = self.next_version();
        let mut statements = Vec::new();
        let offers: Vec<Offer> = self.offers.values().map(|announced| announced.offer.clone()).collect();
        for offer in offers {
            let gone = Offer { state: ReplicaState::Gone, models: Vec::new(), ..offer };
            statements.extend(self.announce(&gone, version).ok());
        }
        let live: Vec<(Topic, u16)> = self.live().map(|(topic, index, _)| (topic, index)).collect();
        for (topic, index) in live {
            self.sign(topic.clone(), index, None, version, Some(now));
            statements.extend(self.put_of(&topic));
        }
        statements
    }

    fn next_version(&mut self) -> Version {
        self.version.seq += 1;
        self.version
    }

    fn announce(&mut self, offer: &Offer, version: Version) -> Result<Statement, signed::Error> {
        let announcement = Announcement {
            replica: ReplicaId { peer: self.peer, index: offer.index },
            version,
            state: offer.state,
            runtime: offer.runtime.clone(),
            continuation: offer.continuation,
            slots: offer.slots,
            models: offer.models.clone(),
        };
        let signed = SignedAnnouncement::sign(&announcement, &self.keypair)?;
        let announced = Announced { offer: offer.clone(), signed: signed.clone() };
        self.offers.insert(offer.index, announced);
        Ok(Statement::Announce { announcement, signed })
    }

    fn live(&self) -> impl Iterator<Item = (Topic, u16, Description)> {
        self.records.iter().flat_map(|(topic, records)| {
            records.iter().filter_map(move |(index, own)| Some((topic.clone(), *index, own.description.clone()?)))
        })
    }

    fn says(&self, topic: &Topic, index: u16, description: &Description) -> bool {
        let own = self.records.get(topic).and_then(|records| records.get(&index));
        own.is_some_and(|own| own.description.as_ref() == Some(description))
    }

    fn withdraw_except(
        &mut self,
        index: u16,
        wanted: &BTreeSet<Topic>,
        version: Version,
        now: Instant,
    ) -> Vec<Statement> {
        let dropped: Vec<Topic> = self
            .live()
            .filter(|(topic, of, _)| *of == index && matches!(topic, Topic::Model(_)) && !wanted.contains(topic))
            .map(|(topic, _, _)| topic)
            .collect();
        let withdraw = |topic: Topic| {
            self.sign(topic.clone(), index, None, version, Some(now));
            self.put_of(&topic)
        };
        dropped.into_iter().filter_map(withdraw).collect()
    }

    fn put_live(&mut self, topic: Topic, index: u16, description: Description, version: Version) -> Option<Statement> {
        self.sign_live(topic.clone(), index, description, version);
        self.put_of(&topic)
    }

    fn sign_live(&mut self, topic: Topic, index: u16, description: Description, version: Version) {
        self.sign(topic, index, Some(description), version, None);
    }

    /// Signs the record of a topic anew. A long model name leaves room for fewer addresses.
    fn sign(
        &mut self,
        topic: Topic,
        index: u16,
        description: Option<Description>,
        version: Version,
        withdrawn: Option<Instant>,
    ) {
        let replica = ReplicaId { peer: self.peer, index };
        let most = self.addresses.len().min(limits::RECORD_ADDRESSES);
        let fitting = (0..=most).rev().find_map(|count| {
            let state = match &description {
                None => RecordState::Withdrawn,
                Some(Description { runtime, continuation }) => RecordState::Live {
                    addresses: self.addresses[..count].to_vec(),
                    runtime: runtime.clone(),
                    continuation: *continuation,
                },
            };
            let record = TopicRecord { topic: topic.clone(), replica, version, state };
            SignedRecord::sign(&record, &self.keypair).ok()
        });
        match fitting {
            Some(record) => {
                let own = Own { record, description, withdrawn };
                self.records.entry(topic).or_default().insert(index, own);
            }
            None => tracing::warn!(%topic, "topic record does not fit its limit; it is not registered"),
        }
    }

    fn put_of(&self, topic: &Topic) -> Option<Statement> {
        let records = self.records.get(topic)?;
        let value = record::encode_list(records.values().map(|own| &own.record)).ok()?;
        Some(Statement::Put { topic: topic.clone(), value })
    }
}

fn wanted_topics(offer: &Offer) -> BTreeSet<Topic> {
    match offer.state {
        ReplicaState::Ready => offer.models.iter().map(|ServedModel { id, .. }| Topic::Model(id.clone())).collect(),
        ReplicaState::Starting | ReplicaState::Unhealthy | ReplicaState::Draining | ReplicaState::Gone => {
            BTreeSet::new()
        }
    }
}

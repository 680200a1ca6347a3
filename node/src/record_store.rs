//! What this peer stores of the DHT: under each topic's key, one signed record per replica.
//!
//! libp2p's own stores keep one value per key, or providers without payload. Here a key's value is the list of all its
//! records; a put merges, and is checked against the certificate of the peer that sent it.

use dunlin_protocol::{
    codec,
    id::{MeshId, PeerId, ReplicaId},
    record::{self, Inserted, RecordSet, SignedRecord, TopicRecord},
    topic::Topic,
};
use libp2p::kad::{
    self, ProviderRecord, Record,
    store::{self, RecordStore},
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// How long a record is kept after its version first came, tombstones alike.
pub const EXPIRY: Duration = Duration::from_secs(600);
/// Topics for which this peer stores anything.
pub const TOPICS: usize = 8192;
/// Records that this peer stores, of all topics: some 40 MB at their largest.
pub const RECORDS: usize = 64 * 1024;
/// Records that this peer stores for one other peer: 64 engines with 64 models each.
pub const RECORDS_PER_PEER: usize = 4096;
/// Records in one put: those of all engines of one agent that serve the same model.
pub const RECORDS_PER_PUT: usize = 64;

/// Why a put of another peer was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The value is not a list of records.
    #[error(transparent)]
    Malformed(#[from] codec::Error),
    /// A record is malformed, not signed by its peer, or has too many addresses.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// No record, or more than one put may carry.
    #[error("{0} records in one put")]
    Count(usize),
    /// A record is about another peer than the one that sent it.
    #[error("the record is about peer {0}")]
    NotItsOwn(PeerId),
    /// The topic does not hash to the key.
    #[error("the record of topic {0} was put under another key")]
    WrongKey(Topic),
    /// The sender's certificate does not let it register the topic.
    #[error("the sender's certificate does not cover topic {0}")]
    NotAllowed(Topic),
    /// A bound of the store is reached.
    #[error("the store is full")]
    Full,
}

/// The record store of one peer.
#[derive(Debug)]
pub struct TopicStore {
    mesh: MeshId,
    own: PeerId,
    topics: HashMap<kad::RecordKey, StoredTopic>,
    per_peer: HashMap<PeerId, usize>,
}

#[derive(Debug, Default)]
struct StoredTopic {
    records: RecordSet,
    expires: BTreeMap<ReplicaId, Instant>,
}

/// The DHT key of a topic.
#[must_use]
pub fn key(topic: &Topic, mesh: &MeshId) -> kad::RecordKey {
    kad::RecordKey::new(&topic.key(mesh).0)
}

impl TopicStore {
    /// An empty store of peer `own` in `mesh`.
    #[must_use]
    pub fn new(mesh: MeshId, own: PeerId) -> Self {
        Self { mesh, own, topics: HashMap::new(), per_peer: HashMap::new() }
    }

    /// Checks and merges what `source` put under `key`. `may_register` answers for the certificate of `source`.
    ///
    /// # Errors
    /// The whole put is refused when any record in it is not `source`'s own, valid, and allowed.
    pub fn put_from(
        &mut self,
        source: PeerId,
        key: &kad::RecordKey,
        value: &[u8],
        may_register: impl Fn(&Topic) -> bool,
        now: Instant,
    ) -> Result<(), Refusal> {
        let records = record::decode_list(value)?;
        if records.is_empty() || records.len() > RECORDS_PER_PUT {
            return Err(Refusal::Count(records.len()));
        }
        let mut checked = Vec::with_capacity(records.len());
        for signed in records {
            let claimed = signed.peek().map_err(record::Error::from)?;
            // What can be told without the signature is told first: verifying is the dear part.
            if claimed.replica.peer != source {
                return Err(Refusal::NotItsOwn(claimed.replica.peer));
            }
            if self::key(&claimed.topic, &self.mesh) != *key {
                return Err(Refusal::WrongKey(claimed.topic));
            }
            if !may_register(&claimed.topic) {
                return Err(Refusal::NotAllowed(claimed.topic));
            }
            checked.push((record::verify(&signed)?, signed));
        }
        for (verified, signed) in checked {
            self.merge(key, &verified, signed, now)?;
        }
        Ok(())
    }

    /// Forgets what is past its time at `now`.
    pub fn expire(&mut self, now: Instant) {
        for topic in self.topics.values_mut() {
            let aged: Vec<ReplicaId> =
                topic.expires.iter().filter(|(_, expires)| **expires <= now).map(|(replica, _)| *replica).collect();
            for replica in aged {
                topic.expires.remove(&replica);
                topic.records.remove(&replica);
                uncount(&mut self.per_peer, &replica.peer);
            }
        }
        self.topics.retain(|_, topic| !topic.records.is_empty());
    }

    /// Drops everything about a peer that is no longer a member.
    pub fn forget(&mut self, peer: &PeerId) {
        for topic in self.topics.values_mut() {
            let its: Vec<ReplicaId> = topic.expires.keys().filter(|id| id.peer == *peer).copied().collect();
            for replica in its {
                topic.expires.remove(&replica);
                topic.records.remove(&replica);
            }
        }
        self.topics.retain(|_, topic| !topic.records.is_empty());
        self.per_peer.remove(peer);
    }

    /// Number of records, tombstones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.per_peer.values().sum()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.per_peer.is_empty()
    }

    fn merge(
        &mut self,
        key: &kad::RecordKey,
        verified: &TopicRecord,
        signed: SignedRecord,
        now: Instant,
    ) -> Result<(), Refusal> {
        let replica = verified.replica;
        let known = self.topics.get(key).is_some_and(|topic| topic.expires.contains_key(&replica));
        if !known && !self.has_room(key, &replica.peer) {
            return Err(Refusal::Full);
        }
        let topic = self.topics.entry(key.clone()).or_default();
        match topic.records.insert(verified, signed) {
            Inserted::Known => return Ok(()),
            Inserted::Full => return Err(Refusal::Full),
            Inserted::Kept => {}
            Inserted::KeptInsteadOf(other) => {
                topic.expires.remove(&other);
                uncount(&mut self.per_peer, &other.peer);
            }
        }
        topic.expires.insert(replica, now + EXPIRY);
        if !known {
            *self.per_peer.entry(replica.peer).or_default() += 1;
        }
        Ok(())
    }

    fn has_room(&self, key: &kad::RecordKey, peer: &PeerId) -> bool {
        let of_peer = self.per_peer.get(peer).copied().unwrap_or_default();
        let topic_fits = self.topics.len() < TOPICS || self.topics.contains_key(key);
        topic_fits && self.len() < RECORDS && (of_peer < RECORDS_PER_PEER || *peer == self.own)
    }
}

/// Counts one record of a peer less.
fn uncount(per_peer: &mut HashMap<PeerId, usize>, peer: &PeerId) {
    if let Some(count) = per_peer.get_mut(peer) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            per_peer.remove(peer);
        }
    }
}

impl RecordStore for TopicStore {
    type RecordsIter<'a> = std::iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = std::iter::Empty<Cow<'a, ProviderRecord>>;

    fn get(&self, key: &kad::RecordKey) -> Option<Cow<'_, Record>> {
        let now = Instant::now();
        let topic = self.topics.get(key)?;
        let kept = topic.records.iter().zip(topic.expires.values());
        let value = record::encode_list(kept.filter(|(_, expires)| **expires > now).map(|(record, _)| record));
        Some(Cow::Owned(Record::new(key.clone(), value.ok()?)))
    }

    /// Called for this peer's own records only: puts of others come in through [`TopicStore::put_from`].
    fn put(&mut self, record: Record) -> store::Result<()> {
        let own = self.own;
        match self.put_from(own, &record.key, &record.value, |_| true, Instant::now()) {
            Ok(()) => Ok(()),
            Err(Refusal::Full) => Err(store::Error::MaxRecords),
            Err(_) => Err(store::Error::ValueTooLarge),
        }
    }

    fn remove(&mut self, key: &kad::RecordKey) {
        if let Some(topic) = self.topics.remove(key) {
            for replica in topic.expires.keys() {
                uncount(&mut self.per_peer, &replica.peer);
            }
        }
    }

    /// Empty: records are refreshed by the peers that they are about, never copied on by storers.
    fn records(&self) -> Self::RecordsIter<'_> {
        std::iter::empty()
    }

    /// Provider records have no payload to check a right against, so there are none in a mesh.
    fn add_provider(&mut self, _: ProviderRecord) -> store::Result<()> {
        Err(store::Error::MaxProvidedKeys)
    }

    fn providers(&self, _: &kad::RecordKey) -> Vec<ProviderRecord> {
        Vec::new()
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        std::iter::empty()
    }

    fn remove_provider(&mut self, _: &kad::RecordKey, _: &PeerId) {}
}

#[cfg(test)]
mod tests;

//! Topic records: what is stored in the DHT under a topic's key, signed by the peer that it is about.

use crate::{
    codec,
    id::{PeerId, ReplicaId, RuntimeName, Version},
    limits,
    signed::{self, Signed, Statement},
    topic::Topic,
};
use multiaddr::Multiaddr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether an engine continues a partial answer without repeating or losing a character, as its agent found out by
/// trying when the engine became ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Continuation {
    /// Not tried, or tried and found wanting.
    #[default]
    None,
    /// Every cut of the self-test was continued to the same text.
    Exact,
}

/// What a record says of its replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordState {
    /// Serving, and where to dial.
    Live {
        /// At most [`limits::RECORD_ADDRESSES`], best first, without `/p2p`.
        addresses: Vec<Multiaddr>,
        /// The engine's runtime; `None` for records of a role.
        runtime: Option<RuntimeName>,
        /// The self-test's verdict.
        continuation: Continuation,
    },
    /// A tombstone: outlives any record with a lower version.
    Withdrawn,
}

/// One replica under one topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// The topic; a storer checks that it hashes to the key.
    pub topic: Topic,
    /// Whom the record is about; index 0 for a record of a role.
    pub replica: ReplicaId,
    /// Later replaces earlier.
    pub version: Version,
    /// Live or withdrawn.
    pub state: RecordState,
}

impl Statement for TopicRecord {
    const DOMAIN: &'static str = "/dunlin/topic-record/1";
    // The envelope adds two lengths of 8 bytes and the signature of 64.
    const LIMIT: usize = limits::TOPIC_RECORD_BYTES - 80;
}

/// Why a record was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad signature or encoding.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// More addresses than a record may have.
    #[error("record with {0} addresses; at most {max} are allowed", max = limits::RECORD_ADDRESSES)]
    TooManyAddresses(usize),
}

/// A record as its peer signed it.
pub type SignedRecord = Signed<TopicRecord>;

/// Verifies a record against the key inside the peer id that it is about.
///
/// # Errors
/// Malformed, not signed by that peer, or with too many addresses.
pub fn verify(record: &SignedRecord) -> Result<TopicRecord, Error> {
    let claimed = record.peek()?;
    let verified = record.verify(&signed::public_key(&claimed.replica.peer)?)?;
    if let RecordState::Live { addresses, .. } = &verified.state
        && addresses.len() > limits::RECORD_ADDRESSES
    {
        return Err(Error::TooManyAddresses(addresses.len()));
    }
    Ok(verified)
}

/// All records under one key, at most one per replica: what a storer keeps and what a look-up returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordSet {
    records: BTreeMap<(PeerId, u16), (Version, SignedRecord)>,
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// It, or a later one, was there.
    Known,
    /// It is there now.
    Kept,
    /// It is there now, and the record of that replica had to go.
    KeptInsteadOf(ReplicaId),
    /// There is no room for it.
    Full,
}

impl RecordSet {
    /// Takes a verified record unless it or a later one is there. Idempotent, and commutes, at the bounds too: what is kept
    /// is a function of what was seen. Of two records with one version, which only a faulty peer signs, everybody keeps the
    /// same.
    ///
    /// Of one peer the replicas with the lowest indices are kept. A full set keeps the lowest indices of all peers, so that
    /// one with many replicas makes room for others, and among equals the lowest peer ids.
    pub fn insert(&mut self, verified: &TopicRecord, signed: SignedRecord) -> Inserted {
        let replica = verified.replica;
        let key = (replica.peer, replica.index);
        let known = self.records.get(&key);
        if known.is_some_and(|(version, known)| (*version, known.rank()) >= (verified.version, signed.rank())) {
            return Inserted::Known;
        }
        let new = known.is_none();
        self.records.insert(key, (verified.version, signed));
        if !new {
            return Inserted::Kept;
        }
        match self.surplus(replica.peer) {
            None => Inserted::Kept,
            Some(surplus) => {
                self.remove(&surplus);
                if surplus == replica { Inserted::Full } else { Inserted::KeptInsteadOf(surplus) }
            }
        }
    }

    /// The replica that is one too many after a new one of `peer` came.
    fn surplus(&self, peer: PeerId) -> Option<ReplicaId> {
        let of_peer = self.records.range((peer, 0)..=(peer, u16::MAX));
        if of_peer.clone().count() > limits::RECORDS_PER_TOPIC_AND_PEER {
            return of_peer.last().map(|(&(peer, index), _)| ReplicaId { peer, index });
        }
        if self.records.len() <= limits::RECORDS_PER_TOPIC {
            return None;
        }
        let last = self.records.keys().max_by_key(|(peer, index)| (*index, *peer));
        last.map(|&(peer, index)| ReplicaId { peer, index })
    }

    /// The signed records, in order of replica.
    pub fn iter(&self) -> impl Iterator<Item = &SignedRecord> {
        self.records.values().map(|(_, record)| record)
    }

    /// Drops the record of `replica`.
    pub fn remove(&mut self, replica: &ReplicaId) {
        self.records.remove(&(replica.peer, replica.index));
    }

    /// Number of records, tombstones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Encodes records as one DHT value.
///
/// # Errors
/// Over [`limits::TOPIC_RECORD_LIST_BYTES`].
pub fn encode_list<'a>(records: impl Iterator<Item = &'a SignedRecord>) -> Result<Vec<u8>, codec::Error> {
    codec::encode(&records.collect::<Vec<_>>(), limits::TOPIC_RECORD_LIST_BYTES)
}

/// Decodes a DHT value into records, none of them verified yet.
///
/// # Errors
/// Not such a list.
pub fn decode_list(value: &[u8]) -> Result<Vec<SignedRecord>, codec::Error> {
    codec::decode(value, limits::TOPIC_RECORD_LIST_BYTES)
}

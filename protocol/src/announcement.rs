//! Announcements: what a peer says of a replica to the whole mesh by gossip, signed, forwarded by everyone.

use crate::{
    id::{ModelId, ReplicaId, RuntimeName, Version},
    limits,
    record::Continuation,
    signed::{self, Signed, Statement},
};
use serde::{Deserialize, Serialize};

/// Where a replica stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaState {
    /// The engine runs but does not answer for its model yet.
    Starting,
    /// Serving.
    Ready,
    /// Finishing what it has; takes nothing new.
    Draining,
    /// Left. Outlives any earlier version.
    Gone,
    /// Served before, and fails now: requests to it fail, or it no longer answers. Looked at again and again.
    Unhealthy,
}

/// What one replica is and serves, whole: each announcement replaces the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Whom it is about.
    pub replica: ReplicaId,
    /// Later replaces earlier. Shares its numbers with the replica's topic records.
    pub version: Version,
    /// Where it stands.
    pub state: ReplicaState,
    /// The engine's runtime.
    pub runtime: RuntimeName,
    /// The self-test's verdict.
    pub continuation: Continuation,
    /// Requests that the engine works on at once.
    pub slots: u16,
    /// Models served, at most [`limits::MODELS_PER_REPLICA`].
    pub models: Vec<ServedModel>,
}

/// One model of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedModel {
    /// As clients name it.
    pub id: ModelId,
    /// For a LoRA adapter, the model that it adapts.
    pub parent: Option<ModelId>,
    /// Longest context, tokens, where the engine says so.
    pub context: Option<u32>,
    /// [`root_tag`] of what the engine says that it loaded; `None` where it says nothing. Only a replica with the same
    /// one may go on with an answer.
    pub root: Option<u64>,
}

/// A short name for what an engine loaded, from its own words: 64-bit FNV-1a. Two machines that have the same model under
/// different paths get two tags, which costs a continued stream and no more.
#[must_use]
pub fn root_tag(said: &str) -> u64 {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    said.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash)
}

impl Statement for Announcement {
    const DOMAIN: &'static str = "/dunlin/announcement/1";
    const LIMIT: usize = limits::ANNOUNCEMENT_BYTES - 256;
}

/// Why an announcement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad signature or encoding.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// More models than a replica may announce.
    #[error("announcement of {0} models; at most {max} are allowed", max = limits::MODELS_PER_REPLICA)]
    TooManyModels(usize),
}

/// An announcement as its peer signed it.
pub type SignedAnnouncement = Signed<Announcement>;

/// Verifies an announcement against the key inside the peer id that it is about.
///
/// # Errors
/// Malformed, not signed by that peer, or with too many models.
pub fn verify(announcement: &SignedAnnouncement) -> Result<Announcement, Error> {
    let claimed = announcement.peek()?;
    let verified = announcement.verify(&signed::public_key(&claimed.replica.peer)?)?;
    if verified.models.len() > limits::MODELS_PER_REPLICA {
        return Err(Error::TooManyModels(verified.models.len()));
    }
    Ok(verified)
}

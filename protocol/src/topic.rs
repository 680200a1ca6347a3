//! Topics: the names under which peers are found, and their keys in the DHT.

use crate::id::{JobId, MeshId, ModelId, Role};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Domain separation of topic keys; a new version of the record format takes a new one.
const DOMAIN: &[u8] = b"/dunlin/topic/1\0";

/// What can be looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Topic {
    /// Replicas that serve a model.
    Model(ModelId),
    /// Replicas of a job.
    Job(JobId),
    /// Members that play a role.
    Role(Role),
}

impl Topic {
    /// The key of this topic in the DHT of `mesh`: SHA-256 over domain, mesh id and name.
    #[must_use]
    pub fn key(&self, mesh: &MeshId) -> TopicKey {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(mesh.0);
        hash.update(self.to_string());
        TopicKey(hash.finalize().into())
    }
}
impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(model) => write!(f, "model/{model}"),
            Self::Job(job) => write!(f, "job/{job}"),
            Self::Role(role) => write!(f, "role/{role}"),
        }
    }
}

/// Where a topic's records lie in the DHT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicKey(pub [u8; 32]);

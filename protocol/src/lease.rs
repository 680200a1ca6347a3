//! What proxies say to each other about limits that keys have over all of them: who holds how much of a limit, and who
//! gets more. One proxy owns each key's account; the others tell it what they hold, whole, and it answers with what they
//! get.

use crate::{codec, limits};
use serde::{Deserialize, Serialize};

/// Kinds of limits: requests in 60 seconds, tokens in 60 seconds, requests at the same time, in this order.
pub const KINDS: usize = 3;

/// What one proxy holds of one limit of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// How much it may use, or has used within the last 60 seconds. What it gives back is not in it any more.
    pub held: i64,
    /// How much more it could use.
    pub want: i64,
    /// How much its clients asked for lately, as for 60 seconds.
    pub demand: i64,
}

/// The same of all limits of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyHeld {
    /// The key's id.
    pub key: String,
    /// In the order of kinds.
    pub of: [Held; KINDS],
}

/// What one proxy tells the owner of some keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// A hash of the proxies that it counts as being there: who owns what follows from them, so that it must be the same
    /// on both sides.
    pub view: u64,
    /// Of its process.
    pub epoch: u64,
    /// Later replaces earlier; what comes late is not looked at.
    pub seq: u64,
    /// Whether the owner knows of everything with it that this proxy holds of its keys.
    pub whole: bool,
    /// Keys that the receiver owns.
    pub keys: Vec<KeyHeld>,
}

/// What the owner answers about one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// So much more is held from now on.
    pub granted: i64,
    /// More than this is to be given back as it becomes free, since others need it.
    pub target: i64,
    /// So much is left for whoever asks first.
    pub left: i64,
}

/// The same of all limits of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyGranted {
    /// The key's id.
    pub key: String,
    /// In the order of kinds.
    pub of: [Granted; KINDS],
}

/// What the owner answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReply {
    /// Whether both count the same proxies. If not, nothing else is said, and nothing was changed.
    pub agrees: bool,
    /// For each key that was asked about and has limits.
    pub keys: Vec<KeyGranted>,
}

impl LeaseReport {
    /// Bytes for the hop.
    ///
    /// # Errors
    /// Over [`limits::LEASE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::LEASE_BYTES)
    }

    /// From the hop.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::LEASE_BYTES)
    }
}

impl LeaseReply {
    /// Bytes for the hop.
    ///
    /// # Errors
    /// Over [`limits::LEASE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::LEASE_BYTES)
    }

    /// From the hop.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::LEASE_BYTES)
    }
}

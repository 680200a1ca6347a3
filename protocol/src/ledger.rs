//! What proxies tell each other of what keys have used: rows that only grow, each counted by one process of one proxy and
//! kept by all, so that nothing is lost with a disk and nothing is counted twice.

use crate::{codec, id::PeerId, limits};
use serde::{Deserialize, Serialize};

/// Sums of what was counted. Each only grows, so that of two states the larger numbers are the later ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests that were let in.
    pub requests: u64,
    /// Of these, those that got no answer, or an error of the engine.
    pub errors: u64,
    /// Tokens of prompts.
    pub prompt: u64,
    /// Tokens of answers.
    pub completion: u64,
    /// Of the tokens of prompts, those that a cache held.
    pub cached: u64,
    /// Requests of which no engine told what they used.
    pub estimated: u64,
    /// Time from their heads to the ends of their answers, milliseconds.
    pub millis: u64,
    /// Millionths of the money of the prices.
    pub cost_micros: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// The later of two states of one row.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, Ord::max)
    }

    fn zip(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            requests: of(self.requests, other.requests),
            errors: of(self.errors, other.errors),
            prompt: of(self.prompt, other.prompt),
            completion: of(self.completion, other.completion),
            cached: of(self.cached, other.cached),
            estimated: of(self.estimated, other.estimated),
            millis: of(self.millis, other.millis),
            cost_micros: of(self.cost_micros, other.cost_micros),
        }
    }
}

/// Who counted: one process of one proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Counter {
    /// The proxy.
    pub origin: PeerId,
    /// Of its process.
    pub epoch: u64,
}

/// What one process counted of one key and one model in one hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// Who counted.
    pub by: Counter,
    /// The key's id.
    pub key: String,
    /// The model's name; empty where it is none that is served.
    pub model: String,
    /// Hours since 1970 by the counter's clock.
    pub hour: u64,
    /// Grows with each change that the process stored, over all its rows.
    pub rev: u64,
    /// What was counted.
    pub counts: Counts,
}

/// Asks for everything that is newer than what is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAsk {
    /// The last change known of each process; of others, nothing is.
    pub seen: Vec<(Counter, u64)>,
}

/// Rows in the order of their changes: of each process those that follow what was seen, without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAnswer {
    /// At most [`limits::USAGE_ROWS`].
    pub rows: Vec<UsageRow>,
}

impl UsageAsk {
    /// Bytes for the hop.
    ///
    /// # Errors
    /// Over [`limits::USAGE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::USAGE_BYTES)
    }

    /// From the hop.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::USAGE_BYTES)
    }
}

impl UsageAnswer {
    /// Bytes for the hop.
    ///
    /// # Errors
    /// Over [`limits::USAGE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::USAGE_BYTES)
    }

    /// From the hop.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::USAGE_BYTES)
    }
}

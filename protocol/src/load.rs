//! Load reports: what an agent says of one engine's load, by gossip and on every answer of the hop.
//!
//! A report counts only from the peer that it is about, so it carries no signature. Every metric is optional: an engine
//! that tells nothing is balanced by its agent's own counts, which are always there.

use crate::{
    codec,
    id::{ReplicaId, Version},
    limits,
};
use serde::{Deserialize, Serialize};

/// Load of one replica. Durations in microseconds, shares in thousandths: integers, so that equal reports are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Whom it is about.
    pub replica: ReplicaId,
    /// Later replaces earlier. Counted apart from announcements.
    pub version: Version,
    /// Requests that the engine works on at once.
    pub slots: u16,
    /// Requests of this agent that the engine has now.
    pub in_flight: u16,
    /// Requests that wait in the agent's short queue.
    pub queued: u16,
    /// Whether new requests are refused because the replica drains.
    pub draining: bool,
    /// What the agent measured on the requests that went through it.
    pub measured: Measured,
    /// What the engine's own metrics say; `None` without them or when the last read is too old.
    pub engine: Option<EngineLoad>,
}

/// Measured by the agent on its own traffic; `None` until there was some.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Time to first token, moving average, microseconds.
    pub ttft_us: Option<u32>,
    /// Inter-token latency, moving average, microseconds.
    pub itl_us: Option<u32>,
    /// Time from a request's start to its end, moving average, microseconds.
    pub service_us: Option<u32>,
    /// Streamed chunks per second over the last second, all streams together.
    pub chunks_per_s: u32,
}

/// Read from the engine's metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLoad {
    /// Requests running, whoever sent them.
    pub running: Option<u32>,
    /// Requests waiting inside the engine.
    pub waiting: Option<u32>,
    /// Share of the KV cache in use, thousandths.
    pub kv_used_permille: Option<u16>,
    /// Prompt tokens since the engine started.
    pub prompt_tokens: Option<u64>,
    /// Generated tokens since the engine started.
    pub generated_tokens: Option<u64>,
    /// Prefix-cache hit rate, thousandths.
    pub prefix_hit_permille: Option<u16>,
}

/// The wire form: a version, so that an older peer refuses what it does not know instead of misreading it.
#[derive(Serialize, Deserialize)]
enum Wire {
    V1(LoadReport),
}

impl LoadReport {
    /// As gossiped, at most [`limits::LOAD_REPORT_BYTES`].
    ///
    /// # Errors
    /// Does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode(&Wire::V1(self.clone()), limits::LOAD_REPORT_BYTES)
    }

    /// From gossip.
    ///
    /// # Errors
    /// Not a report of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        let Wire::V1(report) = codec::decode(bytes, limits::LOAD_REPORT_BYTES)?;
        Ok(report)
    }

    /// As the value of the header [`crate::hop::LOAD`].
    ///
    /// # Errors
    /// Does not fit.
    pub fn to_header(&self) -> Result<String, codec::Error> {
        Ok(data_encoding::BASE64URL_NOPAD.encode(&self.encode()?))
    }

    /// From the value of the header [`crate::hop::LOAD`].
    ///
    /// # Errors
    /// Not base64, or not a report of a known version.
    pub fn from_header(value: &str) -> Result<Self, codec::Error> {
        let limit = limits::LOAD_REPORT_BYTES;
        if value.len() > limit * 2 {
            return Err(codec::Error::TooLarge { size: value.len(), limit: limit * 2 });
        }
        let bytes = data_encoding::BASE64URL_NOPAD
            .decode(value.as_bytes())
            .map_err(|error| codec::Error::Malformed(error.to_string()))?;
        Self::decode(&bytes)
    }
}

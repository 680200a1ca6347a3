//! Load reports: what an agent says of one engine's load, by gossip and on every answer of the hop.
//!
//! A report counts only from the peer that it is about, so it carries no signature. Every metric is optional: an engine
//! that tells nothing is balanced by its agent's own counts, which are always there.

mod old;

use crate::{
    codec,
    id::{ModelId, ReplicaId, Version},
    limits,
};
use serde::{Deserialize, Serialize};

/// Models that a report names as those that its engine served last.
pub const RECENT_MODELS: usize = 4;

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
    /// How many kinds of hardware its operator would rather have for this model: 0 for the best. Of replicas that are as
    /// good as equal the one with the lowest gets the request.
    pub flavor: u8,
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
    /// Time to first token of an empty prompt on an engine with nothing to do, microseconds.
    pub first_token_us: Option<u32>,
    /// What each KiB of a request's body that the engine has not cached adds to that, microseconds.
    pub prefill_us_per_kib: Option<u32>,
    /// KiB of the prompts in flight.
    pub in_flight_kib: u32,
    /// Not yet prefilled: new KiB of the requests in flight of which no token has come.
    pub unstarted_kib: u32,
    /// How long all streams that had begun have been silent together, milliseconds; 0 while one of them speaks.
    pub silent_ms: u16,
    /// [`model_tag`]s of the models that the engine served last, latest first; 0 fills up. An adapter, or one of the
    /// models of an engine that loads them on demand, is most likely in memory when it is among them.
    pub recent: [u32; RECENT_MODELS],
}

/// A short name for a model inside reports, never 0: 32-bit FNV-1a. Two models with one tag cost a wrong guess.
#[must_use]
pub fn model_tag(model: &ModelId) -> u32 {
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    model.as_str().as_bytes().iter().fold(0x811c_9dc5, hash).max(1)
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
    V1(old::LoadReport<old::FirstMeasured>),
    V2(old::LoadReport<Measured>),
    V3(LoadReport),
}

impl LoadReport {
    /// As gossiped, at most [`limits::LOAD_REPORT_BYTES`].
    ///
    /// # Errors
    /// Does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode(&Wire::V3(self.clone()), limits::LOAD_REPORT_BYTES)
    }

    /// From gossip.
    ///
    /// # Errors
    /// Not a report of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        Ok(match codec::decode(bytes, limits::LOAD_REPORT_BYTES)? {
            Wire::V1(report) => report.into(),
            Wire::V2(report) => report.into(),
            Wire::V3(report) => report,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PeerId;

    /// Of a peer that has not been updated yet: what it doesn't say is unknown.
    #[test]
    fn reports_of_earlier_versions_are_read() {
        let measured = old::FirstMeasured { ttft_us: Some(5), itl_us: None, service_us: Some(9), chunks_per_s: 7 };
        let version = Version { epoch: 3, seq: 4 };
        let replica = ReplicaId { peer: PeerId::random(), index: 2 };
        let (slots, in_flight, queued, draining, engine) = (8, 1, 2, true, None);
        let first = old::LoadReport { replica, version, slots, in_flight, queued, draining, measured, engine };
        let bytes = codec::encode(&Wire::V1(first), limits::LOAD_REPORT_BYTES).unwrap();
        let measured = Measured { ttft_us: Some(5), service_us: Some(9), chunks_per_s: 7, ..Measured::default() };
        let new = LoadReport { replica, version, slots, in_flight, queued, draining, flavor: 0, measured, engine };
        assert_eq!(LoadReport::decode(&bytes).unwrap(), new);
        assert_ne!(new.encode().unwrap(), bytes);
        assert_eq!(LoadReport::decode(&new.encode().unwrap()).unwrap(), new);
        let second = old::LoadReport { replica, version, slots, in_flight, queued, draining, measured, engine };
        let bytes = codec::encode(&Wire::V2(second), limits::LOAD_REPORT_BYTES).unwrap();
        assert_eq!(LoadReport::decode(&bytes).unwrap(), new);
    }

    #[test]
    fn tags_tell_models_apart_and_are_never_the_filler() {
        let tag = |name: &str| model_tag(&ModelId::new(name).unwrap());
        assert_eq!(tag("a"), 0xe40c_292c);
        assert_ne!(tag("llama3:8b"), tag("llama3:70b"));
    }
}

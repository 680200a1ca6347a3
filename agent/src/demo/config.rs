//! What can be set on the demo engine.

use super::faults::Faults;
use serde::{Deserialize, Serialize};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

/// Settings of a simulated engine. The default answers at the pace of a small model on a good GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names of the one model; the first is the one that it is listed under, any of them is answered.
    pub models: Vec<String>,
    /// What the text depends on beside the prompt; `None` for the model's first name. Engines with the same root give
    /// the same answers.
    pub root: Option<String>,
    /// LoRA adapters, served as models of their own.
    pub adapters: Vec<Adapter>,
    /// How long answers take.
    pub speed: Speed,
    /// Requests worked on at once; more wait, first come first served.
    pub slots: u16,
    /// Requests that may wait; more are refused with 503.
    pub queue: u32,
    /// Tokens of the KV cache; a request whose prompt finds no room waits.
    pub kv_tokens: u32,
    /// Whether prompts that begin alike are prefilled once.
    pub prefix_cache: bool,
    /// Longest prompt and answer together, tokens.
    pub context: u32,
    /// Numbers in an embedding.
    pub embedding_size: u16,
    /// Data-parallel ranks: the load is reported in so many series.
    pub ranks: u16,
    /// Fill `/metrics` up to so many bytes; vLLM serves about 66 KB.
    pub metrics_bytes: usize,
    /// Faults from the start; others can be set at run time.
    pub faults: Faults,
    /// Whether a fault may end the whole process. Only for an engine that has a process of its own.
    pub may_exit: bool,
    /// Whether `GET /demo/last` shows the last request, for tests that look at what arrives.
    pub record: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            models: vec!["demo".to_owned()],
            root: None,
            adapters: Vec::new(),
            speed: Speed::default(),
            slots: 64,
            queue: 4096,
            kv_tokens: 262_144,
            prefix_cache: true,
            context: 32_768,
            embedding_size: 64,
            ranks: 1,
            metrics_bytes: 0,
            faults: Faults::default(),
            may_exit: false,
            record: false,
        }
    }
}

impl Config {
    /// As fast as it goes, with no timers: for benchmarks of what stands in front.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { speed: Speed::UNLIMITED, slots: u16::MAX, kv_tokens: u32::MAX, prefix_cache: false, ..Self::default() }
    }
}

/// How long answers take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Time to first token of an empty prompt.
    pub first_token: Duration,
    /// Added per token of the prompt that the prefix cache doesn't hold.
    pub per_prompt_token: Duration,
    /// Tokens per second of one answer; 0 for no limit.
    pub tokens_per_s: f64,
}

impl Speed {
    /// No waiting at all.
    pub const UNLIMITED: Self =
        Self { first_token: Duration::ZERO, per_prompt_token: Duration::ZERO, tokens_per_s: 0.0 };

    /// Time from the start of work to token `index` (0 is the first).
    pub(super) fn until_token(&self, prompt_tokens: usize, index: usize) -> Duration {
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let first = self.first_token + self.per_prompt_token.saturating_mul(prompt_tokens);
        if self.tokens_per_s > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "an answer has far less than 2^52 tokens")]
            let decoding = Duration::from_secs_f64(index as f64 / self.tokens_per_s);
            return first + decoding;
        }
        first
    }
}

impl Default for Speed {
    fn default() -> Self {
        Self {
            first_token: Duration::from_millis(40),
            per_prompt_token: Duration::from_micros(100),
            tokens_per_s: 60.0,
        }
    }
}

/// A LoRA adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// The name that clients use.
    #[serde(rename = "lora_name")]
    pub name: String,
    /// Where it would lie; the text depends on it.
    #[serde(rename = "lora_path")]
    pub path: String,
}

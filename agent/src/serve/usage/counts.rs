//! The engines' words for tokens.

use dunlin_protocol::usage::{MOST, Usage};
use serde_json::Value;

/// What has been told so far.
#[derive(Debug, Default)]
pub(super) struct Counts(Option<Usage>);

impl Counts {
    /// What an event of a stream says. Chats and completions have `usage`; Responses have it in `response`, Anthropic's
    /// streams in the first event's `message` and again, with what was generated, in a later one; llama.cpp also tells
    /// its `timings` unasked.
    pub(super) fn take_event(&mut self, event: &Value) {
        for pointer in ["/usage", "/response/usage", "/message/usage"] {
            if let Some(usage) = event.pointer(pointer) {
                self.take_usage_value(usage);
            }
        }
        let timing = |name: &str| Some(event.get("timings")?.get(name)?.as_u64()?.min(MOST));
        if let (Some(new), Some(completion)) = (timing("prompt_n"), timing("predicted_n")) {
            let cached = timing("cache_n").unwrap_or(0);
            self.add(Usage { prompt: new + cached, completion, cached, estimated: false });
        }
    }

    /// The value of a field `usage`.
    pub(super) fn take_usage(&mut self, json: &[u8]) {
        if let Ok(usage) = serde_json::from_slice(json) {
            self.take_usage_value(&usage);
        }
    }

    fn take_usage_value(&mut self, usage: &Value) {
        let count = |pointer: &str| Some(usage.pointer(pointer)?.as_u64()?.min(MOST));
        let completion = count("/completion_tokens").or_else(|| count("/output_tokens"));
        let (prompt, cached) = if let Some(prompt) = count("/prompt_tokens") {
            (Some(prompt), count("/prompt_tokens_details/cached_tokens"))
        } else if let Some(read) = count("/cache_read_input_tokens") {
            // Anthropic's `input_tokens` are those that no cache had to do with.
            let written = count("/cache_creation_input_tokens").unwrap_or(0);
            (count("/input_tokens").map(|new| new + read + written), Some(read))
        } else {
            (count("/input_tokens"), count("/input_tokens_details/cached_tokens"))
        };
        // Rerankers and embedders may tell the sum only.
        let prompt = prompt.or_else(|| Some(count("/total_tokens")?.saturating_sub(completion.unwrap_or(0))));
        if prompt.is_none() && completion.is_none() {
            return;
        }
        let or_none = |count: Option<u64>| count.unwrap_or(0);
        self.add(Usage {
            prompt: or_none(prompt),
            completion: or_none(completion),
            cached: or_none(cached),
            estimated: false,
        });
    }

    /// Counts only grow within one answer, whatever tells them how often.
    fn add(&mut self, told: Usage) {
        let known = self.0.get_or_insert_default();
        known.prompt = known.prompt.max(told.prompt);
        known.completion = known.completion.max(told.completion);
        known.cached = known.cached.max(told.cached).min(known.prompt);
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        self.0
    }
}

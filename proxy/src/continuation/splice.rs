//! Makes another replica's events look like those of the stream that they go on with.

use super::{kept::Head, question::Rest};
use crate::http::sse;
use bytes::{Bytes, BytesMut};
use dunlin_protocol::runtime::continuation::Seam;
use serde_json::{Map, Value};

/// The joint of two streams.
#[derive(Debug, Clone)]
pub(crate) struct Splice {
    head: Head,
    /// Choices whose first event went out before: one bit each.
    begun: u128,
    seam: Seam,
    /// Tokens that went out before.
    sent: u64,
    /// Nothing was left but the end.
    exhausted: bool,
}

impl Splice {
    /// Onto a stream that had no text yet.
    pub(super) fn again(head: Head, begun: u128) -> Self {
        Self { head, begun, seam: Seam::default(), sent: 0, exhausted: false }
    }

    /// Onto a stream of `sent` tokens.
    pub(super) fn on(head: Head, begun: u128, rest: &Rest, sent: u64) -> Self {
        Self { head, begun, seam: rest.seam.clone(), sent, exhausted: rest.is_exhausted(sent) }
    }

    /// What goes out of whole `events`: those that say nothing new are left out.
    pub(crate) fn push(&mut self, events: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(events.len());
        for event in sse::events_of(events) {
            let mut data = sse::data_of(event);
            let parsed = match (data.next(), data.next()) {
                (Some(data), None) => serde_json::from_slice::<Map<String, Value>>(data).ok(),
                _ => None,
            };
            match parsed.filter(|chunk| chunk.get("choices").is_some_and(Value::is_array)) {
                // Comments, the closing `[DONE]`, errors.
                None => out.extend_from_slice(event),
                Some(chunk) => {
                    if let Some(chunk) = self.join(chunk) {
                        out.extend_from_slice(format!("data: {}\n\n", Value::Object(chunk)).as_bytes());
                    }
                }
            }
        }
        out.freeze()
    }

    fn join(&mut self, mut chunk: Map<String, Value>) -> Option<Map<String, Value>> {
        self.rename(&mut chunk);
        let had_choices = chunk.get("choices").and_then(Value::as_array).is_some_and(|choices| !choices.is_empty());
        if let Some(choices) = chunk.get_mut("choices").and_then(Value::as_array_mut) {
            choices.retain_mut(|choice| self.join_choice(choice));
        }
        let usage = chunk.get_mut("usage").and_then(Value::as_object_mut);
        let has_usage = usage.map(|usage| self.add_up(usage)).is_some();
        let says_something = chunk.get("choices").and_then(Value::as_array).is_some_and(|choices| !choices.is_empty());
        (says_something || has_usage || !had_choices).then_some(chunk)
    }

    fn rename(&self, chunk: &mut Map<String, Value>) {
        let Head { id, created, model, fingerprint } = &self.head;
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                chunk.insert(name.to_owned(), value);
            }
        };
        set("id", id.clone().map(Value::from));
        set("created", created.map(Value::from));
        set("model", model.clone().map(Value::from));
        set("system_fingerprint", fingerprint.clone().map(Value::from));
    }

    /// Whether the choice still says something.
    fn join_choice(&mut self, choice: &mut Value) -> bool {
        let finished = choice.get("finish_reason").is_some_and(|reason| !reason.is_null());
        if finished && self.exhausted {
            choice["finish_reason"] = "length".into();
        }
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let bit = u32::try_from(index).ok().and_then(|index| 1u128.checked_shl(index)).unwrap_or(0);
        let continued = self.begun & bit != 0;
        let mut has_more = finished || !continued;
        let fields = if choice.get("delta").is_some() { choice.get_mut("delta") } else { Some(choice) };
        let Some(fields) = fields.and_then(Value::as_object_mut) else { return has_more };
        if continued {
            fields.remove("role");
        }
        for name in ["content", "text"] {
            let Some(Value::String(text)) = fields.get_mut(name) else { continue };
            let new = if self.exhausted { "" } else { self.seam.join(text) };
            if new.len() != text.len() {
                *text = new.to_owned();
            }
            has_more |= !text.is_empty();
        }
        // Only a delta's fields are all known to be of the answer.
        has_more || fields.iter().any(|(name, value)| !KNOWN.contains(&name.as_str()) && says(value))
    }

    fn add_up(&self, usage: &mut Map<String, Value>) {
        let count = |usage: &Map<String, Value>, name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        let prompt = count(usage, "prompt_tokens").saturating_sub(self.sent);
        let completion = if self.exhausted { 0 } else { count(usage, "completion_tokens") } + self.sent;
        usage.insert("prompt_tokens".to_owned(), prompt.into());
        usage.insert("completion_tokens".to_owned(), completion.into());
        usage.insert("total_tokens".to_owned(), (prompt + completion).into());
        let cached = usage.get_mut("prompt_tokens_details").and_then(|details| details.get_mut("cached_tokens"));
        if let Some(cached) = cached
            && cached.as_u64().is_some_and(|cached| cached > prompt)
        {
            *cached = prompt.into();
        }
    }
}

/// Fields that say nothing of the answer by being there.
const KNOWN: [&str; 10] = [
    "content",
    "finish_reason",
    "index",
    "logprobs",
    "matched_stop",
    "prompt_token_ids",
    "role",
    "stop_reason",
    "text",
    "token_ids",
];

fn says(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

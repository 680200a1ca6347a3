//! The request of a stream that is to go on: whether all of it carries over, and what is asked for instead.

use super::{Endpoint, Refusal};
use bytes::Bytes;
use dunlin_protocol::runtime::{self, continuation::Seam};
use serde_json::{Map, Value, json};

/// Fields that mean the same for the rest of an answer as for all of it. A field that is not among them may mean
/// anything, so it refuses.
const CARRY_OVER: [&str; 10] = [
    "min_p",
    "model",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "user",
];
/// vLLM and SGLang count these over what was generated, and what is gone on from is part of the prompt: they would begin
/// anew.
const OVER_THE_ANSWER: [&str; 2] = ["frequency_penalty", "presence_penalty"];
/// Those that limit the answer.
const LIMITS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// Whose messages templates write as they are.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
/// What an answer ends with whose last character is incomplete.
const REPLACEMENT: char = '\u{fffd}';
/// Models that think aloud, and templates that take it out of what they said.
const THOUGHTS: [&str; 2] = ["<think", "</think"];

/// A request that carries over.
#[derive(Debug)]
pub(super) struct Question {
    endpoint: Endpoint,
    body: Map<String, Value>,
    stops: Vec<String>,
}

impl Question {
    /// Reads a request's body.
    ///
    /// # Errors
    /// Names the first field that does not carry over.
    pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, Refusal> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        // Proxies route JSON objects only.
        let body: Map<String, Value> = serde_json::from_slice(body).map_err(|_| Refusal::field("body"))?;
        let mut stops = Vec::new();
        for (name, value) in &body {
            let carries_over = match name.as_str() {
                "messages" if endpoint == Endpoint::Chat => are_text(value),
                "prompt" if endpoint == Endpoint::Completions => value.is_string(),
                "stop" => read_stops(value, &mut stops),
                "stream_options" => is_usage_only(value),
                "n" => value.is_null() || value.as_u64() == Some(1),
                penalty if OVER_THE_ANSWER.contains(&penalty) => value.is_null() || value.as_f64() == Some(0.0),
                limit if LIMITS.contains(&limit) => value.is_null() || value.as_u64().is_some(),
                other => CARRY_OVER.contains(&other),
            };
            if !carries_over {
                return Err(Refusal::field(name));
            }
        }
        let question = Self { endpoint, body, stops };
        // How much an engine says to a plain prompt without a limit is its own business, and would begin anew.
        if endpoint == Endpoint::Completions && !question.is_limited() {
            return Err(Refusal::field("max_tokens"));
        }
        Ok(question)
    }

    fn limits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LIMITS.iter().filter_map(|name| Some((*name, self.body.get(*name)?.as_u64()?)))
    }

    fn is_limited(&self) -> bool {
        self.limits().next().is_some()
    }
}

/// Text messages, of which the last is not the assistant's: engines differ in whether they take that for a beginning.
fn are_text(messages: &Value) -> bool {
    let Some(messages) = messages.as_array() else { return false };
    let role = |message: &Value| message.get("role").and_then(Value::as_str).map(str::to_owned);
    let last = messages.last().and_then(role);
    last.is_some_and(|role| role != "assistant") && messages.iter().all(is_text_message)
}

fn is_text_message(message: &Value) -> bool {
    let Some(message) = message.as_object() else { return false };
    message.iter().all(|(name, value)| match name.as_str() {
        "role" => value.as_str().is_some_and(|role| ROLES.contains(&role)),
        "name" => value.is_string(),
        "content" => value.is_string() || value.as_array().is_some_and(|parts| parts.iter().all(is_text_part)),
        _ => false,
    })
}

fn is_text_part(part: &Value) -> bool {
    let Some(part) = part.as_object() else { return false };
    part.len() == 2
        && part.get("type").is_some_and(|kind| kind == "text")
        && part.get("text").is_some_and(Value::is_string)
}

fn read_stops(value: &Value, stops: &mut Vec<String>) -> bool {
    let mut add = |stop: &Value| stop.as_str().map(|stop| stops.push(stop.to_owned())).is_some();
    match value {
        Value::Null => true,
        Value::Array(list) => list.iter().all(add),
        one => add(one),
    }
}

fn is_usage_only(value: &Value) -> bool {
    let mut names = value.as_object().into_iter().flatten();
    value.is_null() || (value.is_object() && names.all(|(name, value)| name == "include_usage" && value.is_boolean()))
}

/// The rest of an answer, still to be asked for.
#[derive(Debug)]
pub(crate) struct Rest {
    question: Question,
    given: String,
    pub(super) seam: Seam,
}

impl Rest {
    /// The rest of the answer to `question` of which the client has `text`.
    ///
    /// # Errors
    /// It can't be cut there.
    pub(super) fn of(question: Question, text: &str) -> Result<Self, Refusal> {
        if text.ends_with(REPLACEMENT) {
            return Err(Refusal::HalfCharacter);
        }
        if THOUGHTS.iter().any(|thought| text.contains(thought)) {
            return Err(Refusal::NotText);
        }
        let begins = |stop: &String| stop.char_indices().skip(1).any(|(at, _)| text.ends_with(&stop[..at]));
        if question.stops.iter().any(begins) {
            return Err(Refusal::HalfStop);
        }
        let (given, seam) = Seam::cut(text);
        Ok(Self { question, given: given.to_owned(), seam })
    }

    /// What the other replica is to be asked the count of: the text that it is given, and will not write again.
    pub(crate) fn count(&self, way: &runtime::Tokenize, model: &str) -> Bytes {
        let mut body = json!({"model": model, (way.text.as_str()): self.given});
        for (name, value) in &way.fields {
            body[name] = json!(value);
        }
        body.to_string().into()
    }

    /// Whether nothing of the answer is left, `sent` tokens of it being there: then a token is asked for, and thrown away,
    /// for the sake of the end that every answer has.
    pub(super) fn is_exhausted(&self, sent: u64) -> bool {
        self.question.limits().any(|(_, limit)| limit <= sent)
    }

    /// The request for the rest, in the runtime's `way`, `sent` tokens being there.
    pub(crate) fn request(&self, way: &runtime::Continuation, sent: u64) -> Bytes {
        let mut body = self.question.body.clone();
        for (name, limit) in self.question.limits() {
            body.insert(name.to_owned(), limit.saturating_sub(sent).max(1).into());
        }
        match self.question.endpoint {
            // Nothing but white space is there: the answer begins anew and the seam swallows that.
            _ if self.given.is_empty() => {}
            Endpoint::Chat => {
                if let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) {
                    messages.push(json!({"role": "assistant", "content": self.given}));
                }
                body.extend(way.chat.iter().map(|(name, value)| (name.clone(), json!(value))));
            }
            Endpoint::Completions => {
                let prompt = body.get("prompt").and_then(Value::as_str).unwrap_or_default();
                body.insert("prompt".to_owned(), format!("{prompt}{}", self.given).into());
            }
        }
        Value::Object(body).to_string().into()
    }
}

/// The number at the place of `answer` where an engine of this runtime tells a count of tokens.
pub(crate) fn counted(way: &runtime::Tokenize, answer: &[u8]) -> Option<u64> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    match answer.pointer(way.count.as_str())? {
        Value::Array(tokens) => u64::try_from(tokens.len()).ok(),
        number => number.as_u64(),
    }
}

//! Which fields make a prompt, in the order in which an engine works through them, and which name its session.

use crate::prompt::{self, Prompt};
use dunlin_protocol::{hop::AskUsage, id::ModelId};
use serde_json::{Map, Value};
use std::ops::Range;

/// A field of the top level that is of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Functions that may be called: templates write them before all else.
    Tools,
    /// The system prompt, where it stands apart (`/v1/messages`, `/v1/responses`).
    System,
    /// The conversation, or the text.
    Body,
    /// Whose or which session it is.
    Session,
    /// The response that the request builds on.
    Previous,
    /// What a stream shall tell besides its answer.
    StreamOptions,
    /// How many tokens the answer may have, in the words of one of [`LONGEST`].
    Longest(usize),
}

/// Names for the most tokens of an answer, in the order in which they count.
const LONGEST: [&str; 3] = ["max_completion_tokens", "max_tokens", "max_output_tokens"];

/// Parts that make the prompt.
const PROMPT: usize = 3;

impl Part {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "tools" => Self::Tools,
            "system" | "instructions" => Self::System,
            "messages" | "prompt" | "input" => Self::Body,
            // OpenAI's key for its own prompt cache tells more than the user does, who may have many conversations.
            "prompt_cache_key" | "session_id" | "user" => Self::Session,
            "previous_response_id" => Self::Previous,
            "stream_options" => Self::StreamOptions,
            _ => Self::Longest(LONGEST.iter().position(|known| *known == name)?),
        })
    }
}

/// Where the parts lie in the body.
#[derive(Debug, Default)]
pub(super) struct Outline<'a> {
    prompt: [&'a [u8]; PROMPT],
    session: &'a [u8],
    previous: &'a [u8],
    model: &'a [u8],
    longest: [&'a [u8]; LONGEST.len()],
    options: Options<'a>,
}

/// A field that may be there.
#[derive(Debug, Default)]
enum Options<'a> {
    #[default]
    Absent,
    Once(&'a [u8]),
    Twice,
}

impl<'a> Outline<'a> {
    /// `json` is the value of a field.
    pub(super) fn set(&mut self, part: Part, json: &'a [u8]) {
        match part {
            Part::Tools => self.prompt[0] = json,
            Part::System => self.prompt[1] = json,
            Part::Body => self.prompt[2] = json,
            Part::Session => self.session = json,
            Part::Previous => self.previous = json,
            Part::Longest(name) => self.longest[name] = json,
            Part::StreamOptions => {
                let absent = matches!(self.options, Options::Absent);
                self.options = if absent { Options::Once(json) } else { Options::Twice };
            }
        }
    }

    /// The response that the request builds on, as the client names it.
    pub(super) fn previous(&self) -> Option<String> {
        serde_json::from_slice(self.previous).ok().filter(|id: &String| !id.is_empty())
    }

    /// How many tokens the answer may have; `None` also where it is said in a way that only its engine may understand.
    pub(super) fn longest(&self) -> Option<u32> {
        self.longest.iter().find_map(|json| serde_json::from_slice(json).ok())
    }

    /// `json` is the value of `model`.
    pub(super) fn set_model(&mut self, json: &'a [u8]) {
        self.model = json;
    }

    /// Where the value of `model` stands in `body`, which this outlines.
    pub(super) fn model_at(&self, body: &[u8]) -> Option<Range<usize>> {
        let start = position(body, self.model)?;
        Some(start..start + self.model.len())
    }

    /// The prompt of a request for `model` whose body has `size` bytes.
    pub(super) fn prompt(&self, model: &ModelId, size: usize) -> Prompt {
        let mut prompt = Prompt::of(model.as_str(), self.prompt);
        if prompt.bytes == 0 {
            prompt.bytes = size as u64;
        }
        prompt.session = text(self.session).map(prompt::hash);
        prompt.previous = text(self.previous).map(prompt::hash);
        prompt
    }
}

impl Outline<'_> {
    /// Where in `body`, which this outlines, the usage of the stream may be asked for: not where the client asks itself,
    /// nor where it gives options with another meaning.
    pub(super) fn ask_usage(&self, body: &[u8]) -> Option<AskUsage> {
        match self.options {
            Options::Twice => None,
            Options::Absent => {
                let brace = body.iter().position(|byte| *byte == b'{')?;
                Some(AskUsage { offset: brace as u64 + 1, length: 0 })
            }
            Options::Once(json) => {
                let offset = position(body, json)?;
                declines_usage(json).then_some(AskUsage { offset: offset as u64, length: json.len() as u64 })
            }
        }
    }
}

/// Where `part` of `body` begins in it.
fn position(body: &[u8], part: &[u8]) -> Option<usize> {
    (part.as_ptr() as usize).checked_sub(body.as_ptr() as usize).filter(|start| start + part.len() <= body.len())
}

/// Whether these options say nothing but that no usage is wanted.
fn declines_usage(json: &[u8]) -> bool {
    match serde_json::from_slice::<Option<Map<String, Value>>>(json) {
        Ok(None) => true,
        Ok(Some(options)) => options
            .iter()
            .all(|(name, value)| name == "include_usage" && matches!(value, Value::Null | Value::Bool(false))),
        Err(_) => false,
    }
}

/// What stands between the quotes of a JSON string; nothing where it is empty or no string. Escapes are left as they
/// are: a client writes one name always in one way.
fn text(json: &[u8]) -> Option<&[u8]> {
    let text = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (!text.is_empty()).then_some(text)
}

//! Which fields make a prompt, in the order in which an engine works through them, and which name its session.

use crate::prompt::{self, Prompt};
use dunlin_protocol::id::ModelId;

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
}

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
            _ => return None,
        })
    }
}

/// Where the parts lie in the body.
#[derive(Debug, Default)]
pub(super) struct Outline<'a> {
    prompt: [&'a [u8]; PROMPT],
    session: &'a [u8],
    previous: &'a [u8],
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
        }
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

/// What stands between the quotes of a JSON string; nothing where it is empty or no string. Escapes are left as they
/// are: a client writes one name always in one way.
fn text(json: &[u8]) -> Option<&[u8]> {
    let text = json.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (!text.is_empty()).then_some(text)
}

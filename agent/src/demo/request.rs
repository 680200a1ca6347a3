//! Requests as vLLM takes them, from JSON to a checked job.

use super::{
    error::Error,
    models::Resolved,
    text::{Context, split_prompt},
    tokenizer,
};
use serde::Deserialize;

/// Tokens of a completion that doesn't say, as in OpenAI's API.
const COMPLETION_TOKENS: u32 = 16;
/// Stop strings that a request may have.
const STOPS: usize = 4;

/// Where the template lets an answer begin.
pub(super) const ANSWER: &str = "<assistant>\n";

/// The fields of chat and completion requests that change something. Others are taken and mean nothing.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Request {
    pub(super) model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Prompt>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    min_tokens: Option<u32>,
    n: Option<i64>,
    stop: Option<Stop>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    ignore_eos: Option<bool>,
    echo: Option<bool>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A message of a chat.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: Option<String>,
    text: Option<String>,
}

/// One prompt: a batch of them is more than the demo does.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string, a list of one string, or a list of token ids")]
enum Prompt {
    Text(String),
    List([String; 1]),
    Tokens(Vec<u32>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Some(Vec<String>),
}

/// Which endpoint was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) endpoint: Endpoint,
    /// As the client named it.
    pub(super) model: String,
    pub(super) adapter: Option<String>,
    /// What the answer is a function of.
    pub(super) context: Context,
    /// The part of the answer that is there already.
    pub(super) written: String,
    /// The whole prompt, for the prefix cache.
    pub(super) prompt: String,
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: u32,
    pub(super) min_tokens: u32,
    pub(super) ignore_end: bool,
    /// No limit was given: somebody wants to see that it works, not to read a page of invented text.
    pub(super) short: bool,
    pub(super) stops: Vec<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// A chat as the engine's template writes it.
pub(super) fn render(messages: &[Message], model: &str) -> Result<String, Error> {
    let mut text = String::with_capacity(1024);
    for message in messages {
        text.extend(["<", message.role.as_str(), ">\n"]);
        push_content(&mut text, message, model)?;
        text.push_str("<end>\n");
    }
    Ok(text)
}

fn push_content(text: &mut String, message: &Message, model: &str) -> Result<(), Error> {
    match &message.content {
        None => {}
        Some(Content::Text(content)) => text.push_str(content),
        Some(Content::Parts(parts)) => {
            for part in parts {
                match (part.r#type.as_deref(), &part.text) {
                    (Some("text") | None, Some(content)) => text.push_str(content),
                    _ => return Err(Error::NotMultimodal(model.to_owned())),
                }
            }
        }
    }
    Ok(())
}

impl Request {
    /// Checks the request against the model that it names.
    pub(super) fn check(self, endpoint: Endpoint, resolved: Resolved, context: u32) -> Result<Job, Error> {
        self.check_ranges()?;
        let limit = self.max_completion_tokens.or(self.max_tokens);
        let (prompt, written) = match endpoint {
            Endpoint::Chat => self.chat_prompt(&resolved.asked)?,
            Endpoint::Completions => self.plain_prompt()?,
        };
        let prompt_tokens = tokenizer::count(&prompt) + tokenizer::count(&written);
        let max_tokens = max_tokens(limit, endpoint, prompt_tokens, context)?;
        let tag = match endpoint {
            Endpoint::Chat => "\0chat\0",
            Endpoint::Completions => "\0completions\0",
        };
        Ok(Job {
            endpoint,
            context: Context::EMPTY.with(&resolved.root).with(tag).with(&prompt),
            prompt,
            model: resolved.asked,
            adapter: resolved.adapter,
            written,
            prompt_tokens,
            max_tokens,
            min_tokens: self.min_tokens.unwrap_or(0),
            ignore_end: self.ignore_eos.unwrap_or(false),
            short: limit.is_none(),
            stops: self.stop.map_or_else(Vec::new, Stop::into_list),
            stream: self.stream.unwrap_or(false),
            include_usage: self.stream_options.is_some_and(|options| options.include_usage == Some(true)),
        })
    }

    fn check_ranges(&self) -> Result<(), Error> {
        let range = |parameter, rule, value: String| Err(Error::Range { parameter, rule, value });
        if let Some(tokens) = self.max_completion_tokens.or(self.max_tokens).filter(|&tokens| tokens < 1) {
            return range("max_tokens", "at least 1", tokens.to_string());
        }
        if let Some(temperature) = self.temperature.filter(|&temperature| temperature < 0.0) {
            return range("temperature", "non-negative", format!("{temperature:?}"));
        }
        if let Some(top_p) = self.top_p.filter(|top_p| !(0.0..=1.0).contains(top_p)) {
            return range("top_p", "in (0, 1]", format!("{top_p:?}"));
        }
        if let Some(n) = self.n.filter(|&n| n != 1) {
            return Err(Error::OneChoice(n));
        }
        if self.echo == Some(true) {
            return Err(Error::Echo);
        }
        match &self.stop {
            Some(Stop::Some(list)) if list.len() > STOPS => Err(Error::TooManyStops(list.len())),
            _ => Ok(()),
        }
    }

    /// The chat up to the answer, and what of the answer is there.
    fn chat_prompt(&self, model: &str) -> Result<(String, String), Error> {
        let messages = self.messages.as_deref().ok_or(Error::Missing("messages"))?;
        let (last, before) = messages.split_last().ok_or(Error::EmptyConversation)?;
        let continues = self.continue_final_message == Some(true);
        let before = if continues { before } else { messages };
        let mut prompt = render(before, model)?;
        let mut written = String::new();
        if continues {
            if last.role != "assistant" || self.add_generation_prompt != Some(false) {
                return Err(Error::Continuation);
            }
            push_content(&mut written, last, model)?;
        }
        prompt.push_str(ANSWER);
        Ok((prompt, written))
    }

    fn plain_prompt(&self) -> Result<(String, String), Error> {
        let prompt = match self.prompt.as_ref().ok_or(Error::Missing("prompt"))? {
            Prompt::Text(text) | Prompt::List([text]) => text.clone(),
            Prompt::Tokens(ids) => tokenizer::decode(ids).ok_or(Error::NotTokens)?,
        };
        let (before, written) = split_prompt(&prompt);
        Ok((before.to_owned(), written.to_owned()))
    }
}

impl Stop {
    fn into_list(self) -> Vec<String> {
        let list = match self {
            Self::One(stop) => vec![stop],
            Self::Some(list) => list,
        };
        list.into_iter().filter(|stop| !stop.is_empty()).collect()
    }
}

fn max_tokens(limit: Option<i64>, endpoint: Endpoint, prompt_tokens: usize, context: u32) -> Result<u32, Error> {
    let prompt = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
    let room = context.saturating_sub(prompt);
    if room == 0 {
        return Err(Error::ContextTooLong { limit: context, tokens: prompt_tokens });
    }
    let Some(asked) = limit else {
        return Ok(if endpoint == Endpoint::Chat { room } else { room.min(COMPLETION_TOKENS) });
    };
    let asked = u32::try_from(asked).unwrap_or(u32::MAX);
    if asked > room {
        return Err(Error::AnswerTooLong { asked, limit: context, tokens: prompt_tokens });
    }
    Ok(asked)
}

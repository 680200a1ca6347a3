//! Errors as vLLM words them.

use http::StatusCode;
use serde::Serialize;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// No such model or adapter.
    #[error("The model `{model}` does not exist. Valid aliases: {known}.")]
    UnknownModel {
        /// What was asked for.
        model: String,
        /// What there is.
        known: String,
    },
    /// The body isn't JSON.
    #[error(
        "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error', \
         'ctx': {{'error': '{what}'}}}}"
    )]
    Json {
        /// Column.
        at: usize,
        /// What the parser says.
        what: String,
    },
    /// A field has the wrong type.
    #[error("1 validation error:\n  {{'type': 'value_error', 'loc': 'body', 'msg': '{0}'}}")]
    Type(String),
    /// A field that must be there isn't.
    #[error("1 validation error:\n  {{'type': 'missing', 'loc': 'body.{0}', 'msg': 'Field required'}}")]
    Missing(&'static str),
    /// No body at all.
    #[error("1 validation error:\n  {{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}}")]
    EmptyBody,
    /// Another type of content.
    #[error("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")]
    ContentType,
    /// A chat without messages.
    #[error("Cannot apply chat template to an empty conversation. Provide at least one message.")]
    EmptyConversation,
    /// Prompt and answer don't fit.
    #[error(
        "This model's maximum context length is {limit} tokens. However, your prompt contains at least {tokens} input \
         tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input \
         prompt. (parameter=input_tokens, value={tokens})"
    )]
    ContextTooLong {
        /// The model's.
        limit: u32,
        /// The prompt's.
        tokens: usize,
    },
    /// The answer asked for doesn't fit.
    #[error(
        "'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is {limit} \
         tokens and your request has {tokens} input tokens ({asked} > {limit} - {tokens}). (parameter=max_tokens, \
         value={asked})"
    )]
    AnswerTooLong {
        /// Tokens wanted.
        asked: u32,
        /// The model's.
        limit: u32,
        /// The prompt's.
        tokens: usize,
    },
    /// A number outside its range.
    #[error("{parameter} must be {rule}, got {value}. (parameter={parameter}, value={value})")]
    Range {
        /// The field.
        parameter: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it is.
        value: String,
    },
    /// More stop strings than OpenAI allows.
    #[error(
        "1 validation error:\n  {{'type': 'too_long', 'loc': 'body.stop', 'msg': 'List should have at most 4 items \
         after validation, not {0}'}}"
    )]
    TooManyStops(usize),
    /// A message with more than text.
    #[error("{0} is not a multimodal model")]
    NotMultimodal(String),
    /// `continue_final_message` without what it needs.
    #[error(
        "continue_final_message needs a last message of role assistant and add_generation_prompt: false. \
         (parameter=continue_final_message, value=true)"
    )]
    Continuation,
    /// More than the demo can.
    #[error("the demo engine gives one answer at a time: n must be 1. (parameter=n, value={0})")]
    OneChoice(i64),
    /// More than the demo can.
    #[error("the demo engine does not echo prompts. (parameter=echo, value=true)")]
    Echo,
    /// Token ids that stand for nothing.
    #[error("Token id out of vocabulary")]
    NotTokens,
    /// Faults that make no sense.
    #[error(transparent)]
    Faults(#[from] super::faults::Error),
    /// As many wait as may.
    #[error(transparent)]
    QueueFull(#[from] super::scheduler::QueueFull),
    /// A fault on demand.
    #[error("a fault of the demo engine, as ordered")]
    Ordered(u16),
    /// The body is larger than the engine takes.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// The adapter is there already, or isn't.
    #[error("{0}")]
    Adapter(String),
}

#[derive(Serialize)]
struct Wrapper<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: u16,
}

impl Error {
    /// The answer's status.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Self::QueueFull(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Ordered(status) => StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::UnknownModel { .. } => "NotFoundError",
            Self::QueueFull(_) => "ServiceUnavailableError",
            Self::Ordered(_) => "InternalServerError",
            Self::Json { .. }
            | Self::Type(_)
            | Self::Missing(_)
            | Self::EmptyBody
            | Self::ContentType
            | Self::TooManyStops(_) => "Bad Request",
            _ => "BadRequestError",
        }
    }

    fn parameter(&self) -> Option<String> {
        match self {
            Self::UnknownModel { .. } => Some("model".into()),
            Self::Json { at, .. } => Some(format!("body.{at}")),
            Self::Type(_) | Self::EmptyBody => Some("body".into()),
            Self::Missing(field) => Some(format!("body.{field}")),
            Self::ContextTooLong { .. } => Some("input_tokens".into()),
            Self::AnswerTooLong { .. } => Some("max_tokens".into()),
            Self::Range { parameter, .. } => Some((*parameter).into()),
            Self::TooManyStops(_) => Some("body.stop".into()),
            Self::OneChoice(_) => Some("n".into()),
            Self::Continuation => Some("continue_final_message".into()),
            _ => None,
        }
    }

    /// The answer's body.
    pub(super) fn body(&self) -> Vec<u8> {
        let message = self.to_string();
        let parameter = self.parameter();
        let inner =
            Inner { message: &message, r#type: self.kind(), param: parameter.as_deref(), code: self.status().as_u16() };
        serde_json::to_vec(&Wrapper { error: inner }).unwrap_or_default()
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        if error.is_data() {
            Self::Type(error.to_string())
        } else {
            Self::Json { at: error.column(), what: error.to_string() }
        }
    }
}

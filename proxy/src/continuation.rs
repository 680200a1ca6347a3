//! Streams that go on at another replica when theirs is lost in the middle: what is kept of one, whether it may go on,
//! what the other replica is asked, and how its answer is joined to what the client has. Pure.
//!
//! The rule: nothing that the client would notice. While no text has gone out the whole question is asked again. After
//! that a stream goes on only where that is known to be exact: every field of the request is one that carries over, the
//! answer is nothing but text, and the other replica has the same runtime, model and adapter and has proved, in its
//! agent's self-test, that it goes on to the letter. All else ends with an error event.

mod chunk;
mod kept;
mod kin;
mod question;
mod splice;
#[cfg(test)]
mod tests;

pub(crate) use kept::Kept;
pub(crate) use kin::Kin;
pub(crate) use question::{Rest, counted};
pub(crate) use splice::Splice;

/// Largest request body that is kept while its answer streams, bytes. Streams of larger ones are not continued.
pub(crate) const KEPT_BODY: usize = 1 << 20;
/// Longest text that is kept of a stream, bytes: some 60,000 tokens. Longer ones are not continued.
pub(crate) const KEPT_TEXT: usize = 256 << 10;
/// The same for all streams of the process together. Those that find no room for more are not continued.
pub(crate) const KEPT_IN_ALL: usize = 128 << 20;
/// Longest name of a field in a message.
const SHOWN: usize = 64;

/// Endpoints whose streams may go on elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Endpoint {
    /// The endpoint at `path`; `None` for those whose streams end with their replica.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path.trim_end_matches('/') {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            _ => None,
        }
    }
}

/// How a lost stream goes on.
#[derive(Debug)]
pub(crate) enum Way {
    /// The client has no text yet: from the start.
    Again,
    /// With the rest of the answer.
    On(Box<Rest>),
}

/// Why a lost stream does not go on. The messages go to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The client's wish.
    #[error("the request said `x-dunlin-continuation: off`")]
    Off,
    /// Over [`KEPT_BODY`], or the memory for bodies is more than half taken.
    #[error("the request was too large to be kept")]
    LargeRequest,
    /// Over [`KEPT_TEXT`].
    #[error("the answer was too long to be kept")]
    LongAnswer,
    /// Over [`KEPT_IN_ALL`].
    #[error("there was no memory left to keep the answer")]
    NoMemory,
    /// A field that is not known to carry over, or not with this value.
    #[error("the request's `{0}` does not carry over to another replica")]
    Field(String),
    /// Tool calls, reasoning, several choices.
    #[error("the answer has more in it than one text")]
    NotText,
    /// No events of this endpoint, or half of one went out.
    #[error("the answer could not be read")]
    Unreadable,
    /// The text ends in U+FFFD.
    #[error("the answer broke off in the middle of a character")]
    HalfCharacter,
    /// The text ends with the beginning of a stop string.
    #[error("the answer broke off in what may be a stop string")]
    HalfStop,
    /// Nobody could, or may.
    #[error("no other replica of the same model goes on with an answer to the letter")]
    NoReplica,
    /// The new replica did not say how many tokens the text has.
    #[error("the tokens of the answer could not be counted")]
    Uncounted,
    /// It was lost as often as it may be.
    #[error("it was lost too often")]
    Often,
    /// The other replica was asked in vain.
    #[error("{0}")]
    Failed(String),
}

impl Refusal {
    /// A field of the request, its name cut to a bearable length.
    fn field(name: &str) -> Self {
        Self::Field(name.chars().take(SHOWN).collect())
    }

    /// For metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::LargeRequest => "large_request",
            Self::LongAnswer => "long_answer",
            Self::NoMemory => "no_memory",
            Self::Field(_) => "field",
            Self::NotText => "not_text",
            Self::Unreadable => "unreadable",
            Self::HalfCharacter => "half_character",
            Self::HalfStop => "half_stop",
            Self::NoReplica => "no_replica",
            Self::Uncounted => "uncounted",
            Self::Often => "often",
            Self::Failed(_) => "failed",
        }
    }
}

//! The endpoints of engines that clients may ask for: the one table, by which proxies and agents know what a path means. Pure.

/// In whose terms an endpoint speaks of errors, and how its streams end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Chat, completions, embeddings, and whatever engines add.
    OpenAi,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
    /// Speech and images: OpenAI's errors, but streams with an end of their own, which not every engine sends.
    Media,
}

/// What a request's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// A JSON object with a `model`.
    Json,
    /// `multipart/form-data` with a field `model`.
    Form,
}

/// What an engine does for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Goes on as long as its model generates: the answer is tokens of the model's own.
    Generates,
    /// Reads what was sent, and answers once.
    Reads,
    /// Next to nothing: no slot is taken for it.
    Free,
}

/// A path that goes to a replica of the model that its body names.
#[derive(Debug, PartialEq, Eq)]
pub struct Inference {
    /// Below the engine's base URL, as clients ask for it.
    pub path: &'static str,
    /// How it speaks of errors.
    pub dialect: Dialect,
    /// What it takes.
    pub payload: Payload,
    /// What it costs.
    pub work: Work,
    /// One line for the documentation.
    pub about: &'static str,
}

impl Inference {
    /// Whether it is OpenAI's chat or completions. Every engine that generates text offers both, so that a 404 means the
    /// model; and tells the usage of their streams only where it is asked to.
    #[must_use]
    pub fn is_completion(&self) -> bool {
        self.dialect == Dialect::OpenAi && self.work == Work::Generates
    }
}

const fn json(path: &'static str, dialect: Dialect, about: &'static str) -> Inference {
    Inference { path, dialect, payload: Payload::Json, work: Work::Reads, about }
}

const fn generates(path: &'static str, dialect: Dialect, about: &'static str) -> Inference {
    Inference { work: Work::Generates, ..json(path, dialect, about) }
}

const fn free(path: &'static str, dialect: Dialect, about: &'static str) -> Inference {
    Inference { work: Work::Free, ..json(path, dialect, about) }
}

const fn form(path: &'static str, about: &'static str) -> Inference {
    Inference { path, dialect: Dialect::Media, payload: Payload::Form, work: Work::Reads, about }
}

/// Paths that go to a replica. All take `POST`.
pub const INFERENCE: [Inference; 22] = [
    generates("/v1/chat/completions", Dialect::OpenAi, "OpenAI's chat"),
    generates("/v1/completions", Dialect::OpenAi, "OpenAI's completions"),
    json("/v1/embeddings", Dialect::OpenAi, "OpenAI's embeddings"),
    generates("/v1/responses", Dialect::Responses, "OpenAI's responses"),
    generates("/v1/messages", Dialect::Messages, "Anthropic's messages"),
    free("/v1/messages/count_tokens", Dialect::Messages, "how many tokens a message has"),
    form("/v1/audio/transcriptions", "speech to text"),
    form("/v1/audio/translations", "speech to English text"),
    json("/v1/audio/speech", Dialect::Media, "text to speech"),
    json("/v1/images/generations", Dialect::Media, "text to images"),
    form("/v1/images/edits", "images and text to images"),
    json("/v1/rerank", Dialect::OpenAi, "documents by relevance, Jina's way"),
    json("/v2/rerank", Dialect::OpenAi, "documents by relevance, Cohere's way"),
    json("/rerank", Dialect::OpenAi, "documents by relevance"),
    json("/v1/score", Dialect::OpenAi, "similarity of texts"),
    json("/score", Dialect::OpenAi, "similarity of texts"),
    json("/pooling", Dialect::OpenAi, "hidden states, as vLLM pools them"),
    json("/classify", Dialect::OpenAi, "classes of texts"),
    json("/v1/moderations", Dialect::OpenAi, "OpenAI's moderations"),
    free("/tokenize", Dialect::OpenAi, "the tokens of a text"),
    free("/detokenize", Dialect::OpenAi, "the text of tokens"),
    free("/apply-template", Dialect::OpenAi, "a chat as the model reads it, llama.cpp's way"),
];

/// What comes before the id in paths of stored responses.
pub const STORED: &str = "/v1/responses/";

/// What is at `path`, byte for byte.
#[must_use]
pub fn at(path: &str) -> Option<&'static Inference> {
    INFERENCE.iter().find(|known| known.path == path)
}

/// Whether a request to `path` keeps no slot of the engine: it costs next to nothing, or is about a stored response.
#[must_use]
pub fn is_free(path: &str) -> bool {
    path.starts_with(STORED) || at(path).is_some_and(|known| known.work == Work::Free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_stands_once() {
        let mut paths: Vec<_> = INFERENCE.iter().map(|known| known.path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), INFERENCE.len());
    }

    #[test]
    fn what_generates_keeps_a_slot_and_what_reads_tokens_does_not() {
        let completions: Vec<_> = INFERENCE.iter().filter(|known| known.is_completion()).map(|it| it.path).collect();
        assert_eq!(completions, ["/v1/chat/completions", "/v1/completions"]);
        for (path, free) in [
            ("/v1/responses", false),
            ("/v1/responses/resp_1/cancel", true),
            ("/v1/messages/count_tokens", true),
            ("/v1/messages", false),
            ("/tokenize", true),
            ("/tokenize/", false),
            ("/unknown", false),
        ] {
            assert_eq!(is_free(path), free, "{path}");
        }
        assert!(at("/v1/embeddings").is_some_and(|known| known.work == Work::Reads));
    }
}

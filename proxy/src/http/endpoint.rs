//! The paths that the front door answers.

use crate::errors::Error;
use dunlin_protocol::{hop, id::ModelId};
use http::Method;

/// In whose terms an endpoint speaks of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chat, completions, embeddings, and whatever engines add.
    OpenAi,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Goes to a replica, under the same path.
    Inference(Dialect),
    /// The list of models.
    Models,
    /// One model.
    Model(ModelId),
    /// The process runs.
    Health,
    /// A request would find a replica.
    Ready,
    /// Prometheus.
    Metrics,
}

/// Paths that go to a replica.
const INFERENCE: [(&str, Dialect); 9] = [
    ("/v1/chat/completions", Dialect::OpenAi),
    ("/v1/completions", Dialect::OpenAi),
    ("/v1/embeddings", Dialect::OpenAi),
    ("/v1/responses", Dialect::Responses),
    ("/v1/messages", Dialect::Messages),
    ("/v1/rerank", Dialect::OpenAi),
    ("/v1/score", Dialect::OpenAi),
    ("/tokenize", Dialect::OpenAi),
    ("/detokenize", Dialect::OpenAi),
];
const MODELS: &str = "/v1/models";
const READ: &str = "GET, HEAD, OPTIONS";
const SEND: &str = "POST, OPTIONS";
/// Of an unknown path, so much is repeated to the client.
const SHOWN: usize = 200;

impl Endpoint {
    /// The endpoint at `path`.
    ///
    /// # Errors
    /// There is none, or it takes another method.
    pub(crate) fn of(method: &Method, path: &str) -> Result<Self, Error> {
        let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
        let endpoint = Self::at(path).ok_or_else(|| Error::UnknownPath(path.chars().take(SHOWN).collect()))?;
        let (takes, allowed) = match endpoint {
            Self::Inference(_) => (*method == Method::POST, SEND),
            _ => (*method == Method::GET || *method == Method::HEAD, READ),
        };
        if takes { Ok(endpoint) } else { Err(Error::Method(allowed)) }
    }

    fn at(path: &str) -> Option<Self> {
        if let Some((_, dialect)) = INFERENCE.iter().find(|(known, _)| *known == path) {
            return Some(Self::Inference(*dialect));
        }
        match path {
            MODELS => Some(Self::Models),
            "/health" => Some(Self::Health),
            "/ready" => Some(Self::Ready),
            "/metrics" => Some(Self::Metrics),
            // Ids contain slashes, escaped or not.
            _ => {
                let id = path.strip_prefix(MODELS)?.strip_prefix('/')?;
                hop::model_from_header(id).ok().map(Self::Model)
            }
        }
    }

    /// In whose terms it speaks of errors.
    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::Inference(dialect) => *dialect,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether it may be asked without a key: probes and scrapers have none.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Result<Endpoint, Error> {
        Endpoint::of(&Method::GET, path)
    }

    #[test]
    fn model_ids_may_have_slashes_escaped_or_not() {
        let id = |id: &str| Endpoint::Model(ModelId::new(id).unwrap());
        assert_eq!(get("/v1/models/Qwen/Qwen3-8B").unwrap(), id("Qwen/Qwen3-8B"));
        assert_eq!(get("/v1/models/Qwen%2FQwen3-8B").unwrap(), id("Qwen/Qwen3-8B"));
        assert_eq!(get("/v1/models/llama3:8b/").unwrap(), id("llama3:8b"));
        assert_eq!(get("/v1/models/").unwrap(), Endpoint::Models);
    }

    #[test]
    fn wrong_paths_and_wrong_methods_are_told_apart() {
        assert!(matches!(get("/v1/chat/completions"), Err(Error::Method(SEND))));
        assert!(matches!(Endpoint::of(&Method::DELETE, "/v1/models/m"), Err(Error::Method(READ))));
        for path in ["/", "/v1", "/v1/chat", "/v1/chat/completions/x", "//v1/models", "/v1/../metrics", "/mesh/logs"] {
            assert!(matches!(get(path), Err(Error::UnknownPath(_))), "{path}");
        }
    }
}

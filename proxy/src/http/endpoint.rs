//! The paths that the front door answers: those of engines from the one table of `dunlin_protocol::endpoint`, and its own.
//! `/openapi.json` is made from them, and `docs/api.md` held against them.

use crate::errors::Error;
pub(crate) use dunlin_protocol::endpoint::{Dialect, INFERENCE, Inference, Payload};
use dunlin_protocol::{endpoint, hop, id::ModelId};
use http::{Method, Uri, uri::PathAndQuery};

/// What is asked of a stored response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The response's id, as in the path.
    pub(crate) id: String,
}

/// What a path asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Goes to a replica, under the same path.
    Inference(&'static Inference),
    /// Goes to the replica that holds the response.
    Stored(Stored),
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
    /// This table, for programs.
    OpenApi,
}

/// Paths that the proxy answers itself, or that are about one response: methods, path, what it is.
pub(crate) const OTHERS: [(&str, &str, &str); 9] = [
    ("GET", "/v1/responses/{id}", "a stored response, from the replica that holds it"),
    ("DELETE", "/v1/responses/{id}", "forget it"),
    ("POST", "/v1/responses/{id}/cancel", "stop it"),
    ("GET", "/v1/models", "the models that are served, and the aliases"),
    ("GET", "/v1/models/{id}", "one of them; ids may contain `/`"),
    ("GET", "/health", "the process runs; no key needed"),
    ("GET", "/ready", "some model is served; no key needed"),
    ("GET", "/metrics", "for Prometheus; no key needed"),
    ("GET", "/openapi.json", "this table, for programs; no key needed"),
];

const MODELS: &str = "/v1/models";
const READ: &str = "GET, HEAD, OPTIONS";
const SEND: &str = "POST, OPTIONS";
const READ_OR_FORGET: &str = "GET, DELETE, OPTIONS";
/// Of an unknown path, so much is repeated to the client.
const SHOWN: usize = 200;
/// Longest id of a response.
const ID_BYTES: usize = 256;

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
            Self::Stored(_) if path.ends_with("/cancel") => (*method == Method::POST, SEND),
            Self::Stored(_) => (*method == Method::GET || *method == Method::DELETE, READ_OR_FORGET),
            _ => (*method == Method::GET || *method == Method::HEAD, READ),
        };
        if takes { Ok(endpoint) } else { Err(Error::Method(allowed)) }
    }

    fn at(path: &str) -> Option<Self> {
        if let Some(inference) = endpoint::at(path) {
            return Some(Self::Inference(inference));
        }
        if let Some(rest) = path.strip_prefix(endpoint::STORED) {
            return stored(rest);
        }
        match path {
            MODELS => Some(Self::Models),
            "/health" => Some(Self::Health),
            "/ready" => Some(Self::Ready),
            "/metrics" => Some(Self::Metrics),
            "/openapi.json" => Some(Self::OpenApi),
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
            Self::Inference(inference) => inference.dialect,
            Self::Stored(_) => Dialect::Responses,
            _ => Dialect::OpenAi,
        }
    }

    /// Whether it may be asked without a key: probes and scrapers have none.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Health | Self::Ready | Self::Metrics | Self::OpenApi)
    }
}

/// What an engine is asked for: the path without the slash that may end it, which engines answer with a redirect or a 404,
/// and the query as it is.
pub(crate) fn target(uri: &Uri) -> PathAndQuery {
    let whole = uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    let Some(path) = uri.path().strip_suffix('/').filter(|path| !path.is_empty()) else { return whole };
    let plain = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    plain.unwrap_or(whole)
}

/// `ID` or `ID/cancel`. Ids are the engines': letters, digits, `_` and `-`, so that none is a path of another kind.
fn stored(rest: &str) -> Option<Endpoint> {
    let id = rest.strip_suffix("/cancel").unwrap_or(rest);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let fits = !id.is_empty() && id.len() <= ID_BYTES && id.bytes().all(plain);
    fits.then(|| Endpoint::Stored(Stored { id: id.to_owned() }))
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
        assert!(matches!(Endpoint::of(&Method::POST, "/v1/models"), Err(Error::Method(READ))));
        assert!(matches!(Endpoint::of(&Method::PUT, "/v1/responses/resp_1"), Err(Error::Method(READ_OR_FORGET))));
        assert!(matches!(get("/v1/nothing"), Err(Error::UnknownPath(path)) if path == "/v1/nothing"));
        assert!(matches!(get(&"/x".repeat(1000)), Err(Error::UnknownPath(path)) if path.len() == SHOWN));
    }

    #[test]
    fn stored_responses_are_found_by_plain_ids_only() {
        let stored = |id: &str| Endpoint::Stored(Stored { id: id.to_owned() });
        assert_eq!(get("/v1/responses/resp_1-a/").unwrap(), stored("resp_1-a"));
        assert_eq!(Endpoint::of(&Method::POST, "/v1/responses/resp_1/cancel").unwrap(), stored("resp_1"));
        for odd in ["resp_1/other", "..", "resp_1%2fcancel", "a/../b", "", "/cancel", "a?b"] {
            assert!(!matches!(get(&format!("/v1/responses/{odd}")), Ok(Endpoint::Stored(_))), "{odd}");
        }
    }

    /// Only what is in the table, byte for byte, reaches an engine.
    #[test]
    fn no_trick_with_a_path_reaches_another_endpoint() {
        for trick in [
            "//v1/chat/completions",
            "/v1//chat/completions",
            "/v1/./chat/completions",
            "/v1/models/../chat/completions",
            "/v1/chat/completions/..",
            "/v1/chat%2fcompletions",
            "/V1/chat/completions",
            "/v1/chat/completions;x",
            "/v1/chat/completions//",
            "/engine/v1/chat/completions",
            "/mesh/logs",
            "*",
            "",
        ] {
            let found = Endpoint::of(&Method::POST, trick);
            assert!(!matches!(found, Ok(Endpoint::Inference(_))), "{trick}: {found:?}");
        }
    }

    #[test]
    fn engines_are_asked_without_the_last_slash() {
        for (asked, told) in [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/v1/chat/completions/?a=/b/", "/v1/chat/completions?a=/b/"),
            ("http://elsewhere.test/v1/embeddings/", "/v1/embeddings"),
            ("/v1/responses/resp_1/cancel/", "/v1/responses/resp_1/cancel"),
            ("/", "/"),
        ] {
            assert_eq!(target(&asked.parse().unwrap()), told, "{asked}");
        }
    }

    #[test]
    fn whatever_the_table_names_is_found() {
        for known in &INFERENCE {
            assert_eq!(Endpoint::of(&Method::POST, known.path).unwrap(), Endpoint::Inference(known));
        }
        for (method, path, _) in OTHERS {
            let path = path.replace("{id}", "resp_1");
            assert!(Endpoint::of(&method.parse().unwrap(), &path).is_ok(), "{method} {path}");
        }
    }
}

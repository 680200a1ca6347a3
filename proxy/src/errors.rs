//! Every error of the front door, and the one place where each becomes OpenAI's JSON with the status codes that the
//! official SDKs expect (they retry 408, 409, 429 and 5xx, and heed `Retry-After`).

pub(crate) mod engine;
pub(crate) mod events;
mod paths;

use crate::{
    auth,
    continuation::Refusal,
    http::{answer::Body, endpoint::Dialect},
    meter::Over,
    pool::Unserved,
    request::{self, body, form},
    upload,
};
use bytes::Bytes;
use dunlin_protocol::id::ModelId;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use std::time::Duration;

/// Why a request gets no answer from a replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No key, a wrong one, or a request that may not come without one.
    #[error(transparent)]
    Auth(#[from] auth::Error),
    /// No such path.
    #[error("unknown path {0}; this endpoint speaks OpenAI's API, for example POST /v1/chat/completions")]
    UnknownPath(String),
    /// The path exists, for another method.
    #[error("this path takes {0} only")]
    Method(&'static str),
    /// No HTTP.
    #[error("this is not a valid HTTP/1.1 request")]
    NotHttp,
    /// Too long a path.
    #[error("the path of the request is too long")]
    Uri,
    /// Too many or too long headers.
    #[error("the headers of the request are larger than {0} bytes, or more than 100")]
    Headers(usize),
    /// The body is compressed.
    #[error("request bodies with content-encoding {0:?} are not supported here; JSON may come as gzip or deflate")]
    Encoding(String),
    /// The body could not be read.
    #[error(transparent)]
    Body(#[from] body::Error),
    /// The form is wrong.
    #[error(transparent)]
    Form(#[from] form::Error),
    /// The body says not what to do.
    #[error(transparent)]
    Request(#[from] request::Error),
    /// As many requests are in flight as may be.
    #[error("this proxy has as many requests in flight as it may; retry later")]
    Overloaded,
    /// The key has reached a limit. With headers that say what is left.
    #[error("{0}")]
    Over(Over, Box<HeaderMap>),
    /// Too many wrong keys came from the client's address.
    #[error("too many requests with wrong API keys came from this address; retry after {} s", .0.as_secs() + 1)]
    TooManyFailures(Duration),
    /// The key does not open the model.
    #[error("this API key may not use the model `{0}`; `dunlin keys list` shows what it may")]
    ModelNotAllowed(ModelId),
    /// No replica serves the model.
    #[error("the model `{model}` does not exist or is not served now{}; GET /v1/models lists what is", meant(near))]
    ModelNotFound {
        /// As the client named it.
        model: ModelId,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// Nobody knows the response, or it is another's.
    #[error(
        "there is no response with id `{0}`; stored responses are kept by the engine that gave them, for a day at most"
    )]
    NoResponse(String),
    /// There are replicas, and none can be used.
    #[error("no replica of `{model}` {why}")]
    NoReplica {
        /// As the client named it.
        model: ModelId,
        /// What came of waiting.
        why: &'static str,
    },
    /// All slots are taken.
    #[error("all replicas of `{model}` are busy and {why}; retry later or add replicas")]
    Full {
        /// As the client named it.
        model: ModelId,
        /// What came of waiting.
        why: &'static str,
        /// How long it would have waited, as far as that is known.
        wait: Option<Duration>,
    },
    /// Every try failed.
    #[error("no replica of `{model}` answered ({tries} tried); the last one {last}")]
    Failed {
        /// As the client named it.
        model: ModelId,
        /// How many tries there were.
        tries: usize,
        /// What became of the last.
        last: Cause,
    },
}

impl From<upload::Error> for Error {
    fn from(error: upload::Error) -> Self {
        match error {
            upload::Error::Body(error) => Self::Body(error),
            upload::Error::Form(error) => Self::Form(error),
        }
    }
}

/// What became of one try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    /// No connection.
    #[error("could not be reached")]
    Unreachable,
    /// The connection broke before the answer.
    #[error("was lost before it answered")]
    Lost,
    /// No first byte in time.
    #[error("did not begin to answer in time")]
    Timeout,
    /// Its agent says that the engine failed.
    #[error("reported that its engine failed")]
    Engine,
    /// Its agent failed.
    #[error("refused the request")]
    Agent,
    /// Its agent doesn't serve the model any more, or not yet.
    #[error("does not serve it now")]
    NotServed,
    /// What came with a status of success is no answer.
    #[error("answered with {0}")]
    Nonsense(&'static str),
    /// The engine answered 502, 503 or 504.
    #[error("answered {0}")]
    Status(u16),
}

impl Cause {
    /// For metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
            Self::Timeout => "timeout",
            Self::Engine => "engine",
            Self::Agent => "agent",
            Self::NotServed => "not_served",
            Self::Nonsense(_) => "nonsense",
            Self::Status(_) => "status",
        }
    }

    /// Whether trying again is charged to the retry budget: the replica may have worked for nothing.
    pub(crate) fn costs(self) -> bool {
        matches!(self, Self::Timeout | Self::Status(_))
    }
}

/// How an error looks in OpenAI's terms.
struct Shape {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'static str>,
    retry_after: Option<Duration>,
}

const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(5);
/// Longer estimates say little.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

impl Error {
    /// The error of a model that the pool could not serve.
    pub(crate) fn unserved(model: &ModelId, why: Unserved) -> Self {
        let model = model.clone();
        match why {
            Unserved::Unknown => Self::ModelNotFound { model, near: Vec::new() },
            Unserved::NoReplica => Self::NoReplica { model, why: "is ready, and none is starting" },
            Unserved::StillStarting => {
                Self::NoReplica { model, why: "became ready in time; `dunlin doctor` says on which node to look" }
            }
            Unserved::StillFull { wait } => Self::Full { model, why: "none became free in time", wait },
            Unserved::TooMany { wait } => Self::Full { model, why: "as many requests wait already as may", wait },
            Unserved::TooLong { wait } => {
                Self::Full { model, why: "those who wait will take longer than a request may wait", wait: Some(wait) }
            }
            Unserved::TooManyForStarting => {
                Self::NoReplica { model, why: "is up yet, and as many requests wait for one that starts as may" }
            }
        }
    }

    fn shape(&self) -> Shape {
        let shape = |status, kind, code| Shape { status, kind, code, param: None, retry_after: None };
        let invalid = |status, code| shape(status, "invalid_request_error", code);
        match self {
            Self::Auth(auth::Error::NotLocal) => invalid(StatusCode::FORBIDDEN, "host_not_allowed"),
            Self::Auth(auth::Error::Suspended) => shape(StatusCode::FORBIDDEN, "permission_error", "tenant_suspended"),
            Self::Auth(auth::Error::Stale) => Shape {
                retry_after: Some(LATER),
                ..shape(StatusCode::SERVICE_UNAVAILABLE, "server_error", "keys_too_old")
            },
            Self::Auth(_) => invalid(StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::Over(over, _) => {
                let (kind, code) = over.kind();
                Shape { retry_after: Some(over.wait().max(SOON)), ..shape(StatusCode::TOO_MANY_REQUESTS, kind, code) }
            }
            Self::TooManyFailures(wait) => Shape {
                retry_after: Some(*wait),
                ..shape(StatusCode::TOO_MANY_REQUESTS, "invalid_request_error", "too_many_wrong_keys")
            },
            Self::ModelNotAllowed(_) => {
                Shape { param: Some("model"), ..shape(StatusCode::FORBIDDEN, "permission_error", "model_not_allowed") }
            }
            Self::UnknownPath(_) => invalid(StatusCode::NOT_FOUND, "unknown_url"),
            Self::Method(_) => invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::NotHttp => invalid(StatusCode::BAD_REQUEST, "invalid_http"),
            Self::Uri => invalid(StatusCode::URI_TOO_LONG, "url_too_long"),
            Self::Headers(_) => invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
            Self::Encoding(_) => invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_content_encoding"),
            Self::Body(body::Error::TooLarge(_)) => invalid(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large"),
            Self::Body(body::Error::TooSlow) => invalid(StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::Body(body::Error::Broken) => invalid(StatusCode::BAD_REQUEST, "body_incomplete"),
            Self::Body(body::Error::NotCompressed) => invalid(StatusCode::BAD_REQUEST, "invalid_encoding"),
            Self::Body(body::Error::Disk) => shape(StatusCode::INSUFFICIENT_STORAGE, "server_error", "proxy_disk"),
            Self::Form(error) => {
                let param = error.is_about_the_model().then_some("model");
                Shape {
                    param,
                    ..invalid(StatusCode::BAD_REQUEST, if param.is_some() { "invalid_value" } else { "invalid_form" })
                }
            }
            Self::Overloaded | Self::Body(body::Error::NoRoom | body::Error::NoDisk) => Shape {
                retry_after: Some(SOON),
                ..shape(StatusCode::SERVICE_UNAVAILABLE, "server_error", "proxy_overloaded")
            },
            Self::Request(error) => {
                let code = if error.param().is_some() { "invalid_value" } else { "invalid_json" };
                Shape { param: error.param(), ..invalid(StatusCode::BAD_REQUEST, code) }
            }
            Self::ModelNotFound { .. } => {
                Shape { param: Some("model"), ..invalid(StatusCode::NOT_FOUND, "model_not_found") }
            }
            Self::NoResponse(_) => invalid(StatusCode::NOT_FOUND, "response_not_found"),
            Self::NoReplica { .. } => Shape {
                retry_after: Some(LATER),
                ..shape(StatusCode::SERVICE_UNAVAILABLE, "server_error", "no_replica_available")
            },
            Self::Full { wait, .. } => Shape {
                retry_after: Some(wait.map_or(SOON, |wait| wait.clamp(SOON, LONGEST_RETRY))),
                ..shape(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "all_replicas_busy")
            },
            Self::Failed { last: Cause::Timeout, .. } => Shape {
                retry_after: Some(SOON),
                ..shape(StatusCode::GATEWAY_TIMEOUT, "server_error", "replica_timeout")
            },
            Self::Failed { last, .. } => {
                let status = match last {
                    Cause::Unreachable | Cause::Lost | Cause::NotServed => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::BAD_GATEWAY,
                };
                Shape { retry_after: Some(SOON), ..shape(status, "server_error", "replicas_failed") }
            }
        }
    }

    /// The whole answer.
    pub(crate) fn response(&self, dialect: Dialect) -> Response<Body> {
        let shape = self.shape();
        let mut response = Response::new(Body::whole(self.json(dialect)));
        *response.status_mut() = shape.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = shape.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
        }
        if let Self::Over(_, left) = self {
            headers.extend(HeaderMap::clone(left));
        }
        if let Self::Method(allowed) = self {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        if shape.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// The error as the last event of a stream whose status went out already.
    pub(crate) fn event(&self, dialect: Dialect) -> Bytes {
        let shape = self.shape();
        error_event(dialect, shape.kind, shape.code, &self.to_string())
    }

    /// The error object.
    pub(crate) fn json(&self, dialect: Dialect) -> Bytes {
        let shape = self.shape();
        let kind = if dialect == Dialect::Messages { engine::kind_of(shape.status, dialect) } else { shape.kind };
        error_body(dialect, kind, shape.param, Some(shape.code.into()), &self.to_string())
    }

    /// Whether another model, which the operator named in this one's place, may be asked.
    pub(crate) fn another_model_may_do_better(&self) -> bool {
        matches!(self, Self::ModelNotFound { .. } | Self::NoReplica { .. } | Self::Full { .. } | Self::Failed { .. })
    }
}

/// Names that may have been meant, for a message.
fn meant(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!(" (did you mean `{}`?)", near.join("` or `")),
    }
}

/// An error object in the endpoint's own dialect.
fn error_body(dialect: Dialect, kind: &str, param: Option<&str>, code: Option<Value>, message: &str) -> Bytes {
    let whole = match dialect {
        // Anthropic's clients look at the outer type.
        Dialect::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
        Dialect::OpenAi | Dialect::Responses | Dialect::Media => {
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        }
    };
    Bytes::from(whole.to_string())
}

/// A stream broke off, and is not continued for this reason, where there is one to tell: its last event.
pub(crate) fn broken_event(dialect: Dialect, refusal: Option<&Refusal>) -> Bytes {
    let mut message = "the replica was lost in the middle of the answer; what came so far is incomplete".to_owned();
    if let Some(refusal) = refusal {
        message += &format!(" and was not continued: {refusal}");
    }
    error_event(dialect, "server_error", "stream_interrupted", &message)
}

/// An error as an event, in the endpoint's own dialect. OpenAI's SDKs raise an exception at any event whose data has an
/// `error`.
pub(crate) fn error_event(dialect: Dialect, kind: &str, code: &str, message: &str) -> Bytes {
    let error = json!({"message": message, "type": kind, "param": null, "code": code});
    let data = match dialect {
        Dialect::OpenAi | Dialect::Media => json!({"error": error}),
        Dialect::Messages => json!({"type": "error", "error": {"type": "api_error", "message": message}}),
        Dialect::Responses => {
            json!({"type": "error", "code": code, "message": message, "param": null, "error": error})
        }
    };
    Bytes::from(format!("event: error\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelId {
        ModelId::new("m").unwrap()
    }

    #[test]
    fn the_sdks_find_the_status_and_fields_that_they_expect() {
        let failed = |last| Error::Failed { model: model(), tries: 3, last };
        let cases = [
            (Error::Auth(auth::Error::Missing), 401, "invalid_api_key", false),
            (Error::Auth(auth::Error::NotLocal), 403, "host_not_allowed", false),
            (Error::ModelNotFound { model: model(), near: Vec::new() }, 404, "model_not_found", false),
            (Error::unserved(&model(), Unserved::StillFull { wait: None }), 429, "all_replicas_busy", true),
            (Error::unserved(&model(), Unserved::TooMany { wait: None }), 429, "all_replicas_busy", true),
            (Error::unserved(&model(), Unserved::TooLong { wait: SOON }), 429, "all_replicas_busy", true),
            (Error::unserved(&model(), Unserved::NoReplica), 503, "no_replica_available", true),
            (Error::unserved(&model(), Unserved::StillStarting), 503, "no_replica_available", true),
            (Error::unserved(&model(), Unserved::TooManyForStarting), 503, "no_replica_available", true),
            (Error::Body(body::Error::TooLarge(9)), 413, "request_too_large", false),
            (Error::Request(request::Error::NoModel), 400, "invalid_value", false),
            (failed(Cause::Timeout), 504, "replica_timeout", true),
            (failed(Cause::Lost), 503, "replicas_failed", true),
            (failed(Cause::NotServed), 503, "replicas_failed", true),
            (failed(Cause::Status(502)), 502, "replicas_failed", true),
        ];
        for (error, status, code, retry) in cases {
            let response = error.response(Dialect::OpenAi);
            assert_eq!(response.status(), status, "{error}");
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry, "{error}");
            let body: serde_json::Value = serde_json::from_slice(&error.json(Dialect::OpenAi)).unwrap();
            assert_eq!(body["error"]["code"], code);
            assert_eq!(body["error"]["message"], error.to_string());
            assert!(body["error"].get("param").is_some() && body["error"]["type"].is_string());
        }
    }

    #[test]
    fn near_names_are_told_and_anthropics_kinds_are_its_own() {
        let error = Error::ModelNotFound { model: model(), near: vec!["a".into(), "b".into()] };
        assert!(error.to_string().contains("(did you mean `a` or `b`?)"), "{error}");
        let body: Value = serde_json::from_slice(&error.json(Dialect::Messages)).unwrap();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    }

    #[test]
    fn an_event_is_one_event() {
        for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Messages, Dialect::Media] {
            let event = broken_event(dialect, Some(&Refusal::NoReplica));
            let text = std::str::from_utf8(&event).unwrap();
            let data = text.strip_prefix("event: error\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
            let json: serde_json::Value = serde_json::from_str(data).unwrap();
            assert!(json["error"]["message"].is_string(), "{text}");
        }
    }
}

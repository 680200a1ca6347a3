//! Answers of the agent's own: whose fault it is, whether another replica may be asked, and OpenAI's error shape.

use super::headers::HEAD_BYTES;
use crate::outcomes::Outcome;
use axum::response::{IntoResponse, Response};
use dunlin_protocol::{
    hop::{FAULT, Fault, RETRY_SAFE},
    id::ModelId,
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use std::time::Duration;

/// Why a request got no answer of the engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this member has no replica {0}")]
    NoReplica(String),
    #[error("the request names no replica and model as members do")]
    Unaddressed,
    #[error("the model `{0}` is not served here")]
    Model(ModelId),
    #[error("{0}")]
    Adapter(crate::replica::adapters::Error),
    #[error("the replica is not ready: {0}")]
    NotReady(String),
    #[error("all slots of the engine are taken")]
    Full,
    #[error("the replica takes no new requests: it is being stopped")]
    Draining,
    #[error("{0}")]
    Unreachable(crate::engine::client::Error),
    #[error("{0}")]
    Lost(crate::engine::client::Error),
    #[error("the engine sent nothing for {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("the engine's answer has {0} bytes of headers; the mesh carries {HEAD_BYTES} at most")]
    Head(usize),
}

impl Refusal {
    fn fault(&self) -> Fault {
        match self {
            Self::NoReplica(_) | Self::Model(_) | Self::Adapter(_) => Fault::NotServed,
            Self::Unaddressed | Self::NotReady(_) => Fault::Agent,
            Self::Full => Fault::Full,
            Self::Draining => Fault::Draining,
            Self::Silent(_) => Fault::Silent,
            Self::Unreachable(_) | Self::Lost(_) | Self::Head(_) => Fault::Engine,
        }
    }

    /// For the counts of its replica.
    pub(super) fn outcome(&self) -> Outcome {
        match self.fault() {
            Fault::Engine | Fault::Silent => Outcome::EngineFailed,
            Fault::Full => Outcome::Full,
            Fault::Agent | Fault::NotServed | Fault::Draining => Outcome::Refused,
        }
    }

    /// The engine has seen nothing of the request.
    fn retry_is_safe(&self) -> bool {
        !matches!(self, Self::Lost(_) | Self::Silent(_) | Self::Head(_) | Self::Unaddressed)
    }

    /// Status, and OpenAI's `type` and `code`.
    fn shape(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Unaddressed => (StatusCode::BAD_REQUEST, "invalid_request_error", "unaddressed"),
            Self::NoReplica(_) | Self::Model(_) | Self::Adapter(_) => {
                (StatusCode::NOT_FOUND, "invalid_request_error", "model_not_found")
            }
            Self::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "replica_not_ready"),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "replica_full"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "replica_draining"),
            Self::Unreachable(_) => (StatusCode::BAD_GATEWAY, "server_error", "engine_unreachable"),
            Self::Lost(_) => (StatusCode::BAD_GATEWAY, "server_error", "engine_lost"),
            Self::Silent(_) => (StatusCode::GATEWAY_TIMEOUT, "server_error", "engine_silent"),
            Self::Head(_) => (StatusCode::BAD_GATEWAY, "server_error", "engine_headers_too_large"),
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        if fault == Fault::Draining { Self::Draining } else { Self::Full }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, kind, code) = self.shape();
        let message = self.to_string();
        let body = serde_json::json!({ "error": { "message": message, "type": kind, "param": null, "code": code } });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (HeaderName::from_static(FAULT), HeaderValue::from_static(self.fault().as_str())),
            (
                HeaderName::from_static(RETRY_SAFE),
                HeaderValue::from_static(if self.retry_is_safe() { "yes" } else { "no" }),
            ),
        ];
        (status, headers, body.to_string()).into_response()
    }
}

//! Requests that the hop itself refuses, as the OpenAI-shaped JSON that clients of an agent expect.

use crate::members::Denied;
use axum::{body::Body, response::Response};
use dunlin_protocol::hop::{FAULT, Fault, RETRY_SAFE};
use http::{HeaderValue, StatusCode, header};

/// Why the hop doesn't let a request through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No member has such a path.
    UnknownPath,
    /// The caller's membership doesn't count, or no longer.
    Denied(Denied),
    /// The caller's roles don't include this route.
    RoleMissing,
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::Denied(_) | Self::RoleMissing => StatusCode::FORBIDDEN,
        }
    }

    /// Type, code and message of the error object.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::UnknownPath => ("invalid_request_error", "unknown_path", "no member of the mesh answers this path"),
            Self::Denied(Denied::NotAMember) => ("permission_error", "not_a_member", "this peer is not a member"),
            Self::Denied(Denied::Revoked) => ("permission_error", "revoked", "this peer's membership was revoked"),
            Self::Denied(Denied::Expired) => {
                ("permission_error", "certificate_expired", "this peer's certificate has expired")
            }
            Self::RoleMissing => {
                // Whatever asks for a role takes this one.
                let words = "this peer's certificate has no role that may call this path; it needs the role proxy";
                ("permission_error", "role_missing", words)
            }
        }
    }

    /// The answer. Nothing behind the hop has seen the request, which it says.
    pub(super) fn response(self) -> Response {
        let (kind, code, message) = self.words();
        let body = format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}}}"#);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(FAULT, HeaderValue::from_static(Fault::Agent.as_str()));
        headers.insert(RETRY_SAFE, HeaderValue::from_static("yes"));
        response
    }
}

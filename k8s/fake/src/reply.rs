//! Answers, and why a call was refused.

use crate::{Call, ReplyBody, Verb};
use bytes::Bytes;
use http::{Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// A refusal, as the API says it.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// Field and message of each cause.
    pub causes: Vec<(String, String)>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, causes: Vec::new() }
    }

    pub(crate) fn not_found(resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
    }

    pub(crate) fn forbidden(call: &Call, verb: Verb) -> Self {
        let (resource, group, namespace) = (call.resource(), &call.group, &call.namespace);
        let message = format!(
            "{resource}.{group} \"{}\" is forbidden: User \"{}\" cannot {} resource \"{resource}\" in API group \"{group}\" in the namespace \"{namespace}\"",
            call.name,
            call.client,
            verb.name()
        );
        Self::new(403, "Forbidden", message)
    }

    pub(crate) fn exists(resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists"))
    }

    pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"))
    }

    pub(crate) fn stale(resource: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    pub(crate) fn invalid(kind: &str, name: &str, causes: Vec<(String, String)>) -> Self {
        let list: Vec<String> = causes.iter().map(|(field, message)| format!("{field}: {message}")).collect();
        let list = if let [one] = list.as_slice() { one.clone() } else { format!("[{}]", list.join(", ")) };
        Self { causes, ..Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {list}")) }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(crate) fn gone(message: &str) -> Self {
        Self::new(410, "Expired", message.to_owned())
    }

    pub(crate) fn to_value(&self) -> Value {
        let causes: Vec<Value> =
            self.causes.iter().map(|(field, message)| json!({"field": field, "message": message})).collect();
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
            "details": { "causes": causes },
        })
    }
}

pub(crate) fn json_reply(code: u16, value: &Value) -> Response<ReplyBody> {
    let body = Full::new(Bytes::from(value.to_string())).boxed();
    with_body(code, body)
}

pub(crate) fn with_body(code: u16, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

//! Engines' errors in the shape that SDKs look for. Pure.
//!
//! vLLM and llama.cpp speak OpenAI's JSON; others answer with bare text, HTML, FastAPI's `detail`, or an object without
//! the `error` around it (`sglang`), and some name files of their host. What has the shape and names none passes untouched.

use super::{error_body, paths::without_paths};
use crate::http::endpoint::Dialect;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};

/// Longest message that is passed on, characters.
const MESSAGE: usize = 4000;

/// An engine's error.
pub(crate) struct Said<'a> {
    pub(crate) status: StatusCode,
    pub(crate) body: &'a [u8],
    /// Of the endpoint that was asked.
    pub(crate) dialect: Dialect,
    /// The path that was asked.
    pub(crate) path: &'a str,
    /// The model that was asked.
    pub(crate) model: &'a str,
}

/// What can be read of it.
#[derive(Debug, Default, PartialEq)]
struct Told {
    message: String,
    kind: Option<String>,
    param: Option<String>,
    code: Option<Value>,
}

impl Said<'_> {
    /// The body that goes to the client instead; `None` when the engine's own is right.
    pub(crate) fn reshaped(&self) -> Option<Bytes> {
        let json: Option<Value> = serde_json::from_slice(self.body).ok();
        if let Some(message) = json.as_ref().and_then(|json| self.own_message(json))
            && matches!(without_paths(message, self.model), std::borrow::Cow::Borrowed(_))
        {
            return None;
        }
        let Told { message, kind, param, code } = self.told(json.as_ref());
        let kind = kind.unwrap_or_else(|| kind_of(self.status, self.dialect).to_owned());
        Some(error_body(self.dialect, &kind, param.as_deref(), code, &message))
    }

    /// What the client is told of a `status` that is between its engine and whoever runs that.
    pub(crate) fn of_the_engine_alone(&self, status: StatusCode) -> Bytes {
        let model = self.model;
        let message = if status == StatusCode::UNAUTHORIZED || status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            format!("the engine of `{model}` asks for a key of its own, which its agent does not have")
        } else {
            format!("the engine of `{model}` answered with status {}, which is no answer", status.as_u16())
        };
        error_body(self.dialect, kind_of(self.status, self.dialect), None, Some("engine_error".into()), &message)
    }

    /// What it says, in words.
    pub(crate) fn message(&self) -> String {
        let json: Option<Value> = serde_json::from_slice(self.body).ok();
        self.told(json.as_ref()).message
    }

    /// The message of an error that has the endpoint's shape.
    fn own_message<'a>(&self, json: &'a Value) -> Option<&'a str> {
        let has_kind = json.pointer("/error/type").is_some_and(Value::is_string);
        if self.dialect == Dialect::Messages && !(json.get("type").is_some_and(|kind| kind == "error") && has_kind) {
            return None;
        }
        json.pointer("/error/message")?.as_str()
    }

    fn told(&self, json: Option<&Value>) -> Told {
        let mut told = match json {
            Some(json) => of_json(json),
            None => Told { message: of_text(&String::from_utf8_lossy(self.body)), ..Told::default() },
        };
        told.message = without_paths(&told.message, self.model).trim().to_owned();
        if told.message.chars().count() > MESSAGE {
            told.message = told.message.chars().take(MESSAGE).chain(['…']).collect();
        }
        let Self { status, path, model, .. } = self;
        if says_nothing(&told.message, *status) {
            told.message = match *status {
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                    format!("the engine of `{model}` does not offer {path}")
                }
                status => format!("the engine of `{model}` answered {status} and did not say why"),
            };
        }
        told
    }
}

/// Whether the message is no more than the status.
fn says_nothing(message: &str, status: StatusCode) -> bool {
    let reason = status.canonical_reason().unwrap_or_default();
    message.is_empty() || message.eq_ignore_ascii_case(reason) || message == status.as_str()
}

fn of_json(json: &Value) -> Told {
    match json {
        Value::String(message) => Told { message: message.clone(), ..Told::default() },
        Value::Object(fields) => of_object(fields),
        other => Told { message: other.to_string(), ..Told::default() },
    }
}

fn of_object(fields: &Map<String, Value>) -> Told {
    let text = |fields: &Map<String, Value>, name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    match (fields.get("error"), fields.get("detail")) {
        (Some(Value::Object(error)), _) => of_object(error),
        (Some(Value::String(error)), _) => Told { message: error.clone(), ..Told::default() },
        (_, Some(Value::String(detail))) => Told { message: detail.clone(), ..Told::default() },
        (_, Some(Value::Object(detail))) => of_object(detail),
        (_, Some(Value::Array(detail))) => of_fields(detail),
        _ => match text(fields, "message").or_else(|| text(fields, "msg")) {
            Some(message) => Told {
                message,
                // `Bad Request` and the like are no kinds that a program could know.
                kind: text(fields, "type").filter(|kind| kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')),
                param: text(fields, "param"),
                code: fields.get("code").filter(|code| code.is_string()).cloned(),
            },
            None => Told { message: Value::Object(fields.clone()).to_string(), ..Told::default() },
        },
    }
}

/// FastAPI's list of what is wrong with which field.
fn of_fields(list: &[Value]) -> Told {
    let place = |entry: &Value| {
        let parts = entry.get("loc").and_then(Value::as_array).into_iter().flatten();
        let named: Vec<String> = parts
            .filter(|part| *part != "body")
            .map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned))
            .collect();
        named.join(".")
    };
    let one = |entry: &Value| {
        let said = entry.get("msg").and_then(Value::as_str).map_or_else(|| entry.to_string(), str::to_owned);
        match place(entry) {
            place if place.is_empty() => said,
            place => format!("{place}: {said}"),
        }
    };
    let message = list.iter().map(one).collect::<Vec<_>>().join("; ");
    Told { message, param: list.first().map(place).filter(|place| !place.is_empty()), ..Told::default() }
}

/// Plain text, or the words of a page.
fn of_text(text: &str) -> String {
    let text = text.trim();
    if !text.starts_with('<') {
        return text.to_owned();
    }
    let lower = text.to_ascii_lowercase();
    let inside = |tag: &str| {
        let from = lower.find(&format!("<{tag}>"))? + tag.len() + 2;
        let to = from + lower[from..].find(&format!("</{tag}>"))?;
        Some(text[from..to].to_owned())
    };
    let words = inside("title").or_else(|| inside("h1")).unwrap_or_else(|| {
        let mut in_tag = false;
        let visible = |letter: &char| match letter {
            '<' => {
                in_tag = true;
                false
            }
            '>' => !std::mem::replace(&mut in_tag, false),
            _ => !in_tag,
        };
        text.chars().filter(visible).collect()
    });
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The kind of error that a status stands for.
pub(super) fn kind_of(status: StatusCode, dialect: Dialect) -> &'static str {
    let anthropic = dialect == Dialect::Messages;
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 if anthropic => "not_found_error",
        413 if anthropic => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 if anthropic => "overloaded_error",
        400..500 => "invalid_request_error",
        _ if anthropic => "api_error",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn said(status: u16, body: &[u8], dialect: Dialect) -> Option<Value> {
        let status = StatusCode::from_u16(status).unwrap();
        let said = Said { status, body, dialect, path: "/v1/audio/transcriptions", model: "m" };
        said.reshaped().map(|body| serde_json::from_slice(&body).unwrap())
    }

    fn openai(kind: &str, param: Value, message: &str) -> Option<Value> {
        Some(json!({"error": {"message": message, "type": kind, "param": param, "code": null}}))
    }

    #[test]
    fn what_is_between_an_engine_and_its_owner_is_no_fault_of_the_client() {
        let said =
            Said { status: StatusCode::BAD_GATEWAY, body: &[], dialect: Dialect::OpenAi, path: "/v1/x", model: "m" };
        for (status, word) in [(401, "key of its own"), (302, "302"), (999, "999")] {
            let told: Value =
                serde_json::from_slice(&said.of_the_engine_alone(StatusCode::from_u16(status).unwrap())).unwrap();
            assert_eq!(
                (&told["error"]["type"], &told["error"]["code"]),
                (&json!("server_error"), &json!("engine_error"))
            );
            assert!(told["error"]["message"].as_str().unwrap().contains(word), "{told}");
        }
    }

    /// Answers of real engines: vLLM, llama.cpp, SGLang, faster-whisper-server, Ollama, TGI, nginx.
    #[test]
    fn each_engines_way_is_understood() {
        let reshaped = |status, body: &str| said(status, body.as_bytes(), Dialect::OpenAi);
        let invalid = "invalid_request_error";
        for (status, body, expected) in [
            (
                422,
                r#"{"detail":[{"type":"missing","loc":["body","file"],"msg":"Field required","input":null}]}"#,
                openai(invalid, json!("file"), "file: Field required"),
            ),
            (
                404,
                r#"{"detail":"Not Found"}"#,
                openai(invalid, Value::Null, "the engine of `m` does not offer /v1/audio/transcriptions"),
            ),
            (
                500,
                "Internal Server Error",
                openai(
                    "server_error",
                    Value::Null,
                    "the engine of `m` answered 500 Internal Server Error and did not say why",
                ),
            ),
            (
                502,
                "<html>\r\n<head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>",
                openai("server_error", Value::Null, "502 Bad Gateway"),
            ),
            (500, "<p>Out of <b>memory</b></p>", openai("server_error", Value::Null, "Out of memory")),
            (400, r#"{"error":"model is required"}"#, openai(invalid, Value::Null, "model is required")),
            (
                422,
                r#"{"error":"Input validation error","error_type":"validation"}"#,
                openai(invalid, Value::Null, "Input validation error"),
            ),
            (
                429,
                r#"{"object":"error","message":"slow down","type":"TooMany","code":429}"#,
                openai("rate_limit_error", Value::Null, "slow down"),
            ),
            (
                500,
                "",
                openai(
                    "server_error",
                    Value::Null,
                    "the engine of `m` answered 500 Internal Server Error and did not say why",
                ),
            ),
            (400, r#"{"detail":{"error":{"message":"bad"}}}"#, openai(invalid, Value::Null, "bad")),
        ] {
            assert_eq!(reshaped(status, body), expected, "{body}");
        }
        for untouched in [
            r#"{"error":{"message":"Invalid or corrupted audio data.","type":"BadRequestError","param":null,"code":400}}"#,
            r#"{"error":{"code":400,"message":"'messages' is required","type":"invalid_request_error"}}"#,
        ] {
            assert_eq!(reshaped(400, untouched), None);
        }
    }

    #[test]
    fn files_of_the_host_are_not_named() {
        let sglang = r#"{"object":"error","message":"1 validation error:\n\n  File \"/usr/lib/python3/site-packages/sglang/srt/entrypoints/http_server.py\", line 1870, in x\n    POST /v1/chat/completions","type":"Bad Request","param":null,"code":400}"#;
        let message =
            "1 validation error:\n\n  File \"http_server.py\", line 1870, in x\n    POST /v1/chat/completions";
        assert_eq!(
            said(400, sglang.as_bytes(), Dialect::OpenAi),
            openai("invalid_request_error", Value::Null, message)
        );
        let own = r#"{"error":{"message":"no file /srv/models/x.gguf","type":"server_error","param":"p","code":"c"}}"#;
        let expected =
            json!({"error": {"message": "no file x.gguf", "type": "server_error", "param": "p", "code": "c"}});
        assert_eq!(said(500, own.as_bytes(), Dialect::OpenAi), Some(expected));
    }

    #[test]
    fn anthropics_clients_get_anthropics_shape() {
        let openai = br#"{"error":{"message":"too long","type":"invalid_request_error"}}"#;
        let expected = json!({"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}});
        assert_eq!(said(400, openai, Dialect::Messages), Some(expected.clone()));
        assert_eq!(said(400, expected.to_string().as_bytes(), Dialect::Messages), None);
        assert_eq!(said(503, b"busy", Dialect::Messages).unwrap()["error"]["type"], "overloaded_error");
        assert_eq!(said(500, b"oops", Dialect::Messages).unwrap()["error"]["type"], "api_error");
    }

    #[test]
    fn a_long_message_is_cut() {
        let body = "é".repeat(100_000);
        let message =
            said(500, body.as_bytes(), Dialect::OpenAi).unwrap()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(message.chars().count(), MESSAGE + 1);
    }

    proptest! {
        #[test]
        fn any_answer_becomes_an_error(body in prop::collection::vec(any::<u8>(), 0..200), status in 400u16..600) {
            if let Some(shaped) = said(status, &body, Dialect::OpenAi) {
                prop_assert!(shaped["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
            }
        }

        #[test]
        fn any_json_becomes_an_error(body in "(\\{|\\}|\\[|\\]|\"error\"|\"detail\"|\"message\"|:|,|1|null|\"x\"){0,12}") {
            let _ = said(400, body.as_bytes(), Dialect::Messages);
        }
    }
}

//! Whether what came with a status of success is an answer: pure.
//!
//! Engines, and what stands in front of them, answer 200 with a web page, with half a JSON text, with an error. None of
//! that is worth showing while another replica may do better; what is shown in the end says what it is.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::HashMap};

/// Answers below these paths may be text, or sound.
const ANY_KIND: &str = "/v1/audio/";
/// Blanks with which no answer begins.
const PADDING: usize = 64 << 10;
/// All that an error says at its top level, in the engines' dialects. What says more is an answer: a response of
/// `/v1/responses` has an `error`, too.
const OF_ERRORS: [&str; 9] =
    ["code", "detail", "error", "error_type", "message", "object", "param", "request_id", "type"];

/// What an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    /// As far as can be told, what was asked for.
    Answer,
    /// An error, with the status that it names.
    Error(Option<StatusCode>),
    /// No answer, and why not.
    Nonsense(&'static str),
}

/// Whether the endpoint at `path` answers with JSON, or a stream of events.
pub(super) fn is_json(path: &str) -> bool {
    !path.starts_with(ANY_KIND)
}

/// Of an answer that is no stream of events. `body` is its beginning, or all of it if it is `whole`.
pub(super) fn of_answer(path: &str, headers: &HeaderMap, body: &[u8], whole: bool) -> Sense {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if kind.get(.."text/html".len()).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/html")) {
        return Sense::Nonsense("a web page");
    }
    if !is_json(path) {
        return Sense::Answer;
    }
    match body.trim_ascii_start().first() {
        Some(b'{' | b'[') if whole => of_json(body),
        Some(b'{' | b'[') => Sense::Answer,
        None if !whole && body.len() < PADDING => Sense::Answer,
        None => Sense::Nonsense("nothing"),
        Some(_) => Sense::Nonsense("no JSON"),
    }
}

/// Of a stream's first events: an error is one in which nothing else stands.
pub(super) fn of_event(data: &[u8]) -> Sense {
    match of_json(data) {
        Sense::Nonsense(_) => Sense::Answer,
        other => other,
    }
}

fn of_json(json: &[u8]) -> Sense {
    if serde_json::from_slice::<IgnoredAny>(json).is_err() {
        return Sense::Nonsense("broken JSON");
    }
    // What is no UTF-8 in it is the client's to judge.
    let Ok(fields) = serde_json::from_slice::<HashMap<Cow<'_, str>, &RawValue>>(json) else { return Sense::Answer };
    let said = |name: &str| fields.get(name).map(|value| value.get()).filter(|value| *value != "null");
    let is_error = said("error").is_some() || said("object") == Some("\"error\"");
    if !is_error || !fields.keys().all(|name| OF_ERRORS.contains(&&**name)) {
        return Sense::Answer;
    }
    let inner = said("error").and_then(|error| serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(error).ok());
    let inner = inner.as_ref().and_then(|error| error.get("code")).map(|code| code.get());
    let code = inner.or(said("code")).and_then(|code| code.trim_matches('"').parse::<u16>().ok());
    Sense::Error(code.filter(|code| (400..600).contains(code)).and_then(|code| StatusCode::from_u16(code).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    fn of(path: &str, kind: &'static str, body: &str, whole: bool) -> Sense {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        of_answer(path, &headers, body.as_bytes(), whole)
    }

    #[test]
    fn what_is_no_answer_is_told_from_what_is_one() {
        for answer in
            [r#"{"id":"x","choices":[]}"#, " [0.5]", "{}", r#"{"error":null,"choices":[]}"#, "{\"a\":\"\u{e9}\"}"]
        {
            assert_eq!(of(CHAT, "application/json", answer, true), Sense::Answer, "{answer}");
        }
        for nonsense in ["", "  ", "<html>", "ok", r#"{"choices":[{"te"#, "{} {}", "{\"a\":}"] {
            let sense = of(CHAT, "application/json", nonsense, true);
            assert!(matches!(sense, Sense::Nonsense(_)), "{nonsense}: {sense:?}");
        }
        assert_eq!(of(CHAT, "Text/HTML; charset=utf-8", "{}", true), Sense::Nonsense("a web page"));
        assert_eq!(of("/v1/audio/speech", "text/html", "", false), Sense::Nonsense("a web page"));
        // The rest may make sense of it.
        assert_eq!(of(CHAT, "application/json", r#"{"choices":[{"te"#, false), Sense::Answer);
        assert_eq!(of(CHAT, "application/json", "nonsense", false), Sense::Nonsense("no JSON"));
        for (kind, body) in [("text/plain", "So it goes."), ("audio/wav", "RIFF"), ("application/json", "")] {
            assert_eq!(of("/v1/audio/transcriptions", kind, body, true), Sense::Answer, "{body}");
        }
    }

    #[test]
    fn errors_under_a_status_of_success_are_found_with_the_status_that_they_name() {
        let status = |code| StatusCode::from_u16(code).ok();
        for (error, code) in [
            (r#"{"error":{"message":"x","type":"server_error"}}"#, None),
            (r#"{"error":"no such model"}"#, None),
            (r#"{"error":{"message":"x","code":400}}"#, status(400)),
            (r#"{"error":{"message":"x","code":"429"}}"#, status(429)),
            (r#"{"object":"error","message":"x","type":"BadRequestError","param":null,"code":400}"#, status(400)),
            (r#"{"type":"error","error":{"type":"overloaded_error"},"request_id":"r"}"#, None),
            (r#"{"error":{"code":200}}"#, None),
        ] {
            assert_eq!(of(CHAT, "application/json", error, true), Sense::Error(code), "{error}");
            assert_eq!(of_event(error.as_bytes()), Sense::Error(code), "{error}");
        }
        // A response that failed is an answer of its endpoint.
        let failed = r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error"}}"#;
        assert_eq!(of("/v1/responses", "application/json", failed, true), Sense::Answer);
        assert_eq!(of_event(b"[DONE]"), Sense::Answer);
    }
}

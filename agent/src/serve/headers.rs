//! Which headers pass between hop and engine.

use dunlin_protocol::hop::{HOP_BY_HOP, OWN_PREFIX, named_by_connection};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Largest head of an engine's answer that goes on the hop, as HTTP/2 counts. A hop takes 64 KiB of headers; more would
/// end the whole connection, with every answer that is on it.
pub(super) const HEAD_BYTES: usize = 32 * 1024;
/// What HTTP/2 adds for each field (RFC 9113, 6.5.2).
const FIELD_BYTES: usize = 32;

/// Never reaches an engine: a client's key, and what is about another host.
const NOT_FOR_ENGINES: [HeaderName; 3] = [header::AUTHORIZATION, header::HOST, HeaderName::from_static("x-api-key")];

/// Leaves what the engine may see.
pub(super) fn strip_request(headers: &mut HeaderMap) {
    strip(headers);
    for name in NOT_FOR_ENGINES {
        headers.remove(name);
    }
}

/// Leaves what the mesh may see of an engine's answer. `x-dunlin-*` is the agent's to say.
pub(super) fn strip_response(headers: &mut HeaderMap) {
    strip(headers);
}

/// Size of the headers, bytes, as HTTP/2 counts against SETTINGS_MAX_HEADER_LIST_SIZE.
pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES).sum()
}

fn strip(headers: &mut HeaderMap) {
    let connection = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        connection.flat_map(named_by_connection).filter_map(|name| name.parse().ok()).collect();
    let own = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).cloned();
    for name in named.into_iter().chain(own.collect::<Vec<_>>()) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether the answer is a stream: its end says nothing about its length beforehand.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let is = |value: &HeaderValue| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.starts_with(b"text/event-stream") || value.starts_with(b"application/x-ndjson")
    };
    headers.get(header::CONTENT_TYPE).is_some_and(is) || !headers.contains_key(header::CONTENT_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn keys_and_the_meshs_own_headers_never_reach_an_engine() {
        let mut given = headers(&[
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("x-dunlin-model", "m"),
            ("x-dunlin-anything", "new"),
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy-connection", "close"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("host", "agent"),
            ("content-type", "application/json"),
            ("content-length", "2"),
            ("traceparent", "00-1-2-01"),
        ]);
        strip_request(&mut given);
        let mut left: Vec<_> = given.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "content-type", "traceparent"]);
    }

    #[test]
    fn an_engine_cannot_speak_for_its_agent() {
        let mut given = headers(&[
            ("x-dunlin-load", "lie"),
            ("transfer-encoding", "chunked"),
            ("proxy-connection", "keep-alive"),
            ("server", "llama.cpp"),
        ]);
        strip_response(&mut given);
        assert_eq!(given, headers(&[("server", "llama.cpp")]));
    }

    #[test]
    fn size_is_as_http2_counts() {
        let mut given = headers(&[("server", "llama.cpp"), ("set-cookie", "a=1")]);
        given.append(header::SET_COOKIE, HeaderValue::from_static("b=2"));
        assert_eq!(size(&given), (6 + 9 + 32) + 2 * (10 + 3 + 32));
    }

    #[test]
    fn streams() {
        assert!(is_stream(&headers(&[("content-type", "text/event-stream; charset=utf-8"), ("content-length", "1")])));
        assert!(is_stream(&headers(&[("content-type", "application/json")])));
        assert!(!is_stream(&headers(&[("content-type", "application/json"), ("content-length", "1")])));
    }
}

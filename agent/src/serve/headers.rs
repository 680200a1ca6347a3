//! Which headers pass between hop and engine.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Hop-by-hop headers (RFC 9110, 7.6.1) and the older ones that are treated like them.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];
/// Never reaches an engine: a client's key, and what is about another host.
const NOT_FOR_ENGINES: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::HOST,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("proxy-connection"),
];
/// The mesh's own headers.
const OWN_PREFIX: &str = "x-dunlin-";

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

fn strip(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    let own: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect()
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
        let mut given = headers(&[("x-dunlin-load", "lie"), ("transfer-encoding", "chunked"), ("server", "llama.cpp")]);
        strip_response(&mut given);
        assert_eq!(given, headers(&[("server", "llama.cpp")]));
    }

    #[test]
    fn streams() {
        assert!(is_stream(&headers(&[("content-type", "text/event-stream; charset=utf-8"), ("content-length", "1")])));
        assert!(is_stream(&headers(&[("content-type", "application/json")])));
        assert!(!is_stream(&headers(&[("content-type", "application/json"), ("content-length", "1")])));
    }
}

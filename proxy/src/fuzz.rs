//! Everything here that reads what a client or an engine sent: no bytes may panic, and what must hold of any is checked.
//! A test tries it with bytes that are nearly right, `fuzz/` with whatever libFuzzer finds.

use crate::{
    continuation::{self, Endpoint, Kept, Way},
    http::sse::{self, Watch},
    request,
};
use bytes::Bytes;
use dunlin_node::hop::Budget;
use dunlin_protocol::runtime::Catalogue;
use std::sync::OnceLock;

/// Panics where something is wrong with what it made of the bytes.
pub type Parser = fn(&[u8]);

/// The parsers, by name.
pub const PARSERS: &[(&str, Parser)] =
    &[("events", events), ("continuation", continue_one), ("request", peek), ("token count", counted)];

fn catalogue() -> &'static Catalogue {
    static BUILT_IN: OnceLock<Catalogue> = OnceLock::new();
    BUILT_IN.get_or_init(|| Catalogue::built_in().unwrap_or_default())
}

/// An engine's event stream, in pieces of a size that the first byte gives: nothing is changed, and how it is cut makes no
/// difference.
fn events(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else { return };
    let run = |size: usize| {
        let (mut watch, mut out) = (Watch::default(), Vec::new());
        for piece in stream.chunks(size.max(1)) {
            out.extend_from_slice(&watch.push(Bytes::copy_from_slice(piece)));
            assert!(stream.starts_with(&out), "events were changed");
        }
        if let Some(rest) = watch.rest() {
            out.extend_from_slice(&rest);
            assert!(stream.starts_with(&out), "the last event was changed");
        }
        watch.stage()
    };
    assert_eq!(run(stream.len()), run(usize::from(*size) % 31 + 1), "how a stream is cut makes a difference");
    let joined: Vec<u8> = sse::events_of(stream).flatten().copied().collect();
    assert_eq!(joined, stream, "events don't add up to the stream");
}

/// A request, a stream that breaks off, and the stream of whoever goes on, with a zero byte between them.
fn continue_one(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |&byte| byte == 0);
    let (Some(body), Some(first), Some(second)) = (parts.next(), parts.next(), parts.next()) else { return };
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        let mut kept = Kept::new(endpoint, Budget::default());
        kept.saw(first);
        let splice = match kept.way(body) {
            Err(_) => continue,
            Ok(Way::Again) => kept.splice_again(),
            Ok(Way::On(rest)) => {
                for runtime in catalogue().iter() {
                    if let (Some(way), Some(tokenize)) = (&runtime.continuation, &runtime.tokenize) {
                        for asked in [rest.request(way, 7), rest.count(tokenize, "m")] {
                            assert!(serde_json::from_slice::<serde_json::Value>(&asked).is_ok(), "asked for no JSON");
                        }
                    }
                }
                kept.splice(&rest, 7)
            }
        };
        if let Some(mut splice) = splice {
            let out = splice.push(second);
            kept.saw(&out);
        }
    }
}

/// A request's body.
fn peek(bytes: &[u8]) {
    match request::peek(bytes) {
        Ok(peek) => assert!(!peek.model.as_str().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What an engine says of a text's tokens.
fn counted(bytes: &[u8]) {
    for tokenize in catalogue().iter().filter_map(|runtime| runtime.tokenize.as_ref()) {
        let _ = continuation::counted(tokenize, bytes);
    }
}

#[cfg(test)]
#[path = "../../fuzz/nearly.rs"]
mod nearly;

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Say \u00e9"}],"stream":true,"max_tokens":64,"stop":["x"]}"#;
    const CHAT: &str = "data: {\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"},\"finish_reason\":null}]}\r\n\r\n: ping\n\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" two\"},\"finish_reason\":null}]}\n\n";
    const END: &str = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\ndata: [DONE]\n\n";
    const MESSAGES: &str = "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let text = |text: &str| text.as_bytes().to_vec();
        match name {
            "events" => {
                vec![text(&format!("\u{3}{CHAT}{END}")), text(&format!("\u{9}{MESSAGES}")), text("\u{1}data: [DONE]")]
            }
            "continuation" => vec![
                text(&format!("{BODY}\0{CHAT}\0{CHAT}{END}")),
                text(&format!(
                    "{}\0{}\0{END}",
                    r#"{"model":"m","prompt":"a","max_tokens":9,"stream":true}"#,
                    CHAT.replace("delta\":{\"content\":\"one\"}", "text\":\"one\"")
                )),
            ],
            "request" => {
                vec![text(BODY), text("\u{feff}{\"model\":\"a/b\",\"prompt\":[\"a\",\"b\"],\"stream\":false}")]
            }
            _ => vec![text(r#"{"count":7,"tokens":[1,2]}"#), text(r#"{"tokens":[1,2,3]}"#)],
        }
    }

    #[test]
    fn bytes_that_are_nearly_right_break_nothing() {
        for (name, parser) in PARSERS {
            nearly::try_with(name, &seeds(name), parser);
        }
    }
}

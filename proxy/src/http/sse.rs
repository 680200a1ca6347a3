//! Watches a stream of events go by, without changing a byte: whether it ended as such a stream must, and where one
//! event ends. Pure.
//!
//! Only whole events are passed on. Engines write whole events, so nothing waits in the normal case; but when a replica
//! dies in the middle of one, an error event can still follow what the client has.

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// Largest event that is held together; of a longer one the pieces go out as they come.
const EVENT_BYTES: usize = 1 << 20;

/// How a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// More must come.
    Open,
    /// Every choice is finished, only the closing `[DONE]` is due.
    Finished,
    /// The terminal event has gone by.
    Complete,
}

/// A watched stream.
#[derive(Debug)]
pub(crate) struct Watch {
    stage: Stage,
    held: BytesMut,
    /// What comes next continues a line whose head has gone out.
    mid_line: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self { stage: Stage::Open, held: BytesMut::new(), mid_line: false }
    }
}

impl Watch {
    /// Takes what came and returns what may go out: all of it, as a rule; nothing while an event is incomplete.
    pub(crate) fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.held.is_empty() && chunk.ends_with(b"\n\n") {
            self.look(&chunk);
            return chunk;
        }
        self.held.extend_from_slice(&chunk);
        let end = match last_boundary(&self.held) {
            Some(end) => end,
            None if self.held.len() > EVENT_BYTES => self.held.len(),
            None => return Bytes::new(),
        };
        let whole = self.held.split_to(end).freeze();
        self.look(&whole);
        whole
    }

    /// What was held back when the stream ended by itself.
    pub(crate) fn rest(&mut self) -> Bytes {
        let rest = self.held.split().freeze();
        self.look(&rest);
        rest
    }

    /// How the stream stands.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    fn look(&mut self, events: &[u8]) {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', events).chain([events.len()]) {
            if start > 0 || !self.mid_line {
                self.stage = self.stage.max(stage_of(&events[start..end]));
            }
            start = end + 1;
        }
        self.mid_line = !events.is_empty() && !events.ends_with(b"\n");
    }
}

/// What a line says about the stream.
fn stage_of(line: &[u8]) -> Stage {
    if let Some(data) = field(line, b"data:") {
        return match data {
            data if data.starts_with(b"[DONE]") || data.starts_with(br#"{"error""#) => Stage::Complete,
            data if has_finish_reason(data) => Stage::Finished,
            _ => Stage::Open,
        };
    }
    match field(line, b"event:").map(<[u8]>::trim_ascii_end) {
        Some(b"response.completed" | b"response.failed" | b"response.incomplete" | b"message_stop" | b"error") => {
            Stage::Complete
        }
        _ => Stage::Open,
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(name).map(<[u8]>::trim_ascii_start)
}

/// Whether a chunk of a chat or completion has a `finish_reason` that is text. Inside a JSON string the quotes would be
/// escaped, so generated text is never mistaken for it.
fn has_finish_reason(data: &[u8]) -> bool {
    const NAME: &[u8] = br#""finish_reason":"#;
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(NAME));
    let at = FINDER.find(data);
    at.and_then(|at| data.get(at + NAME.len()..)).is_some_and(|value| value.trim_ascii_start().starts_with(b"\""))
}

/// Where the last whole event ends.
fn last_boundary(bytes: &[u8]) -> Option<usize> {
    let lines = memchr::memmem::rfind(bytes, b"\n\n").map(|at| at + 2);
    let carriage = memchr::memmem::rfind(bytes, b"\n\r\n").map(|at| at + 3);
    lines.max(carriage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHAT: &str = "data: {\"choices\":[{\"finish_reason\":null,\"delta\":{\"content\":\"a\"}}]}\n\n\
        data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}]}\n\ndata: [DONE]\n\n";

    fn run(pieces: &[&str]) -> (String, Stage, String) {
        let mut watch = Watch::default();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&watch.push(Bytes::copy_from_slice(piece.as_bytes())));
        }
        let (out, stage) = (String::from_utf8(out).unwrap(), watch.stage());
        (out, stage, String::from_utf8(watch.rest().to_vec()).unwrap())
    }

    #[test]
    fn terminal_events_of_every_dialect_are_seen() {
        for complete in [
            CHAT,
            "data:[DONE]\n\n",
            "event: response.completed\ndata: {}\n\n",
            "event: message_stop\r\ndata: {}\r\n\r\n",
            "event: error\ndata: {}\n\n",
            "data: {\"error\":{\"message\":\"x\"}}\n\n",
        ] {
            assert_eq!(run(&[complete]).1, Stage::Complete, "{complete}");
        }
        let finished = "data: {\"choices\":[{\"finish_reason\": \"length\"}]}\n\n";
        assert_eq!(run(&[finished]).1, Stage::Finished);
    }

    #[test]
    fn text_that_looks_like_an_end_is_none() {
        for open in [
            "data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"},\"finish_reason\":null}]}\n\n",
            "data: {\"content\":\"\\\"finish_reason\\\":\\\"stop\\\"\",\"finish_reason\":null}\n\n",
            "event: response.output_text.delta\ndata: {}\n\n",
            ": [DONE]\n\n",
        ] {
            assert_eq!(run(&[open]).1, Stage::Open, "{open}");
        }
    }

    #[test]
    fn an_event_that_is_not_whole_is_held_back() {
        let (out, stage, rest) = run(&["data: {\"a\":1}\n\ndata: {\"b\"", ":2"]);
        assert_eq!((out.as_str(), stage, rest.as_str()), ("data: {\"a\":1}\n\n", Stage::Open, "data: {\"b\":2"));
    }

    #[test]
    fn whole_events_are_not_copied() {
        let chunk = Bytes::from_static(b"data: {}\n\n");
        assert_eq!(Watch::default().push(chunk.clone()).as_ptr(), chunk.as_ptr());
    }

    #[test]
    fn endless_events_are_not_held_for_ever() {
        let mut watch = Watch::default();
        let piece = Bytes::from(vec![b'x'; 64 << 10]);
        let out: usize = (0..64).map(|_| watch.push(piece.clone()).len()).sum();
        assert!(out >= 2 << 20);
    }

    #[test]
    fn captured_streams_end_as_they_must() {
        for name in ["llamacpp/chat_stream.txt", "vllm/chat_stream.txt", "llamacpp/responses_stream.txt"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name);
            // The captures are copied into the repository by whoever tests engines with them.
            let Ok(text) = std::fs::read_to_string(path) else { continue };
            assert_eq!(run(&[&text]).1, Stage::Complete, "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_changed_wherever_it_is_cut(cuts in proptest::collection::vec(1usize..40, 0..30)) {
            let mut pieces = Vec::new();
            let mut rest = CHAT;
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            let (out, stage, held) = run(&pieces);
            prop_assert_eq!(out, CHAT);
            prop_assert_eq!(held, "");
            prop_assert_eq!(stage, Stage::Complete);
        }
    }
}

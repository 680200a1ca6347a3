//! Watches a stream of events go by, without changing a byte: whether it ended as such a stream must, and where one
//! event ends. Pure.
//!
//! Only whole events are passed on. Engines write whole events, so nothing waits in the normal case; but when a replica
//! dies in the middle of one, an error event can still follow what the client has.

mod opening;

pub(crate) use opening::{Opening, comments, is_comment, opening};

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use std::{borrow::Cow, sync::LazyLock};

/// Largest event that is held together; of a longer one the pieces go out as they come.
const EVENT_BYTES: usize = 1 << 20;

/// How OpenAI's streams of speech and images end.
const MEDIA_ENDS: [&[u8]; 4] = [
    br#"{"type":"transcript.text.done""#,
    br#"{"type":"speech.audio.done""#,
    br#"{"type":"image_generation.completed""#,
    br#"{"type":"image_edit.completed""#,
];

/// How a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// More must come.
    Open,
    /// Every choice that began is finished, only the closing `[DONE]` is due.
    Finished,
    /// The terminal event has gone by.
    Complete,
    /// The engine itself said that it failed.
    Failed,
}

/// A watched stream.
#[derive(Debug)]
pub(crate) struct Watch {
    stage: Stage,
    choices: Choices,
    held: BytesMut,
    /// What comes next continues a line whose head has gone out.
    mid_line: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self { stage: Stage::Open, choices: Choices::default(), held: BytesMut::new(), mid_line: false }
    }
}

impl Watch {
    /// Takes what came and returns what may go out: all of it, as a rule; nothing while an event is incomplete.
    pub(crate) fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.held.is_empty() && last_boundary(&chunk, self.mid_line) == Some(chunk.len()) {
            self.look(&chunk);
            return chunk;
        }
        self.held.extend_from_slice(&chunk);
        let end = match last_boundary(&self.held, self.mid_line) {
            Some(end) => end,
            None if self.held.len() > EVENT_BYTES => self.held.len(),
            None => return Bytes::new(),
        };
        let whole = self.held.split_to(end).freeze();
        self.look(&whole);
        whole
    }

    /// What was held back when the stream ended by itself: `Some` when it is an event that lacks only its end. After an
    /// error that may be the closing `[DONE]`, which says nothing new but belongs to the answer.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let (rest, before) = (self.held.split().freeze(), self.stage());
        let terminal = !self.mid_line && lines(&rest).any(|line| stage_of(line) > Stage::Open);
        self.look(&rest);
        (terminal || self.stage() > before).then_some(rest)
    }

    /// Whether a part of an event went by whose line hasn't ended: it was too large to be held back.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.mid_line
    }

    /// How the stream stands.
    pub(crate) fn stage(&self) -> Stage {
        let finished = if self.choices.all_finished() { Stage::Finished } else { Stage::Open };
        self.stage.max(finished)
    }

    fn look(&mut self, events: &[u8]) {
        for line in lines(events).skip(usize::from(self.mid_line)) {
            self.stage = self.stage.max(stage_of(line));
            if let Some(data) = field(line, b"data:") {
                self.choices.look(data);
            }
        }
        if let Some(last) = events.last() {
            self.mid_line = !ends_line(*last);
        }
    }
}

/// Lines end with LF, CR or both (HTML standard, 9.2.5). The empty lines that this makes of CR LF mean nothing.
fn lines(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr::memchr2_iter(b'\n', b'\r', events).chain([events.len()]).map(move |end| {
        let line = &events[start..end];
        start = end + 1;
        line
    })
}

/// The data of each line of `events` that has some.
pub(crate) fn data_of(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines(events).filter_map(|line| field(line, b"data:"))
}

/// The events of `bytes`, each with the empty line that ends it; the last perhaps without.
pub(crate) fn events_of(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = first_boundary(bytes).unwrap_or(bytes.len());
        let (event, rest) = bytes.split_at(end);
        bytes = rest;
        (!event.is_empty()).then_some(event)
    })
}

/// Where the first event ends: after an empty line.
fn first_boundary(bytes: &[u8]) -> Option<usize> {
    let end = memchr::memchr2_iter(b'\n', b'\r', bytes).find(|&at| {
        let both = bytes[at] == b'\n' && at > 0 && bytes[at - 1] == b'\r';
        at > 0 && !both && ends_line(bytes[at - 1])
    })?;
    let both = bytes[end] == b'\r' && bytes.get(end + 1) == Some(&b'\n');
    Some(if both { end + 2 } else { end + 1 })
}

fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// What a line says about the stream.
fn stage_of(line: &[u8]) -> Stage {
    if let Some(data) = field(line, b"data:") {
        return match data {
            data if data.starts_with(br#"{"error""#) => Stage::Failed,
            data if data.starts_with(b"[DONE]") || MEDIA_ENDS.iter().any(|end| data.starts_with(end)) => {
                Stage::Complete
            }
            _ => Stage::Open,
        };
    }
    match field(line, b"event:").map(<[u8]>::trim_ascii_end) {
        Some(b"response.failed" | b"error") => Stage::Failed,
        Some(b"response.completed" | b"response.incomplete" | b"message_stop") => Stage::Complete,
        _ => Stage::Open,
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(name).map(<[u8]>::trim_ascii_start)
}

/// Which choices of a chat or completion have begun, and which of them are finished.
#[derive(Debug)]
struct Choices {
    /// One bit per index. There always is a first one.
    begun: u128,
    finished: u128,
    /// There are more than can be counted, so that it is never known that all are finished.
    uncounted: bool,
}

/// What is read of an event to count choices.
#[derive(serde::Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
}

#[derive(serde::Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

impl Default for Choices {
    fn default() -> Self {
        Self { begun: 1, finished: 0, uncounted: false }
    }
}

impl Choices {
    fn all_finished(&self) -> bool {
        !self.uncounted && self.begun & !self.finished == 0
    }

    fn look(&mut self, data: &[u8]) {
        if !tells_of_choices(data) {
            return;
        }
        // Not JSON, or none of a chat or completion: nothing is known to be finished by it.
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return };
        for choice in chunk.choices {
            let Some(bit) = 1u128.checked_shl(choice.index) else {
                self.uncounted = true;
                continue;
            };
            self.begun |= bit;
            if choice.finish_reason.is_some() {
                self.finished |= bit;
            }
        }
    }
}

/// Whether an event says more of its choices than that the first one goes on, which most events don't and need not be
/// parsed for. Inside a JSON string the quotes would be escaped, so generated text is never mistaken for it.
fn tells_of_choices(data: &[u8]) -> bool {
    static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""finish_reason":"#));
    static INDEX: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""index":"#));
    let any = |finder: &Finder<'_>, is: fn(u8) -> bool| {
        let values = finder.find_iter(data).filter_map(|at| data.get(at + finder.needle().len()..));
        let mut firsts = values.filter_map(|value| value.trim_ascii_start().first());
        firsts.any(|first| is(*first))
    };
    any(&REASON, |first| first == b'"') || any(&INDEX, |first| (b'1'..=b'9').contains(&first))
}

/// Where the last whole event ends: after an empty line. `mid_line` says that `bytes` begin within a line; else the line
/// before them has ended, perhaps with a CR whose LF is yet to come.
fn last_boundary(bytes: &[u8], mid_line: bool) -> Option<usize> {
    memchr::memrchr2_iter(b'\n', b'\r', bytes).find_map(|last| {
        let both = bytes[last] == b'\n' && last > 0 && bytes[last - 1] == b'\r';
        let start = if both { last - 1 } else { last };
        let is_empty = if start == 0 { !mid_line } else { ends_line(bytes[start - 1]) };
        is_empty.then_some(last + 1)
    })
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
        (out, stage, watch.rest().map(|rest| String::from_utf8(rest.to_vec()).unwrap()).unwrap_or_default())
    }

    #[test]
    fn terminal_events_of_every_dialect_are_seen() {
        for complete in [
            CHAT,
            "data:[DONE]\n\n",
            "event: response.completed\ndata: {}\n\n",
            "event: message_stop\r\ndata: {}\r\n\r\n",
            "event: response.incomplete\ndata: {}\n\n",
        ] {
            assert_eq!(run(&[complete]).1, Stage::Complete, "{complete}");
        }
        for failed in [
            "event: error\ndata: {}\n\n",
            "event: response.failed\ndata: {}\n\n",
            "data: {\"error\":{\"message\":\"x\"}}\n\n",
            // vLLM closes a stream properly after its error.
            "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n",
        ] {
            assert_eq!(run(&[failed]).1, Stage::Failed, "{failed}");
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
    fn every_choice_must_finish() {
        let chunk = |index: u32, reason: &str| {
            format!("data: {{\"choices\":[{{\"index\": {index},\"delta\":{{}},\"finish_reason\":{reason}}}]}}\n\n")
        };
        let (one, other) = (chunk(0, "null"), chunk(1, "null"));
        let (one_ends, other_ends) = (chunk(0, "\"stop\""), chunk(1, "\"stop\""));
        assert_eq!(run(&[&one, &other, &one_ends]).1, Stage::Open);
        assert_eq!(run(&[&one, &other, &other_ends]).1, Stage::Open);
        assert_eq!(run(&[&one, &other, &other_ends, &one_ends]).1, Stage::Finished);
        // Two in one event.
        let both = |a: &str, b: &str| {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"finish_reason\":{a}}},{{\"index\":1,\"finish_reason\":{b}}}]}}\n\n"
            )
        };
        assert_eq!(run(&[&both("\"stop\"", "null")]).1, Stage::Open);
        assert_eq!(run(&[&both("\"stop\"", "null"), &other_ends]).1, Stage::Finished);
        // One that begins after another has finished takes the end back.
        assert_eq!(run(&[&one_ends, &other]).1, Stage::Open);
        // The calls of tools are counted too, and are no choices.
        let tool =
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":1}]},\"finish_reason\":null}]}\n\n";
        assert_eq!(run(&[tool, &one_ends]).1, Stage::Finished);
    }

    #[test]
    fn events_are_told_apart_however_their_lines_end() {
        for end in ["\n", "\r\n", "\r"] {
            let events = [": ping\n\n", "event: a\ndata: 1\n\n", "data: 2\ndata: 3\n\n", "data: 4"]
                .map(|it| it.replace('\n', end));
            let whole = events.concat();
            assert_eq!(
                events_of(whole.as_bytes()).collect::<Vec<_>>(),
                events.each_ref().map(|it| it.as_bytes()),
                "{end:?}"
            );
            assert_eq!(data_of(whole.as_bytes()).collect::<Vec<_>>(), [b"1", b"2", b"3", b"4"], "{end:?}");
        }
        assert_eq!(events_of(b"").count(), 0);
    }

    #[test]
    fn an_event_that_is_not_whole_is_held_back() {
        let (out, stage, rest) = run(&["data: {\"a\":1}\n\ndata: {\"b\"", ":2"]);
        assert_eq!((out.as_str(), stage, rest.as_str()), ("data: {\"a\":1}\n\n", Stage::Open, ""));
        assert_eq!(run(&["data: {\"a\":1}\n\ndata: [DO", "NE]"]).2, "data: [DONE]");
        // After an error too: some clients wait for it.
        let failed = "data: {\"error\":{}}\n\n";
        assert_eq!(run(&[failed, "data: [DONE]"]), (failed.to_owned(), Stage::Failed, "data: [DONE]".to_owned()));
        assert_eq!(run(&[failed, "data: [DO"]).2, "");
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

    #[test]
    fn lines_end_as_the_standard_allows() {
        for end in ["\n", "\r\n", "\r"] {
            let open = "data: {\"a\":1}\n\n".replace('\n', end);
            assert_eq!(run(&[&open, "data: {\"b\""]), (open.clone(), Stage::Open, String::new()), "{end:?}");
            assert_eq!(run(&[&CHAT.replace('\n', end)]).1, Stage::Complete, "{end:?}");
            let failed = "event: error\ndata: {}\n\n".replace('\n', end);
            assert_eq!(run(&[&failed]).1, Stage::Failed, "{end:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_changed_wherever_it_is_cut(
            cuts in proptest::collection::vec(1usize..40, 0..30),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        ) {
            let chat = CHAT.replace('\n', end);
            let mut pieces = Vec::new();
            let mut rest = chat.as_str();
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            let (out, stage, held) = run(&pieces);
            prop_assert_eq!(&out, &chat);
            prop_assert_eq!(held, "");
            prop_assert_eq!(stage, Stage::Complete);
        }
    }
}

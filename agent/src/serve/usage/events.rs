//! The usage in a stream of events, and the event that nobody asked for taken out.

use super::counts::Counts;
use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde_json::Value;

/// Longest event that is held together to be looked at; of a longer one the pieces go by unseen.
const EVENT_BYTES: usize = 1 << 20;
/// Within a string of JSON the quotes would be escaped.
const WORDS: [&[u8]; 2] = [b"\"usage\"", b"\"timings\""];

/// A stream that passes.
#[derive(Debug)]
pub(super) struct Events {
    /// The engine was asked for an event that goes no further.
    added: bool,
    /// The beginning of an event. Where nothing is to be taken out it has gone out already.
    held: BytesMut,
    /// The rest of an event that was too long.
    skipping: bool,
}

impl Events {
    pub(super) fn new(added: bool) -> Self {
        Self { added, held: BytesMut::new(), skipping: false }
    }

    /// Takes what came; returns what goes out.
    pub(super) fn pass(&mut self, chunk: Bytes, counts: &mut Counts) -> Bytes {
        if self.held.is_empty() && ends_event(&chunk) && !may_tell(&chunk) {
            self.skipping = false;
            return chunk;
        }
        if self.added { self.sift(&chunk, counts) } else { self.watch(chunk, counts) }
    }

    /// The stream is over: what was held back.
    pub(super) fn rest(&mut self, counts: &mut Counts) -> Bytes {
        let rest = self.held.split().freeze();
        let was_asked_for = !look(&rest, counts);
        if self.added && was_asked_for { rest } else { Bytes::new() }
    }

    /// Everything goes out at once.
    fn watch(&mut self, chunk: Bytes, counts: &mut Counts) -> Bytes {
        self.held.extend_from_slice(&chunk);
        while let Some(end) = first_end(&self.held) {
            let event = self.held.split_to(end);
            if !std::mem::take(&mut self.skipping) {
                look(&event, counts);
            }
        }
        if self.held.len() > EVENT_BYTES {
            self.held.clear();
            self.skipping = true;
        }
        chunk
    }

    /// Whole events go out, but for the one that was added.
    fn sift(&mut self, chunk: &Bytes, counts: &mut Counts) -> Bytes {
        self.held.extend_from_slice(chunk);
        let mut out = BytesMut::with_capacity(self.held.len());
        while let Some(end) = first_end(&self.held) {
            let event = self.held.split_to(end);
            let skipped = std::mem::take(&mut self.skipping);
            if skipped || !look(&event, counts) {
                out.extend_from_slice(&event);
            }
        }
        if self.held.len() > EVENT_BYTES {
            out.extend_from_slice(&self.held.split());
            self.skipping = true;
        }
        out.freeze()
    }
}

#[cfg(test)]
impl Events {
    pub(super) fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// Reads the counts of an event. Whether it is the one that engines send for `include_usage`: without any choice.
fn look(event: &[u8], counts: &mut Counts) -> bool {
    if !may_tell(event) {
        return false;
    }
    let data = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data:"));
    let Some(event) = data.and_then(|data| serde_json::from_slice::<Value>(data).ok()) else { return false };
    counts.take_event(&event);
    let no_choice = event.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
    no_choice && event.get("usage").is_some_and(Value::is_object)
}

fn may_tell(bytes: &[u8]) -> bool {
    WORDS.iter().any(|word| memmem::find(bytes, word).is_some())
}

fn ends_event(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n")
}

/// Where the first event ends.
fn first_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find_map(|at| match bytes.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

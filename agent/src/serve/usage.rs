//! What a request used: asked of the engine where the client did not ask, and read from its answer as that goes by.
//!
//! Engines tell the usage of a stream only when `stream_options.include_usage` is set. The agent sets it, since it knows
//! its engine, and takes the event that this adds out again, so that the client's stream stays what it asked for.

mod asking;
mod counts;
mod events;
mod field;

pub(super) use asking::{Asking, asked};

use bytes::Bytes;
use counts::Counts;
use dunlin_protocol::usage::Usage;
use events::Events;
use field::TopLevel;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// Reads the usage from an answer that passes.
pub(super) struct Reading {
    counts: Counts,
    form: Form,
}

enum Form {
    /// Tells nothing.
    Other,
    /// One JSON object with a field `usage`.
    Json(TopLevel),
    Events(Events),
}

impl Reading {
    /// Of an answer with this head. `added`: the engine was asked on nobody's behalf, and what it says for that goes no
    /// further.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, added: bool) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is = |name: &str| kind.get(..name.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(name.as_bytes()));
        let plain = !headers.contains_key(header::CONTENT_ENCODING);
        let form = match () {
            () if !status.is_success() || !plain => Form::Other,
            () if is("text/event-stream") => Form::Events(Events::new(added)),
            () if is("application/json") => Form::Json(TopLevel::new(b"usage")),
            () => Form::Other,
        };
        Self { counts: Counts::default(), form }
    }

    /// Whether there may be something to tell behind the answer's last byte.
    pub(super) fn is_on(&self) -> bool {
        !matches!(self.form, Form::Other)
    }

    /// Takes what came; returns what goes out, which may be nothing.
    pub(super) fn pass(&mut self, chunk: Bytes) -> Bytes {
        match &mut self.form {
            Form::Other => chunk,
            Form::Json(usage) => {
                if let Some(value) = usage.push(&chunk) {
                    self.counts.take_usage(value);
                }
                chunk
            }
            Form::Events(events) => events.pass(chunk, &mut self.counts),
        }
    }

    /// The answer is over: what was held back of it.
    pub(super) fn rest(&mut self) -> Bytes {
        match &mut self.form {
            Form::Events(events) => events.rest(&mut self.counts),
            Form::Other | Form::Json(_) => Bytes::new(),
        }
    }

    /// What the engine told.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.counts.usage()
    }
}

#[cfg(test)]
mod tests;

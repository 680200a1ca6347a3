//! An answer's body on its way from the engine to the hop: counted as it passes, nothing held back, nothing copied.

use super::{Service, forward::load_header, usage::Reading};
use crate::{
    admit::gate::Pass,
    counters::Meter,
    outcomes::Outcome,
    replica::{Replica, health::Traffic},
};
use bytes::Bytes;
use dunlin_node::hop::Silence;
use dunlin_protocol::hop::{LOAD, USAGE};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// Longest silence once the last event has come: some engines leave the connection open behind it.
const DONE_SILENCE: Duration = Duration::from_secs(1);
/// How a stream of OpenAI's endpoints ends, blanks aside. One that is cut elsewhere is not seen, and waits for longer.
const DONE: &[u8] = b"data: [DONE]";

/// Why an answer broke off. The hop turns it into a reset stream, so that nobody takes the part for the whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the engine's answer broke off: {0}")]
    Engine(#[from] hyper::Error),
    #[error("the engine fell silent in the middle of an answer")]
    Silent,
    #[error("the engine's answer has no end: over {0} bytes have come")]
    Endless(u64),
}

/// What the rest of an answer is held to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Longest silence.
    pub(super) silence: Duration,
    /// Largest body.
    pub(super) bytes: u64,
}

/// The body of an engine's answer. Dropping it closes the connection to the engine, which aborts the request there, and
/// gives the slot back.
pub(super) struct Relay {
    /// The piece that was waited for before the head went out.
    first: Option<Bytes>,
    body: Incoming,
    service: Arc<Service>,
    replica: Arc<Replica>,
    /// Given back at the end of the body, before the trailer tells the load.
    pass: Option<Pass>,
    meter: Meter,
    stream: bool,
    counts_as_answer: bool,
    usage: Reading,
    /// What it is counted as when it goes out whole.
    outcome: Outcome,
    /// Its last event has come.
    done: bool,
    silence: Silence,
    limits: Limits,
    /// Bytes that have come.
    bytes: u64,
    ended: bool,
}

impl Relay {
    pub(super) fn new(
        (first, body): (Option<Bytes>, Incoming),
        service: Arc<Service>,
        replica: Arc<Replica>,
        (pass, meter): (Option<Pass>, Meter),
        limits: Limits,
        (stream, usage): (bool, Reading),
        (outcome, counts_as_answer): (Outcome, bool),
    ) -> Self {
        // What comments are worth is the proxy's to say, who knows what else there is.
        let silence = Silence::new(limits.silence, Duration::MAX);
        Self {
            first,
            body,
            service,
            replica,
            pass,
            meter,
            stream,
            counts_as_answer,
            usage,
            outcome,
            done: false,
            silence,
            limits,
            bytes: 0,
            ended: false,
        }
    }

    /// Everything has come. Returns the trailers: what was used, where the engine told, and of a stream the load.
    fn end(&mut self) -> Option<HeaderMap> {
        self.ended = true;
        self.replica.outcomes.count(self.outcome);
        if self.counts_as_answer {
            self.meter.finish(Instant::now());
            self.replica.health().saw(Traffic::Answered);
        }
        self.pass = None;
        let load = if self.stream { load_header(&self.service, &self.replica) } else { None };
        let usage = self.usage.usage().and_then(|usage| HeaderValue::try_from(usage.to_header()).ok());
        let trailers = [load.map(|load| (LOAD, load)), usage.map(|usage| (USAGE, usage))];
        let trailers: HeaderMap =
            trailers.into_iter().flatten().map(|(name, value)| (HeaderName::from_static(name), value)).collect();
        (!trailers.is_empty()).then_some(trailers)
    }

    /// The engine has said all.
    fn finished(&mut self) -> Option<Frame<Bytes>> {
        let rest = self.usage.rest();
        if !rest.is_empty() {
            return Some(Frame::data(rest));
        }
        self.end().map(Frame::trailers)
    }

    fn break_off(&mut self, error: Error) -> Error {
        tracing::debug!(replica = self.replica.index, %error, "answer broke off");
        self.ended = true;
        self.pass = None;
        self.replica.outcomes.count(Outcome::Broken);
        self.replica.request_failed();
        error
    }

    /// What goes out of a piece that came.
    fn came(&mut self, piece: Bytes) -> Result<Bytes, Error> {
        self.silence.broken();
        self.bytes += piece.len() as u64;
        if self.bytes > self.limits.bytes {
            return Err(self.break_off(Error::Endless(self.limits.bytes)));
        }
        if self.stream {
            self.meter.chunk(Instant::now());
            if piece.trim_ascii_end().ends_with(DONE) {
                self.done = true;
                self.silence.limit(DONE_SILENCE);
            }
        }
        Ok(self.usage.pass(piece))
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                std::task::ready!(self.silence.poll(cx));
                return Poll::Ready((!self.done).then_some(Err(Error::Silent)));
            };
            match frame.transpose() {
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
                Ok(None) => return Poll::Ready(None),
                // Engines send no trailers that anybody reads; ours take their place. An empty DATA frame is counted
                // against the whole connection by HTTP/2.
                Ok(Some(frame)) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Poll::Ready(Some(Ok(piece))),
                    _ => {}
                },
            }
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            let piece = match std::task::ready!(this.poll_piece(cx)) {
                Some(Ok(piece)) => this.came(piece),
                Some(Err(error)) => Err(this.break_off(error)),
                None => return Poll::Ready(this.finished().map(Ok)),
            };
            if !piece.as_ref().is_ok_and(Bytes::is_empty) {
                return Poll::Ready(Some(piece.map(Frame::data)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let all_read = self.first.is_none() && self.body.is_end_stream();
        self.ended || (!self.stream && !self.usage.is_on() && all_read)
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        match self.body.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // With a length given, the hop asks no more after the last byte.
        if self.ended {
            return;
        }
        if self.first.is_none() && self.body.is_end_stream() {
            self.end();
            return;
        }
        self.replica.outcomes.count(Outcome::HungUp);
        if self.stream && self.meter.was_abandoned(Instant::now()) {
            self.replica.request_failed();
        }
    }
}

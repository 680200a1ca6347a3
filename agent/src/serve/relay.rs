//! An answer's body on its way from the engine to the hop: counted as it passes, nothing held back, nothing copied.

use super::{Service, forward::load_header, usage::Reading};
use crate::{
    admit::gate::Pass,
    counters::Meter,
    outcomes::Outcome,
    replica::{Replica, health::Traffic},
};
use bytes::Bytes;
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
use tokio::time::{Sleep, sleep};

/// Longest silence in the middle of a stream. Engines that work say something each second or ping each half minute.
const STREAM_SILENCE: Duration = Duration::from_secs(60);
/// The same once the last event has come: some engines leave the connection open behind it.
const DONE_SILENCE: Duration = Duration::from_secs(1);
/// How a stream of OpenAI's endpoints ends, blanks aside. One that is cut elsewhere is not seen, and waits for longer.
const DONE: &[u8] = b"data: [DONE]";
/// The same in an answer that comes whole, between its head and its body.
const SILENCE: Duration = Duration::from_secs(600);

/// Why an answer broke off. The hop turns it into a reset stream, so that nobody takes the part for the whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the engine's answer broke off: {0}")]
    Engine(#[from] hyper::Error),
    #[error("the engine fell silent in the middle of an answer")]
    Silent,
}

/// The body of an engine's answer. Dropping it closes the connection to the engine, which aborts the request there, and
/// gives the slot back.
pub(super) struct Relay {
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
    last: Instant,
    /// Its last event has come.
    done: bool,
    /// How long it may be silent.
    patience: Duration,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

impl Relay {
    pub(super) fn new(
        body: Incoming,
        service: Arc<Service>,
        replica: Arc<Replica>,
        pass: Option<Pass>,
        meter: Meter,
        (stream, usage): (bool, Reading),
        (outcome, counts_as_answer): (Outcome, bool),
    ) -> Self {
        let patience = if stream { STREAM_SILENCE } else { SILENCE };
        let silence = Box::pin(sleep(patience));
        Self {
            body,
            service,
            replica,
            pass,
            meter,
            stream,
            counts_as_answer,
            usage,
            outcome,
            last: Instant::now(),
            done: false,
            patience,
            silence,
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
        self.ended = true;
        self.pass = None;
        self.replica.outcomes.count(Outcome::Broken);
        self.replica.request_failed();
        error
    }

    /// The clock is wound up again only when it has run down, not for each chunk.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        while self.silence.as_mut().poll(cx).is_ready() {
            let since = self.last.elapsed();
            if since >= self.patience {
                return true;
            }
            self.silence.as_mut().reset(tokio::time::Instant::now() + (self.patience - since));
        }
        false
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
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
                if this.is_silent(cx) {
                    if this.done {
                        return Poll::Ready(this.finished().map(Ok));
                    }
                    return Poll::Ready(Some(Err(this.break_off(Error::Silent))));
                }
                return Poll::Pending;
            };
            match frame {
                // An empty DATA frame is counted against the whole connection by HTTP/2.
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Some(Ok(frame)) => {
                    // Engines send no trailers that anybody reads; ours take their place.
                    let Ok(data) = frame.into_data() else { continue };
                    if this.stream {
                        this.last = Instant::now();
                        this.meter.chunk(this.last);
                        if data.trim_ascii_end().ends_with(DONE) {
                            this.done = true;
                            this.patience = DONE_SILENCE;
                            this.silence.as_mut().reset(tokio::time::Instant::now() + DONE_SILENCE);
                        }
                    }
                    let data = this.usage.pass(data);
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(this.break_off(error.into())))),
                None => return Poll::Ready(this.finished().map(Ok)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || (!self.stream && !self.usage.is_on() && self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // With a length given, the hop asks no more after the last byte.
        if self.ended {
            return;
        }
        if self.body.is_end_stream() {
            self.end();
            return;
        }
        self.replica.outcomes.count(Outcome::HungUp);
        if self.stream && self.meter.was_abandoned(Instant::now()) {
            self.replica.request_failed();
        }
    }
}

//! A replica's answer on its way to the client.

use super::Broken;
use crate::{
    errors,
    http::{
        endpoint::Dialect,
        sse::{Stage, Watch},
    },
    metrics::Metrics,
    pool::Lease,
};
use bytes::Bytes;
use dunlin_node::{Handle, hop::ResponseBody};
use dunlin_protocol::{hop, load::LoadReport};
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// How OpenAI's streams end.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Passes the bytes on as they come. Holds the replica's slot until the end, however it comes, and sees to it that a
/// stream that broke off doesn't look like one that ended.
pub(crate) struct Relay {
    /// The piece that was waited for before anything was sent.
    first: Option<Bytes>,
    rest: Option<ResponseBody>,
    /// Set for event streams.
    watch: Option<(Watch, Dialect)>,
    lease: Option<Lease>,
    /// The answer is an error of the engine: that it came whole is no success.
    failing: bool,
    /// The report of the trailers.
    last_load: Option<LoadReport>,
    handle: Handle,
    metrics: Arc<Metrics>,
}

impl Relay {
    /// `first` is what has been read of the body already; `watch` is set for event streams; `failing` for an answer
    /// that is an error of the engine.
    pub(crate) fn new(
        (first, rest): (Option<Bytes>, ResponseBody),
        watch: Option<Dialect>,
        failing: bool,
        lease: Lease,
        handle: Handle,
        metrics: Arc<Metrics>,
    ) -> Self {
        let watch = watch.map(|dialect| (Watch::default(), dialect));
        let all_there = rest.is_end_stream();
        let mut relay =
            Self { first, rest: Some(rest), watch, lease: Some(lease), failing, last_load: None, handle, metrics };
        if all_there {
            relay.rest = None;
            // The slot goes back now, not when the client has read the answer. A stream has yet to prove itself whole.
            if relay.watch.is_none() {
                relay.succeeded();
            }
        }
        relay
    }

    /// Whether the answer is a stream of events.
    pub(crate) fn is_event_stream(&self) -> bool {
        self.watch.is_some()
    }

    /// What goes out of what came in.
    fn pass(&mut self, piece: Bytes) -> Option<Frame<Bytes>> {
        let out = match &mut self.watch {
            Some((watch, _)) => watch.push(piece),
            None => piece,
        };
        (!out.is_empty()).then(|| Frame::data(out))
    }

    fn take_load(&mut self, trailers: &http::HeaderMap) {
        let report = trailers.get(hop::LOAD).and_then(|value| value.to_str().ok()).map(LoadReport::from_header);
        self.last_load = report.and_then(Result::ok);
    }

    /// Gives the slot back. The last report, which doesn't count this request any more, is taken in after that, or else
    /// its end would be counted twice.
    fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let peer = lease.replica().peer;
        drop(lease);
        if let Some(report) = self.last_load.take() {
            self.handle.observe_load(peer, report);
        }
    }

    /// The body ended by itself. `Some` for what is still to be sent.
    fn ended(&mut self) -> Option<Frame<Bytes>> {
        self.rest = None;
        let Some((mut watch, dialect)) = self.watch.take() else {
            self.succeeded();
            return None;
        };
        let rest = watch.rest().map(|event| [event.as_ref(), b"\n\n"].concat()).unwrap_or_default();
        let closing = match (watch.stage(), dialect) {
            (Stage::Complete | Stage::Failed, _) => rest,
            // Some engines leave it out; the answer is whole, and clients wait for it.
            (Stage::Finished, Dialect::OpenAi) => [rest.as_slice(), DONE].concat(),
            _ => return Some(self.broke_off(dialect)),
        };
        self.end_of_stream(watch.stage());
        (!closing.is_empty()).then(|| Frame::data(closing.into()))
    }

    /// The connection broke under an event stream. `Some` for what is still to be sent.
    fn cut(&mut self, watch: &Watch, dialect: Dialect) -> Option<Frame<Bytes>> {
        match (watch.stage(), dialect) {
            // Its terminal event has gone out: the answer is whole, whatever became of the connection.
            (stage @ (Stage::Complete | Stage::Failed), _) => {
                self.end_of_stream(stage);
                None
            }
            // All that was generated has gone out.
            (Stage::Finished, Dialect::OpenAi) => {
                self.rest = None;
                self.release();
                Some(Frame::data(Bytes::from_static(DONE)))
            }
            _ => Some(self.broke_off(dialect)),
        }
    }

    /// An engine that said that it failed has not succeeded; whose fault it was isn't known.
    fn end_of_stream(&mut self, stage: Stage) {
        self.rest = None;
        if stage == Stage::Failed {
            self.release();
        } else {
            self.succeeded();
        }
    }

    fn succeeded(&mut self) {
        if let Some(lease) = &mut self.lease
            && !self.failing
        {
            lease.succeeded();
        }
        self.release();
    }

    /// The stream broke off: what is still to be sent of an event stream. An incomplete event goes with it.
    fn broke_off(&mut self, dialect: Dialect) -> Frame<Bytes> {
        self.fail();
        Frame::data(errors::broken_event(dialect))
    }

    fn fail(&mut self) {
        self.rest = None;
        self.metrics.broken.inc();
        if let Some(lease) = &mut self.lease {
            tracing::warn!(replica = %lease.replica(), "answer broke off");
            lease.failed();
        }
        self.release();
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take()
            && let Some(frame) = this.pass(first)
        {
            return Poll::Ready(Some(Ok(frame)));
        }
        loop {
            let Some(rest) = &mut this.rest else {
                return Poll::Ready(this.ended().map(Ok));
            };
            match ready!(Pin::new(rest).poll_frame(cx)) {
                None => return Poll::Ready(this.ended().map(Ok)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => {
                        if let Some(frame) = this.pass(piece) {
                            return Poll::Ready(Some(Ok(frame)));
                        }
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            this.take_load(&trailers);
                        }
                    }
                },
                Some(Err(_)) => {
                    let last = match this.watch.take() {
                        Some((watch, dialect)) => this.cut(&watch, dialect).map(Ok),
                        None => {
                            this.fail();
                            Some(Err(Broken))
                        }
                    };
                    return Poll::Ready(last);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_none() && self.watch.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let Some(rest) = &self.rest else {
            let left = self.first.as_ref().map_or(0, Bytes::len) as u64;
            return if self.watch.is_some() { SizeHint::default() } else { SizeHint::with_exact(left) };
        };
        match (&self.watch, rest.size_hint().exact()) {
            (None, Some(exact)) => SizeHint::with_exact(exact + self.first.as_ref().map_or(0, Bytes::len) as u64),
            _ => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes.
        f.debug_struct("Relay").field("lease", &self.lease).finish_non_exhaustive()
    }
}

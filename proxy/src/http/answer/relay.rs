//! A replica's answer on its way to the client.

mod elsewhere;
mod watched;

pub(crate) use watched::Watched;

use super::{Broken, held::Waited};
use crate::{
    continuation::Refusal,
    dispatch::{
        First,
        resume::{Keep, Resumed},
    },
    errors,
    http::{endpoint::Dialect, sse::Stage},
    metrics::Metrics,
    pool::Lease,
    tally::Tally,
};
use bytes::Bytes;
use dunlin_node::{
    Handle,
    hop::{Reservation, ResponseBody},
};
use dunlin_protocol::{hop, id::ReplicaId, load::LoadReport};
use elsewhere::Elsewhere;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// How OpenAI's streams end.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// What comes of the end of a replica's stream.
enum Next {
    /// The client gets this, and then no more.
    Last(Frame<Bytes>),
    /// Nothing more.
    Over,
    /// More, from another replica.
    GoesOn,
}

/// Passes the bytes on as they come. Holds the replica's slot until the end, however it comes, and sees to it that a
/// stream that broke off goes on elsewhere or doesn't look like one that ended.
pub(crate) struct Relay {
    /// The piece that was waited for before anything was sent.
    first: Option<Bytes>,
    /// What that takes.
    memory: Option<Reservation>,
    rest: Option<ResponseBody>,
    /// Set for event streams.
    watch: Option<Watched>,
    elsewhere: Elsewhere,
    lease: Option<Lease>,
    /// The answer is an error of the engine: that it came whole is no success.
    failing: bool,
    tally: Tally,
    /// The report of the trailers.
    last_load: Option<LoadReport>,
    handle: Handle,
    metrics: Arc<Metrics>,
}

impl Relay {
    /// `first` is what has been read of the body already; `watch` is set for event streams; `failing` for an answer
    /// that is an error of the engine.
    pub(crate) fn new(
        first: First,
        rest: ResponseBody,
        watch: Option<Watched>,
        failing: bool,
        lease: Lease,
        tally: Tally,
        (handle, metrics): (Handle, Arc<Metrics>),
    ) -> Self {
        let First { piece: first, memory, whole, trailers } = first;
        let all_there = whole || rest.is_end_stream();
        let (elsewhere, last_load) = (Elsewhere::default(), None);
        let (rest, lease) = (Some(rest), Some(lease));
        let mut relay =
            Self { first, memory, rest, watch, elsewhere, lease, failing, tally, last_load, handle, metrics };
        relay.take(&trailers);
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

    /// Who answers; `None` once it has.
    pub(crate) fn replica(&self) -> Option<ReplicaId> {
        self.lease.as_ref().map(Lease::replica)
    }

    /// Lets an event stream go on elsewhere with what `keep` makes for its replica.
    pub(crate) fn kept_by(mut self, keep: impl FnOnce(ReplicaId) -> Option<Result<Box<Keep>, Refusal>>) -> Self {
        if self.watch.is_some() {
            self.elsewhere = Elsewhere::new(self.replica().and_then(keep));
        }
        self
    }

    /// What goes out of what came in.
    fn pass(&mut self, piece: Bytes) -> Option<Frame<Bytes>> {
        let out = match &mut self.watch {
            Some(watched) => {
                self.elsewhere.heard();
                let out = self.elsewhere.pass(watched.push(piece));
                self.tally.saw(&out);
                out
            }
            None => piece,
        };
        (!out.is_empty()).then(|| Frame::data(out))
    }

    fn take(&mut self, trailers: &http::HeaderMap) {
        self.tally.take(trailers);
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

    /// The body ended by itself.
    fn ended(&mut self) -> Next {
        self.rest = None;
        let Some(mut watched) = self.watch.take() else {
            self.succeeded();
            return Next::Over;
        };
        let rest = watched.rest();
        let closing = match (watched.stage(), watched.dialect()) {
            (Stage::Complete | Stage::Failed, _) => self.elsewhere.pass(rest.into()),
            // Some engines leave it out; the answer is whole, and clients wait for it.
            (Stage::Finished, Dialect::OpenAi) => [self.elsewhere.pass(rest.into()).as_ref(), DONE].concat().into(),
            // Not every engine's speech ends with an event. The hop has ended it, and did not break it off.
            (Stage::Open | Stage::Finished, Dialect::Media) => self.elsewhere.pass(rest.into()),
            _ => return self.broke_off(watched),
        };
        self.end_of_stream(watched.stage());
        if closing.is_empty() { Next::Over } else { Next::Last(Frame::data(closing)) }
    }

    /// The connection broke, or fell silent, under an event stream.
    fn cut(&mut self, watched: Watched) -> Next {
        match (watched.stage(), watched.dialect()) {
            // Its terminal event has gone out: the answer is whole, whatever became of the connection.
            (stage @ (Stage::Complete | Stage::Failed), _) => {
                self.end_of_stream(stage);
                Next::Over
            }
            // All that was generated has gone out.
            (Stage::Finished, Dialect::OpenAi) => {
                self.rest = None;
                self.release();
                Next::Last(Frame::data(Bytes::from_static(DONE)))
            }
            _ => self.broke_off(watched),
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

    /// The event stream broke off: it goes on elsewhere, or that is said. An incomplete event goes with it.
    fn broke_off(&mut self, watched: Watched) -> Next {
        let lost = self.replica();
        self.fail();
        match self.elsewhere.resume(lost) {
            Ok(()) => {
                self.watch = Some(watched);
                Next::GoesOn
            }
            Err(refusal) => Next::Last(self.given_up(Some(&watched), refusal.as_ref())),
        }
    }

    fn given_up(&mut self, watched: Option<&Watched>, refusal: Option<&Refusal>) -> Frame<Bytes> {
        self.metrics.broken.inc();
        self.metrics.lost_stream(refusal.map_or("endpoint", Refusal::label));
        let event = errors::broken_event(watched.map_or(Dialect::OpenAi, Watched::dialect), refusal);
        // Behind half a line it would be part of that.
        let mid_line = watched.is_some_and(Watched::is_mid_line);
        Frame::data(if mid_line { [b"\n\n", event.as_ref()].concat().into() } else { event })
    }

    /// Nothing has come: asks another replica for the rest once that is unusual, and takes it from there if it comes first.
    fn poll_beside(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let (Some(watched), Some(lease)) = (&mut self.watch, &mut self.lease) else { return Poll::Pending };
        let resumed = ready!(self.elsewhere.poll_beside(watched, lease.replica(), cx));
        self.metrics.retried("late");
        lease.failed();
        Poll::Ready(self.resumed(Ok(resumed)))
    }

    /// Another replica was asked.
    fn resumed(&mut self, resumed: Result<Resumed, Refusal>) -> Frame<Bytes> {
        let watched = self.watch.take();
        match resumed {
            Ok(Resumed { keep, relay, how, comment }) => {
                self.metrics.lost_stream(how);
                let Self { first, rest, watch, lease, mut tally, .. } = *relay;
                (self.first, self.rest, self.watch, self.lease) = (first, rest, watch, lease);
                std::mem::swap(&mut self.tally, &mut tally);
                tally.goes_on_in(&mut self.tally);
                self.elsewhere = Elsewhere::new(Some(Ok(keep)));
                Frame::data(comment)
            }
            Err(refusal) => self.given_up(watched.as_ref(), Some(&refusal)),
        }
    }

    /// The replica failed.
    fn fail(&mut self) {
        self.rest = None;
        if let Some(lease) = &mut self.lease {
            tracing::warn!(replica = %lease.replica(), "answer broke off");
            lease.failed();
        }
        self.release();
    }
}

impl Relay {
    /// What the replica sends; a stream that says nothing for too long is broken.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(rest).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(|_| Broken)));
        }
        let Some(watched) = &mut self.watch else { return Poll::Pending };
        ready!(watched.poll_lost(cx));
        Poll::Ready(Some(Err(Broken)))
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        loop {
            if let Some(polled) = this.elsewhere.poll_resumed(cx) {
                let frame = match ready!(polled) {
                    Waited::Comment(comment) => comment,
                    Waited::Over(resumed) => this.resumed(resumed),
                };
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(first) = this.first.take() {
                this.memory = None;
                if let Some(frame) = this.pass(first) {
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
            let Poll::Ready(rest) = this.poll_rest(cx) else {
                return this.poll_beside(cx).map(|frame| Some(Ok(frame)));
            };
            let next = match rest {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => match this.pass(piece) {
                        Some(frame) => return Poll::Ready(Some(Ok(frame))),
                        None => continue,
                    },
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            this.take(&trailers);
                        }
                        continue;
                    }
                },
                None => this.ended(),
                Some(Err(Broken)) => match this.watch.take() {
                    Some(watched) => this.cut(watched),
                    None => {
                        this.metrics.broken.inc();
                        this.fail();
                        return Poll::Ready(Some(Err(Broken)));
                    }
                },
            };
            match next {
                Next::Last(frame) => return Poll::Ready(Some(Ok(frame))),
                Next::Over => return Poll::Ready(None),
                Next::GoesOn => {}
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

//! A replica's answer on its way to the client.

use super::{
    Broken,
    held::{Waited, Waiting},
    rhythm::Rhythm,
};
use crate::{
    continuation::Refusal,
    dispatch::{
        First,
        resume::{Keep, Resumed},
    },
    errors,
    http::{
        endpoint::Dialect,
        sse::{self, Stage, Watch},
    },
    metrics::Metrics,
    pool::Lease,
    tally::Tally,
};
use bytes::Bytes;
use dunlin_node::{
    Handle,
    hop::{Reservation, ResponseBody, Silence},
};
use dunlin_protocol::{
    hop,
    id::{ModelId, ReplicaId},
    load::LoadReport,
    runtime::Deadlines,
};
use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::time::Instant;

/// Another replica being asked for the rest of a stream.
type Asking = BoxFuture<'static, Result<Resumed, Refusal>>;

/// How OpenAI's streams end.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// An event stream as it is watched.
pub(crate) struct Watched {
    watch: Watch,
    dialect: Dialect,
    /// The model that is asked, under its own name.
    model: ModelId,
    silence: Silence,
    rhythm: Rhythm,
}

impl Watched {
    /// A stream that begins, lost when it says nothing, or nothing but comments, for too long.
    pub(crate) fn new(dialect: Dialect, model: ModelId, deadlines: Deadlines) -> Self {
        let silence = Silence::new(deadlines.inter_token, deadlines.whole);
        Self { watch: Watch::default(), dialect, model, silence, rhythm: Rhythm::new(deadlines.inter_token) }
    }

    /// What goes out of what came in: see [`Watch::push`].
    fn push(&mut self, piece: Bytes) -> Bytes {
        let out = self.watch.push(piece);
        self.cleaned(out)
    }

    /// Once the engine has said that it failed: without the paths of its host.
    fn cleaned(&self, events: Bytes) -> Bytes {
        match self.watch.stage() {
            Stage::Failed => errors::events::cleaned(events, self.model.as_str()),
            _ => events,
        }
    }

    /// What was held back when the stream ended by itself, as a whole event.
    fn rest(&mut self) -> Vec<u8> {
        let rest = self.watch.rest().map(|event| self.cleaned(event));
        rest.map(|event| [event.as_ref(), b"\n\n"].concat()).unwrap_or_default()
    }
}

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
    /// What is kept of a stream that may go on elsewhere, or why it may not.
    keep: Option<Result<Box<Keep>, Refusal>>,
    /// Another replica is being asked.
    resuming: Option<Waiting<Result<Resumed, Refusal>>>,
    /// The same while this one is late, and may still be the first.
    beside: Option<Asking>,
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
        let (keep, resuming, beside, last_load) = (None, None, None, None);
        let (rest, lease) = (Some(rest), Some(lease));
        let mut relay = Self {
            first,
            memory,
            rest,
            watch,
            keep,
            resuming,
            beside,
            lease,
            failing,
            tally,
            last_load,
            handle,
            metrics,
        };
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
            self.keep = self.replica().and_then(keep);
        }
        self
    }

    /// What goes out of what came in.
    fn pass(&mut self, piece: Bytes) -> Option<Frame<Bytes>> {
        let mut out = match &mut self.watch {
            Some(watched) => {
                watched.rhythm.heard();
                self.beside = None;
                if sse::is_comment(&piece) {
                    watched.silence.murmured();
                } else {
                    watched.silence.broken();
                }
                watched.push(piece)
            }
            None => piece,
        };
        if let Some(Ok(keep)) = &mut self.keep
            && !out.is_empty()
        {
            out = keep.pass(out);
        }
        if self.watch.is_some() {
            self.tally.saw(&out);
        }
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
        let closing = match (watched.watch.stage(), watched.dialect) {
            (Stage::Complete | Stage::Failed, _) => self.joined(rest),
            // Some engines leave it out; the answer is whole, and clients wait for it.
            (Stage::Finished, Dialect::OpenAi) => [self.joined(rest).as_ref(), DONE].concat().into(),
            // Not every engine's speech ends with an event. The hop has ended it, and did not break it off.
            (Stage::Open | Stage::Finished, Dialect::Media) => self.joined(rest),
            _ => return self.broke_off(watched),
        };
        self.end_of_stream(watched.watch.stage());
        if closing.is_empty() { Next::Over } else { Next::Last(Frame::data(closing)) }
    }

    fn joined(&mut self, events: Vec<u8>) -> Bytes {
        match &mut self.keep {
            Some(Ok(keep)) if !events.is_empty() => keep.pass(events.into()),
            _ => events.into(),
        }
    }

    /// The connection broke, or fell silent, under an event stream.
    fn cut(&mut self, watched: Watched) -> Next {
        match (watched.watch.stage(), watched.dialect) {
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
        let refusal = match (self.keep.take(), lost) {
            (Some(Ok(keep)), Some(lost)) => {
                let silence = keep.silence;
                let asked = self.beside.take();
                match keep.resume(lost) {
                    Ok(resumed) => {
                        let resumed = match asked {
                            // It has a head start, and may find nobody free.
                            Some(asked) => asked.or_else(|_| resumed).boxed(),
                            None => resumed,
                        };
                        self.resuming = Some(Waiting::new(resumed, Instant::now() + silence, silence));
                        self.watch = Some(watched);
                        return Next::GoesOn;
                    }
                    Err(refusal) => Some(refusal),
                }
            }
            (Some(Err(refusal)), _) => Some(refusal),
            _ => None,
        };
        Next::Last(self.given_up(Some(&watched), refusal.as_ref()))
    }

    fn given_up(&mut self, watched: Option<&Watched>, refusal: Option<&Refusal>) -> Frame<Bytes> {
        self.metrics.broken.inc();
        self.metrics.lost_stream(refusal.map_or("endpoint", Refusal::label));
        let event = errors::broken_event(watched.map_or(Dialect::OpenAi, |watched| watched.dialect), refusal);
        // Behind half a line it would be part of that.
        let mid_line = watched.is_some_and(|watched| watched.watch.is_mid_line());
        Frame::data(if mid_line { [b"\n\n", event.as_ref()].concat().into() } else { event })
    }

    /// Nothing has come: asks another replica for the rest once that is unusual, and takes it from there if it comes first.
    fn poll_beside(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        loop {
            if self.beside.is_none() {
                let (Some(watched), Some(lease)) = (&mut self.watch, &self.lease) else { return Poll::Pending };
                let (Some(Ok(keep)), Stage::Open) = (&self.keep, watched.watch.stage()) else { return Poll::Pending };
                ready!(watched.rhythm.poll_late(cx));
                // Later again, whatever comes of this.
                watched.rhythm.wait_again();
                self.beside = keep.beside(lease.replica()).ok();
            }
            let Some(beside) = &mut self.beside else { continue };
            let answer = ready!(beside.as_mut().poll(cx));
            self.beside = None;
            if let Ok(resumed) = answer {
                self.metrics.retried("late");
                if let Some(lease) = &mut self.lease {
                    lease.failed();
                }
                return Poll::Ready(self.resumed(Ok(resumed)));
            }
        }
    }

    /// Another replica was asked.
    fn resumed(&mut self, resumed: Result<Resumed, Refusal>) -> Frame<Bytes> {
        self.resuming = None;
        let watched = self.watch.take();
        match resumed {
            Ok(Resumed { keep, relay, how, comment }) => {
                self.metrics.lost_stream(how);
                let Self { first, rest, watch, lease, mut tally, .. } = *relay;
                (self.first, self.rest, self.watch, self.lease) = (first, rest, watch, lease);
                std::mem::swap(&mut self.tally, &mut tally);
                tally.goes_on_in(&mut self.tally);
                self.keep = Some(Ok(keep));
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
        ready!(watched.silence.poll(cx));
        Poll::Ready(Some(Err(Broken)))
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        loop {
            if let Some(resuming) = &mut this.resuming {
                let frame = match ready!(resuming.poll(cx)) {
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

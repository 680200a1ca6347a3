//! Where a stream goes on that its replica doesn't bring to its end: at another one, asked once this one is lost, or beside
//! it while it is late.

use super::{
    super::held::{Waited, Waiting},
    watched::Watched,
};
use crate::{
    continuation::Refusal,
    dispatch::resume::{Keep, Resumed},
    http::sse::Stage,
};
use bytes::Bytes;
use dunlin_protocol::id::ReplicaId;
use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// Another replica being asked for the rest of a stream.
type Asking = BoxFuture<'static, Result<Resumed, Refusal>>;

/// See the module.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// What is kept of a stream that may go on elsewhere, or why it may not.
    keep: Option<Result<Box<Keep>, Refusal>>,
    /// Another replica is being asked.
    resuming: Option<Waiting<Result<Resumed, Refusal>>>,
    /// The same while this one is late, and may still be the first.
    beside: Option<Asking>,
}

impl Elsewhere {
    /// Of a stream of which `keep` is kept, if anything.
    pub(super) fn new(keep: Option<Result<Box<Keep>, Refusal>>) -> Self {
        Self { keep, resuming: None, beside: None }
    }

    /// The stream's own replica has said something.
    pub(super) fn heard(&mut self) {
        self.beside = None;
    }

    /// Events on their way to the client: what of them goes out.
    pub(super) fn pass(&mut self, events: Bytes) -> Bytes {
        match &mut self.keep {
            Some(Ok(keep)) if !events.is_empty() => keep.pass(events),
            _ => events,
        }
    }

    /// The replica is lost: others are asked from now on.
    ///
    /// # Errors
    /// The stream does not go on, for this reason if there is one.
    pub(super) fn resume(&mut self, lost: Option<ReplicaId>) -> Result<(), Option<Refusal>> {
        let (keep, lost) = match (self.keep.take(), lost) {
            (Some(Ok(keep)), Some(lost)) => (keep, lost),
            (Some(Err(refusal)), _) => return Err(Some(refusal)),
            _ => return Err(None),
        };
        let silence = keep.silence;
        let asked = self.beside.take();
        let resumed = keep.resume(lost).map_err(Some)?;
        let resumed = match asked {
            // It has a head start, and may find nobody free.
            Some(asked) => asked.or_else(|_| resumed).boxed(),
            None => resumed,
        };
        self.resuming = Some(Waiting::new(resumed, Instant::now() + silence, silence));
        Ok(())
    }

    /// What comes of that; `None` while nobody is asked.
    pub(super) fn poll_resumed(&mut self, cx: &mut Context<'_>) -> Option<Poll<Waited<Result<Resumed, Refusal>>>> {
        let polled = self.resuming.as_mut()?.poll(cx);
        if matches!(polled, Poll::Ready(Waited::Over(_))) {
            self.resuming = None;
        }
        Some(polled)
    }

    /// Nothing has come of `replica`: asks another one for the rest once that is unusual. Ready when that one comes first.
    pub(super) fn poll_beside(
        &mut self,
        watched: &mut Watched,
        replica: ReplicaId,
        cx: &mut Context<'_>,
    ) -> Poll<Resumed> {
        loop {
            if self.beside.is_none() {
                let (Some(Ok(keep)), Stage::Open) = (&self.keep, watched.stage()) else { return Poll::Pending };
                // Later again, whatever comes of this.
                ready!(watched.poll_late(cx));
                self.beside = keep.beside(replica).ok();
            }
            let Some(beside) = &mut self.beside else { continue };
            let answer = ready!(beside.as_mut().poll(cx));
            self.beside = None;
            if let Ok(resumed) = answer {
                return Poll::Ready(resumed);
            }
        }
    }
}

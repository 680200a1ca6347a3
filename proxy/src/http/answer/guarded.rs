//! An answer that ends early when its key is revoked so (`dunlin keys revoke --now`).

use super::{Body, Broken};
use crate::{errors, http::endpoint::Dialect, keys::Keys};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often is looked, also where the answer says nothing.
const LOOK: Duration = Duration::from_millis(500);

/// The answer, and whose it is.
pub(crate) struct Guarded {
    answer: Body,
    keys: Keys,
    id: Box<str>,
    /// Of a stream of events: in which words it is told.
    events: Option<Dialect>,
    look: Interval,
}

impl Guarded {
    pub(crate) fn new(answer: Body, keys: Keys, id: &str, events: Option<Dialect>) -> Self {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { answer, keys, id: id.into(), events, look }
    }

    fn is_over(&self) -> bool {
        self.keys.grant(&self.id).is_some_and(|grant| grant.key.revoked.is_some() && grant.key.ends_streams)
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        while self.look.poll_tick(cx).is_ready() {
            if self.is_over() {
                // Its replica is told to stop by that.
                self.answer = Body::whole(Bytes::new());
                let told = self.events.take().map(|dialect| {
                    let message = "the API key was revoked, and its answers with it";
                    errors::error_event(dialect, "invalid_request_error", "invalid_api_key", message)
                });
                return Poll::Ready(Some(told.map(Frame::data).ok_or(Broken)));
            }
        }
        Pin::new(&mut self.answer).poll_frame(cx)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded").field("answer", &self.answer).finish_non_exhaustive()
    }
}

//! A stream that has begun before its replica has: comments keep the connection alive meanwhile.
//!
//! Load balancers cut connections that say nothing for a minute, and prefill can take longer. After a while the proxy
//! therefore commits to `200 OK` and an event stream, and sends comments, which every parser of events skips. Whatever
//! goes wrong later can only be said by an event.

use super::{Broken, Relay};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Interval, MissedTickBehavior};

const COMMENT: &[u8] = b": waiting for a replica\n\n";

/// What came of the wait.
pub(crate) enum Outcome {
    /// The replica's stream.
    Stream(Box<Relay>),
    /// Something else: it is told as one last event.
    Event(Bytes),
}

/// A wait under the cover of comments.
pub(super) struct Waiting<T> {
    outcome: BoxFuture<'static, T>,
    comments: Interval,
}

/// What a wait gives.
pub(super) enum Waited<T> {
    /// Something for the client to hear meanwhile.
    Comment(Frame<Bytes>),
    /// It is over.
    Over(T),
}

impl<T> Waiting<T> {
    /// Until `outcome`: a comment at `first`, and then every `silence`.
    pub(super) fn new(outcome: BoxFuture<'static, T>, first: Instant, silence: Duration) -> Self {
        let mut comments = tokio::time::interval_at(first, silence.max(Duration::from_millis(1)));
        comments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { outcome, comments }
    }

    /// Not to be polled again once it is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Waited<T>> {
        if let Poll::Ready(outcome) = self.outcome.as_mut().poll(cx) {
            return Poll::Ready(Waited::Over(outcome));
        }
        self.comments.poll_tick(cx).map(|_| Waited::Comment(Frame::data(Bytes::from_static(COMMENT))))
    }
}

/// The body of a stream that waits for its replica.
pub(crate) struct Held {
    state: State,
}

enum State {
    Waiting(Waiting<Outcome>),
    Streaming(Box<Relay>),
    Ended,
}

impl Held {
    /// Sends a comment now and then every `silence`, until `outcome`.
    pub(crate) fn new(outcome: BoxFuture<'static, Outcome>, silence: Duration) -> Self {
        Self { state: State::Waiting(Waiting::new(outcome, Instant::now(), silence)) }
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Streaming(relay) => return Pin::new(relay.as_mut()).poll_frame(cx),
                State::Waiting(waiting) => match ready!(waiting.poll(cx)) {
                    Waited::Over(Outcome::Stream(relay)) => this.state = State::Streaming(relay),
                    Waited::Over(Outcome::Event(event)) => {
                        this.state = State::Ended;
                        return Poll::Ready(Some(Ok(Frame::data(event))));
                    }
                    Waited::Comment(comment) => return Poll::Ready(Some(Ok(comment))),
                },
            }
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

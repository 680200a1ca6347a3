//! Aborting an answer whose reader stopped reading.
//!
//! hyper asks a body for its next chunk only once the last one had room in the stream's window; while it waits for
//! room the body is never polled and could not end the stream itself. So the task around it watches: it knows from
//! [`note`] whether the body waits for the engine (for as long as that takes) or hyper waits for the reader.

use pin_project_lite::pin_project;
use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

/// Who is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// The body was not polled.
    Untouched,
    /// The body has no chunk yet.
    Waits,
    /// The body gave a chunk: from now on the reader is waited for.
    Yielded,
}

thread_local! {
    /// What the body of the task that is being polled on this thread said last. Lives only for the time of one poll.
    static SAID: Cell<Body> = const { Cell::new(Body::Untouched) };
}

/// Called by a body when it is polled.
pub fn note(said: Body) {
    SAID.set(said);
}

/// Runs the streams of one server connection, each with a watch on its reader.
#[derive(Debug, Clone)]
pub struct Guard {
    tasks: TaskTracker,
    limit: Duration,
}

impl Guard {
    /// Streams run as `tasks`; a reader may take nothing for `limit`.
    #[must_use]
    pub fn new(tasks: TaskTracker, limit: Duration) -> Self {
        Self { tasks, limit }
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Guard {
    fn execute(&self, stream: F) {
        self.tasks.spawn(Watched { stream, limit: self.limit, reader_waits: false, alarm: None });
    }
}

pin_project! {
    struct Watched<F> {
        #[pin]
        stream: F,
        limit: Duration,
        // Named from the body's side: a chunk was given and its room is waited for.
        reader_waits: bool,
        // Made at the first wait for room, which most streams never have.
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        SAID.set(Body::Untouched);
        if this.stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match SAID.get() {
            Body::Untouched => {}
            Body::Waits => *this.reader_waits = false,
            Body::Yielded => {
                *this.reader_waits = true;
                if let Some(alarm) = this.alarm {
                    alarm.as_mut().reset(Instant::now() + *this.limit);
                }
            }
        }
        if !*this.reader_waits {
            return Poll::Pending;
        }
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(*this.limit)));
        if alarm.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Ending the task drops the stream, which resets it, and the body, which ends the engine's request.
        tracing::debug!(limit_s = this.limit.as_secs(), "answer aborted: its reader has stopped reading");
        Poll::Ready(())
    }
}

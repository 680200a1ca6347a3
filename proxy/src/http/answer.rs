//! The body of an answer: bytes at hand, a replica's stream passed straight through, or a stream that has begun before
//! its replica has.

mod guarded;
mod held;
mod relay;
mod rhythm;

pub(crate) use guarded::Guarded;
pub(crate) use held::{Held, Outcome};
pub(crate) use relay::{Relay, Watched};

use bytes::Bytes;
use dunlin_node::hop::stall;
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::OwnedSemaphorePermit;

/// The replica's stream broke off, and the client must see that: hyper closes the connection without a proper end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct Broken;

/// An answer's body.
#[derive(Debug)]
pub(crate) enum Body {
    /// All there.
    Whole(Bytes),
    /// From a replica.
    Relay(Box<Relay>),
    /// Begun without one.
    Held(Box<Held>),
    /// Any of them, of a request that counts as in flight until the client has all of it.
    Counted(Box<(Body, OwnedSemaphorePermit)>),
    /// One of these that may have to end early.
    Guarded(Box<Guarded>),
}

impl Body {
    /// Of bytes at hand.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(bytes.into())
    }

    /// The same, counted by `permit`.
    pub(crate) fn counted(self, permit: OwnedSemaphorePermit) -> Self {
        Self::Counted(Box::new((self, permit)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match self.get_mut() {
            Self::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            Self::Relay(relay) => Pin::new(relay.as_mut()).poll_frame(cx),
            Self::Held(held) => Pin::new(held.as_mut()).poll_frame(cx),
            Self::Counted(counted) => return Pin::new(&mut counted.0).poll_frame(cx),
            Self::Guarded(guarded) => return guarded.poll_frame(cx),
        };
        stall::note(if frame.is_pending() { stall::Body::Waits } else { stall::Body::Yielded });
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Relay(relay) => relay.is_end_stream(),
            Self::Held(_) => false,
            Self::Counted(counted) => counted.0.is_end_stream(),
            Self::Guarded(guarded) => guarded.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Relay(relay) => relay.size_hint(),
            Self::Held(_) => SizeHint::default(),
            Self::Counted(counted) => counted.0.size_hint(),
            Self::Guarded(guarded) => guarded.size_hint(),
        }
    }
}

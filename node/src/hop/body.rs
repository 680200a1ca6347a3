//! The bodies that go out on the hop and the ones that come back.

use super::{Coalesce, line::InFlight};
use bytes::Bytes;
use futures::FutureExt;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Any error of a body that somebody else made.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request's body: bytes that are all there, or a stream. Never yields an empty chunk.
#[derive(Debug)]
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send>>),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the bytes: they are a prompt.
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.as_ref().map_or(0, Bytes::len)),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

impl Body {
    /// A body of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self(Kind::Whole(None))
    }

    /// A body that is sent as it arrives. Such a request can't be sent a second time.
    #[must_use]
    pub fn stream<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        Self(Kind::Stream(Box::pin(Coalesce::new(body.map_err(Into::into)))))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }
}
impl From<http_body_util::Full<Bytes>> for Body {
    fn from(full: http_body_util::Full<Bytes>) -> Self {
        // Never pending: it is all there.
        let bytes = full.collect().now_or_never().and_then(Result::ok);
        bytes.map_or_else(Self::empty, |bytes| bytes.to_bytes().into())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Stream(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Stream(body) => body.size_hint(),
        }
    }
}

pin_project! {
    /// An answer's body. Dropping it before its end resets the stream, which the server sees at once. While it lives
    /// it counts as one request in flight.
    #[derive(Debug)]
    pub struct ResponseBody {
        #[pin]
        inner: Source,
        in_flight: Option<InFlight>,
    }
}

pin_project! {
    /// Where an answer comes from.
    #[derive(Debug)]
    #[project = SourceProjection]
    enum Source {
        Peer { #[pin] body: hyper::body::Incoming },
        Own { #[pin] body: axum::body::Body },
    }
}

/// Why an answer's body broke off.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The link to the peer, or the peer's end of the stream.
    #[error(transparent)]
    Link(#[from] hyper::Error),
    /// The route of this process that answered.
    #[error(transparent)]
    Own(#[from] axum::Error),
}

impl ResponseBody {
    pub(super) fn new(inner: hyper::body::Incoming, in_flight: InFlight) -> Self {
        let ended = http_body::Body::is_end_stream(&inner);
        Self { inner: Source::Peer { body: inner }, in_flight: (!ended).then_some(in_flight) }
    }

    pub(super) fn own(body: axum::body::Body) -> Self {
        Self { inner: Source::Own { body }, in_flight: None }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseError>>> {
        let mut this = self.project();
        loop {
            let frame = match this.inner.as_mut().project() {
                SourceProjection::Peer { body } => body.poll_frame(cx).map_err(ResponseError::Link),
                SourceProjection::Own { body } => body.poll_frame(cx).map_err(ResponseError::Own),
            };
            match ready!(frame) {
                // HTTP/2 may end a stream with an empty DATA frame; peers of ours send no others.
                Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
                end => {
                    *this.in_flight = None;
                    return Poll::Ready(end);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Source::Peer { body } => body.is_end_stream(),
            Source::Own { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Source::Peer { body } => body.size_hint(),
            Source::Own { body } => body.size_hint(),
        }
    }
}

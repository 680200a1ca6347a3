//! A substream that stays broken once it broke.

use futures::{AsyncRead, AsyncWrite};
use libp2p::swarm::Stream;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

/// A negotiated substream, fused: after the first error every call fails with the same kind of error.
///
/// A lazily negotiated libp2p stream panics when it is polled after its error ("Invalid state"); HTTP/2 does poll
/// again, to flush its last frames.
#[derive(Debug)]
pub struct Substream(State);

#[derive(Debug)]
enum State {
    Open(Stream),
    Broken(io::ErrorKind),
}

impl Substream {
    pub(super) fn new(stream: Stream) -> Self {
        Self(State::Open(stream))
    }

    fn with<T>(&mut self, poll: impl FnOnce(Pin<&mut Stream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let result = match &mut self.0 {
            State::Open(stream) => poll(Pin::new(stream)),
            State::Broken(kind) => return Poll::Ready(Err((*kind).into())),
        };
        if let Poll::Ready(Err(error)) = &result {
            self.0 = State::Broken(error.kind());
        }
        result
    }
}

impl AsyncRead for Substream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Substream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, buffer))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_close(cx))
    }
}

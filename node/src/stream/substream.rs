//! A substream that stays broken once it broke.

use super::traffic::Traffic;
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
pub struct Substream {
    state: State,
    traffic: Traffic,
}

#[derive(Debug)]
enum State {
    Open(Stream),
    Broken(io::ErrorKind),
}

impl Substream {
    pub(super) fn new(stream: Stream, traffic: Traffic) -> Self {
        traffic.opened();
        Self { state: State::Open(stream), traffic }
    }

    fn with<T>(&mut self, poll: impl FnOnce(Pin<&mut Stream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let result = match &mut self.state {
            State::Open(stream) => poll(Pin::new(stream)),
            State::Broken(kind) => return Poll::Ready(Err((*kind).into())),
        };
        if let Poll::Ready(Err(error)) = &result {
            self.state = State::Broken(error.kind());
        }
        result
    }
}

impl Drop for Substream {
    fn drop(&mut self) {
        self.traffic.closed();
    }
}

impl AsyncRead for Substream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let read = self.with(|stream| stream.poll_read(cx, buffer));
        if matches!(read, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.traffic.hear();
        }
        read
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

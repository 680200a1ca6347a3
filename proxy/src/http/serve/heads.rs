//! A client's socket, with a bound on how long the head of a request may take once it has begun.
//!
//! hyper has one bound for that and for the time between two requests. Balancers and clients keep connections for
//! minutes and send on them whenever they like: a connection that is closed in that moment costs a request. A head that
//! doesn't come to its end is another matter.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// The requests of one connection. Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Whose heads have come.
    come: AtomicUsize,
    /// Whose answers have gone.
    gone: AtomicUsize,
}

impl Requests {
    /// The head of one has come.
    pub(super) fn come(&self) -> Answering {
        self.0.come.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    /// How many heads have come.
    pub(super) fn count(&self) -> usize {
        self.0.come.load(Ordering::Relaxed)
    }

    fn all_answered(&self) -> bool {
        self.count() == self.0.gone.load(Ordering::Relaxed)
    }
}

/// A request whose answer has not gone.
#[derive(Debug)]
pub(super) struct Answering(Requests);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.gone.fetch_add(1, Ordering::Relaxed);
    }
}

/// An answer's body, which has gone when it is dropped.
#[derive(Debug)]
pub(super) struct Answered<B> {
    pub(super) body: B,
    pub(super) _until: Answering,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Fails as timed out when a head that has begun doesn't come to its end.
pub(super) struct Heads<S> {
    socket: S,
    requests: Requests,
    limit: Duration,
    /// A head has begun that would be the next after so many.
    begun: Option<usize>,
    /// Made for the first head that comes in pieces, which most never do.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Heads<S> {
    pub(super) fn new(socket: S, requests: Requests, limit: Duration) -> Self {
        Self { socket, requests, limit, begun: None, alarm: None }
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.begun.is_none_or(|before| before != self.requests.count()) {
            self.begun = None;
            return Poll::Pending;
        }
        let limit = self.limit;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "a request's head did not come to its end")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if read.is_pending() {
            return self.poll_overdue(cx);
        }
        // What comes while a request is answered belongs to its body, as a rule.
        if buf.filled().len() > before && self.requests.all_answered() {
            let count = self.requests.count();
            if self.begun.replace(count) != Some(count) {
                let due = Instant::now() + self.limit;
                if let Some(alarm) = &mut self.alarm {
                    alarm.as_mut().reset(due);
                }
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{sleep, timeout},
    };

    const S: Duration = Duration::from_secs(1);

    fn connection() -> (DuplexStream, Heads<DuplexStream>, Requests) {
        let (client, server) = duplex(1024);
        let requests = Requests::default();
        (client, Heads::new(server, requests.clone(), 10 * S), requests)
    }

    /// What comes of waiting for more.
    async fn more(heads: &mut Heads<DuplexStream>, within: Duration) -> Option<io::ErrorKind> {
        let read = timeout(within, heads.read(&mut [0; 64])).await.ok()?;
        read.err().map(|error| error.kind())
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_left_in_peace_and_half_a_head_is_not() {
        let (mut client, mut heads, requests) = connection();
        assert_eq!(more(&mut heads, 1000 * S).await, None);
        for _ in 0..2 {
            client.write_all(b"GET / HTTP/1.1").await.unwrap();
            assert_eq!(heads.read(&mut [0; 64]).await.unwrap(), 14);
            assert_eq!(more(&mut heads, 9 * S).await, None);
            drop(requests.come());
            assert_eq!(more(&mut heads, 1000 * S).await, None, "its head had come to its end");
        }
        client.write_all(b"GET /").await.unwrap();
        assert_eq!(heads.read(&mut [0; 64]).await.unwrap(), 5);
        sleep(9 * S).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(heads.read(&mut [0; 64]).await.unwrap(), 1);
        assert_eq!(more(&mut heads, 20 * S).await, Some(io::ErrorKind::TimedOut), "one that comes byte by byte");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_take_the_time_that_they_take() {
        let (mut client, mut heads, requests) = connection();
        let answering = requests.come();
        client.write_all(b"body").await.unwrap();
        assert_eq!(heads.read(&mut [0; 64]).await.unwrap(), 4);
        assert_eq!(more(&mut heads, 1000 * S).await, None);
        drop(answering);
        assert_eq!(more(&mut heads, 1000 * S).await, None);
    }
}

//! A substream that is written to in large pieces.
//!
//! h2 hands over each frame of a KiB or more in two pieces, its head with what comes before and its payload, and asks for
//! each frame to be sent before it makes the next. Of every piece Yamux makes a frame, Noise a message, and the kernel a
//! packet: for a thousand requests that come together, two thousand of each. So what is to be sent is held until all tasks
//! that are ready now have run, and goes out in one piece, or earlier when there is enough of it.

use futures::{AsyncRead, AsyncWrite};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// As much as Yamux sends in one frame (yamux 0.14, `DEFAULT_SPLIT_SEND_SIZE`).
const PIECE: usize = 16 * 1024;

/// Holds what is written until its task is polled the next time. Whoever writes must also read, as HTTP/2 does.
#[derive(Debug)]
pub(super) struct Gather<T> {
    inner: T,
    held: Vec<u8>,
    /// Bytes of these that were handed over.
    handed: usize,
    /// They are to be sent at the next poll, which is under way.
    due: bool,
}

impl<T> Gather<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, held: Vec::new(), handed: 0, due: false }
    }
}

impl<T: AsyncWrite + Unpin> Gather<T> {
    /// Ready when nothing is held any more.
    fn poll_hand_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.handed < self.held.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.held[self.handed..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => self.handed += more,
            }
        }
        self.held.clear();
        self.handed = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_hand_over(cx))?;
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.due = false;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gather<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.due
            && let Poll::Ready(Err(error)) = self.poll_send(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if self.held.len() + buffer.len() > PIECE {
            ready!(self.poll_hand_over(cx))?;
            // It would only be copied once more.
            if buffer.len() >= PIECE {
                return Pin::new(&mut self.inner).poll_write(cx, buffer);
            }
        }
        self.held.extend_from_slice(buffer);
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            return Pin::new(&mut self.inner).poll_flush(cx);
        }
        if !std::mem::replace(&mut self.due, true) {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_hand_over(cx))?;
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, io::Cursor, task::noop_waker};

    /// Takes so many bytes at most, and remembers each piece.
    #[derive(Default)]
    struct Wire {
        pieces: Vec<usize>,
        room: usize,
        closed: bool,
    }

    impl AsyncRead for Wire {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
            let taken = buffer.len().min(self.room);
            if taken == 0 {
                return Poll::Pending;
            }
            self.room -= taken;
            self.pieces.push(taken);
            Poll::Ready(Ok(taken))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_close(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
            Poll::Ready(Ok(()))
        }
    }

    fn gather(room: usize) -> Gather<Wire> {
        Gather::new(Wire { room, ..Wire::default() })
    }

    /// Writes and flushes, as h2 does with each frame.
    fn frame(gather: &mut Gather<Wire>, head: usize, payload: usize) {
        for piece in [head, payload] {
            assert_eq!(gather.write(&vec![0; piece]).now_or_never().unwrap().unwrap(), piece);
        }
        gather.flush().now_or_never().unwrap().unwrap();
    }

    /// The next poll, in which nothing has come.
    fn poll(gather: &mut Gather<Wire>) {
        assert!(gather.read(&mut [0; 8]).now_or_never().is_none());
    }

    #[test]
    fn what_is_written_in_one_poll_goes_out_in_one_piece_at_the_next() {
        let mut gather = gather(usize::MAX);
        (0..5).for_each(|_| frame(&mut gather, 9, 1200));
        assert!(gather.inner.pieces.is_empty());
        poll(&mut gather);
        assert_eq!(gather.inner.pieces, [5 * 1209]);
        poll(&mut gather);
        assert_eq!(gather.inner.pieces.len(), 1, "nothing is sent twice");
    }

    #[test]
    fn enough_goes_out_at_once_and_in_order() {
        let mut gather = gather(usize::MAX);
        (0..4).for_each(|_| frame(&mut gather, 9, 6000));
        assert_eq!(gather.inner.pieces, [12_027], "what fits into one piece");
        frame(&mut gather, 9, PIECE);
        assert_eq!(gather.inner.pieces, [12_027, 12_018, PIECE], "a large payload is not copied");
    }

    #[test]
    fn a_flush_wakes_the_task_once() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl futures::task::ArcWake for Count {
            fn wake_by_ref(this: &std::sync::Arc<Self>) {
                this.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let count = std::sync::Arc::new(Count(Default::default()));
        let waker = futures::task::waker(std::sync::Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut gather = gather(usize::MAX);
        for _ in 0..3 {
            assert!(Pin::new(&mut gather).poll_write(&mut cx, &[0; 10]).is_ready());
            assert!(Pin::new(&mut gather).poll_flush(&mut cx).is_ready());
        }
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_wire_takes_the_rest_later() {
        let mut gather = gather(1000);
        frame(&mut gather, 9, 3000);
        poll(&mut gather);
        assert_eq!(gather.inner.pieces, [1000]);
        gather.inner.room = usize::MAX;
        poll(&mut gather);
        assert_eq!(gather.inner.pieces, [1000, 2009]);
        gather.inner.room = 0;
        frame(&mut gather, 9, PIECE - 100);
        let waker = noop_waker();
        let more = Pin::new(&mut gather).poll_write(&mut Context::from_waker(&waker), &[0; 200]);
        assert!(more.is_pending(), "what is held is bounded");
    }

    #[test]
    fn nothing_is_lost_at_the_end() {
        let mut gather = gather(usize::MAX);
        frame(&mut gather, 9, 100);
        gather.close().now_or_never().unwrap().unwrap();
        assert_eq!((gather.inner.pieces.as_slice(), gather.inner.closed), (&[109][..], true));
        // What comes in passes through.
        let mut gather = Gather::new(Cursor::new(vec![1, 2, 3]));
        let mut read = Vec::new();
        gather.read_to_end(&mut read).now_or_never().unwrap().unwrap();
        assert_eq!(read, [1, 2, 3]);
    }
}

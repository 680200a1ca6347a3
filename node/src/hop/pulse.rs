//! Whether anything is heard from the other end of a link.

use futures::{AsyncRead, AsyncWrite, task::AtomicWaker};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::Notify, time::sleep};

/// Silence is counted in ticks of this length. Time in which this process itself stood still (stopped, suspended,
/// starved) is so one tick at most, however long it was.
const TICK: Duration = Duration::from_millis(100);

/// The signs of life on one link.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    heard: AtomicBool,
    silent: AtomicBool,
    fell_silent: Notify,
    dead: AtomicBool,
    reader: AtomicWaker,
}

impl Pulse {
    /// Whether nothing has been heard for so long that nothing new should be sent.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Returns when the link is, or falls, silent.
    pub(super) async fn silence(&self) {
        loop {
            // Made before the look at the flag, so that what falls between the two is not missed.
            let fell_silent = self.fell_silent.notified();
            if self.is_silent() {
                return;
            }
            fell_silent.await;
        }
    }

    /// Watches until nothing has been heard for `dead`; says in between when it has been `suspect`.
    pub(super) async fn watch(&self, suspect: Duration, dead: Duration) {
        let mut silence = Duration::ZERO;
        while silence < dead {
            sleep(TICK).await;
            silence = if self.heard.swap(false, Ordering::Relaxed) { Duration::ZERO } else { silence + TICK };
            let is_silent = silence >= suspect;
            if self.silent.swap(is_silent, Ordering::Relaxed) != is_silent && is_silent {
                self.fell_silent.notify_waiters();
            }
        }
        // The connection is in hands that can't be reached from here: it ends, and every stream on it, with an error
        // of its next read.
        self.dead.store(true, Ordering::Release);
        self.reader.wake();
    }
}

/// Bytes that come in are signs of life.
#[derive(Debug)]
pub(super) struct Heard<T> {
    inner: T,
    pulse: Arc<Pulse>,
}

impl<T> Heard<T> {
    pub(super) fn new(inner: T, pulse: Arc<Pulse>) -> Self {
        Self { inner, pulse }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(read) = Pin::new(&mut self.inner).poll_read(cx, buffer) {
            self.pulse.heard.store(true, Ordering::Relaxed);
            return Poll::Ready(read);
        }
        self.pulse.reader.register(cx.waker());
        if self.pulse.dead.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_is_suspect_then_dead_and_a_sign_of_life_heals() {
        let pulse = Pulse::default();
        let life = async {
            tokio::time::sleep(Duration::from_millis(2950)).await;
            assert!(!pulse.is_silent());
            pulse.silence().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            pulse.heard.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(150)).await;
            assert!(!pulse.is_silent());
            let healed = tokio::time::Instant::now();
            pulse.silence().await;
            assert!(healed.elapsed() >= Duration::from_millis(2800));
            healed
        };
        let watch = pulse.watch(Duration::from_secs(3), Duration::from_secs(10));
        let (healed, ()) = futures::future::join(life, watch).await;
        assert!(healed.elapsed() >= Duration::from_millis(9800) && healed.elapsed() < Duration::from_secs(11));
    }
}

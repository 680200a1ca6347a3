//! How long a stream may say nothing in the middle.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// The clock of one stream. It runs only while somebody waits for the stream: what a client leaves unread is there.
#[derive(Debug)]
pub(super) struct Silence {
    patience: Duration,
    since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, since: None, alarm: None }
    }

    /// The stream said something.
    pub(super) fn broken(&mut self) {
        self.since = None;
    }

    /// Nothing is there: ready when that has been so for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = *self.since.get_or_insert_with(Instant::now) + self.patience;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        // Wound up again only when it has run down, not for each piece.
        while alarm.as_mut().poll(cx).is_ready() {
            if alarm.deadline() >= due {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(due);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::{advance, timeout};

    const S: Duration = Duration::from_secs(1);

    async fn over(silence: &mut Silence, within: Duration) -> bool {
        timeout(within, poll_fn(|cx| silence.poll(cx))).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_that_somebody_waits_counts() {
        let mut silence = Silence::new(10 * S);
        for _ in 0..5 {
            assert!(!over(&mut silence, 8 * S).await);
            silence.broken();
        }
        // Nobody asks for a minute, and then what is there is taken.
        advance(60 * S).await;
        assert!(!over(&mut silence, 9 * S).await);
        assert!(over(&mut silence, 2 * S).await);
    }
}

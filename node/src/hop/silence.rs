//! How long a stream may say nothing in the middle.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// The clock of one stream. It runs only while somebody waits for the stream: what a reader leaves unread is there.
#[derive(Debug)]
pub struct Silence {
    patience: Duration,
    murmur: Duration,
    since: Option<Instant>,
    murmurs_since: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    /// A stream that may say nothing for `patience`, and nothing but signs of life for `murmur`.
    #[must_use]
    pub fn new(patience: Duration, murmur: Duration) -> Self {
        Self { patience, murmur, since: None, murmurs_since: None, alarm: None }
    }

    /// The stream said something.
    pub fn broken(&mut self) {
        (self.since, self.murmurs_since) = (None, None);
    }

    /// The stream showed that its end is alive, and said nothing.
    pub fn murmured(&mut self) {
        let now = Instant::now();
        if now.duration_since(*self.murmurs_since.get_or_insert(now)) < self.murmur {
            self.since = None;
        }
    }

    /// From now on the stream may say nothing for so long.
    pub fn limit(&mut self, patience: Duration) {
        (self.patience, self.alarm) = (patience, None);
        self.broken();
    }

    /// Nothing is there: ready when that has been so for too long.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        // A time beyond what the clock counts is never.
        let Some(due) = since.checked_add(self.patience) else { return Poll::Pending };
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
        let mut silence = Silence::new(10 * S, 10 * S);
        for _ in 0..5 {
            assert!(!over(&mut silence, 8 * S).await);
            silence.broken();
        }
        // Nobody asks for a minute, and then what is there is taken.
        advance(60 * S).await;
        assert!(!over(&mut silence, 9 * S).await);
        assert!(over(&mut silence, 2 * S).await);
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_alone_are_borne_with_for_longer_and_not_for_ever() {
        let mut silence = Silence::new(10 * S, 60 * S);
        let mut murmured = 0;
        while !over(&mut silence, 8 * S).await {
            silence.murmured();
            murmured += 1;
            assert!(murmured < 20, "for ever");
        }
        // The one at 64 s and after counts no more.
        assert_eq!(murmured, 9);
        silence.broken();
        assert!(!over(&mut silence, 9 * S).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_limit_holds_at_once() {
        let mut silence = Silence::new(60 * S, 60 * S);
        assert!(!over(&mut silence, 5 * S).await);
        silence.limit(S);
        assert!(over(&mut silence, 2 * S).await);
    }
}

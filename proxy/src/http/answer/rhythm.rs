//! When a stream is silent for longer than it was so far.

use crate::dispatch::beside::{PART, SOONEST};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// A pause is unusual when it is so many times as long as the longest so far.
const TIMES: u32 = 8;
/// Pieces after which that is known.
const KNOWN: u32 = 4;

/// The pauses of one stream. They count only while somebody waits for it: what a reader leaves unread is there.
#[derive(Debug)]
pub(super) struct Rhythm {
    /// Longer pauses are late in any case.
    at_most: Duration,
    longest: Duration,
    pieces: u32,
    since: Option<Instant>,
    /// When it was late last, in this pause.
    late: Option<Instant>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Rhythm {
    /// Of a stream that is lost when it says nothing for `deadline`.
    pub(super) fn new(deadline: Duration) -> Self {
        let at_most = (deadline / PART).max(SOONEST);
        Self { at_most, longest: Duration::ZERO, pieces: 0, since: None, late: None, alarm: None }
    }

    /// Something came.
    pub(super) fn heard(&mut self) {
        self.late = None;
        if let Some(since) = self.since.take() {
            self.longest = self.longest.max(since.elapsed());
        }
        self.pieces = self.pieces.saturating_add(1);
    }

    /// Late again only after as long a silence as it took this time.
    pub(super) fn wait_again(&mut self) {
        self.late = Some(Instant::now());
    }

    fn patience(&self) -> Duration {
        if self.pieces < KNOWN { self.at_most } else { (self.longest * TIMES).clamp(SOONEST, self.at_most) }
    }

    /// Nothing is there: ready when that is unusual.
    pub(super) fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        // A time beyond what the clock counts is never.
        let Some(due) = self.late.unwrap_or(since).checked_add(self.patience()) else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        // Wound up again only when it has run down, or when the stream has turned out to be quick.
        while alarm.deadline() > due || alarm.as_mut().poll(cx).is_ready() {
            if alarm.deadline() == due {
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

    const MS: Duration = Duration::from_millis(1);

    /// Whether it is late within that time.
    async fn late(rhythm: &mut Rhythm, within: Duration) -> bool {
        timeout(within, poll_fn(|cx| rhythm.poll_late(cx))).await.is_ok()
    }

    async fn pauses(rhythm: &mut Rhythm, pause: Duration) {
        for _ in 0..KNOWN {
            assert!(!late(rhythm, pause).await);
            rhythm.heard();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_is_what_is_unusual_for_this_stream() {
        let mut quick = Rhythm::new(Duration::from_secs(30));
        pauses(&mut quick, 5 * MS).await;
        assert!(!late(&mut quick, SOONEST - MS).await);
        assert!(late(&mut quick, 2 * MS).await);
        let mut slow = Rhythm::new(Duration::from_secs(30));
        pauses(&mut slow, 300 * MS).await;
        assert!(!late(&mut slow, 2390 * MS).await);
        assert!(late(&mut slow, 20 * MS).await);
        // Of one that has hardly begun nothing is known.
        let mut new = Rhythm::new(Duration::from_secs(30));
        assert!(!late(&mut new, 3740 * MS).await);
        assert!(late(&mut new, 20 * MS).await);
        // However slow it was.
        let mut slowest = Rhythm::new(Duration::from_secs(4));
        pauses(&mut slowest, 400 * MS).await;
        assert!(late(&mut slowest, 510 * MS).await);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_late_once_in_a_while_and_not_while_nobody_waits() {
        let mut rhythm = Rhythm::new(Duration::from_secs(30));
        pauses(&mut rhythm, 5 * MS).await;
        advance(Duration::from_secs(9)).await;
        assert!(!late(&mut rhythm, 240 * MS).await);
        assert!(late(&mut rhythm, 20 * MS).await);
        rhythm.wait_again();
        assert!(!late(&mut rhythm, 240 * MS).await);
        assert!(late(&mut rhythm, 20 * MS).await);
        rhythm.heard();
        assert!(!late(&mut rhythm, 300 * MS).await, "that pause was not unusual for it");
    }
}

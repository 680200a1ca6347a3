//! Whether a body that is on its way comes fast enough: pure.
//!
//! What has come takes memory from others until the rest is here, so that a client may neither stop nor trickle.

use std::time::Duration;
use tokio::time::Instant;

/// Slowest client that is waited for, bytes per second of each window: below, a body is an attack or a dead line.
const SLOWEST: u32 = 4 * 1024;

/// One body's arrival.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Longest pause between two pieces, and how long a window is.
    pause: Duration,
    last: Instant,
    window: Instant,
    /// Bytes since the window began.
    came: usize,
}

impl Progress {
    /// The head has come.
    pub(crate) fn new(pause: Duration, now: Instant) -> Self {
        Self { pause, last: now, window: now, came: 0 }
    }

    /// When it is to be asked whether the body [`Self::is_stuck`], should no piece come before.
    pub(crate) fn deadline(&self) -> Instant {
        self.last.min(self.window) + self.pause
    }

    /// A piece came, of so many bytes.
    pub(crate) fn came(&mut self, bytes: usize, now: Instant) {
        // An empty piece is none.
        if bytes > 0 {
            self.last = now;
            self.came = self.came.saturating_add(bytes);
        }
    }

    /// Whether it is over with this body. Begins a new window after one that was fast enough.
    pub(crate) fn is_stuck(&mut self, now: Instant) -> bool {
        if now.duration_since(self.last) >= self.pause {
            return true;
        }
        if now.duration_since(self.window) < self.pause {
            return false;
        }
        let slow = (self.came as f64) < self.pause.as_secs_f64() * f64::from(SLOWEST);
        (self.window, self.came) = (now, 0);
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(20);
    const S: Duration = Duration::from_secs(1);

    /// Seconds until a body is given up that brings `bytes` each second, after a large first piece.
    fn given_up_after(bytes: usize) -> Option<u32> {
        let start = Instant::now();
        let mut progress = Progress::new(PAUSE, start);
        progress.came(58 << 20, start);
        (1..3600).find(|second| {
            let now = start + S * *second;
            progress.came(bytes, now);
            progress.is_stuck(now)
        })
    }

    #[test]
    fn who_stops_or_trickles_is_given_up_and_who_is_slow_is_not() {
        assert_eq!(given_up_after(0), Some(20));
        assert_eq!(given_up_after(1), Some(40), "what came before the window counts no more");
        assert_eq!(given_up_after(3 << 10), Some(40));
        assert_eq!(given_up_after(5 << 10), None);
    }

    #[test]
    fn it_is_asked_no_later_than_needed() {
        let start = Instant::now();
        let mut progress = Progress::new(PAUSE, start);
        assert_eq!(progress.deadline(), start + PAUSE);
        progress.came(1 << 20, start + S);
        assert_eq!(progress.deadline(), start + PAUSE, "the window");
        assert!(!progress.is_stuck(start + PAUSE));
        assert_eq!(progress.deadline(), start + S + PAUSE, "the pause");
        assert!(progress.is_stuck(start + S + PAUSE));
    }
}

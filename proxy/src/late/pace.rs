//! How fast those who wait are served.

use std::time::{Duration, Instant};

/// Weights of the newest interval between two that were served. The first sees soon that it has become slower. The second
/// is not taken in when some slots happened to become free together: whoever comes in just then would be told too short a
/// wait, and with enough of them the line would always be as long as its best moment allows.
const LATEST: [f64; 2] = [1.0 / 16.0, 1.0 / 128.0];
/// Intervals after which their mean says how long the wait will be.
const KNOWN: u32 = 16;

/// The time between two that were served, as moving averages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// Seconds, one for each of [`LATEST`].
    intervals: [f64; 2],
    seen: u32,
}

impl Pace {
    /// One was served.
    pub(super) fn served(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let newest = now.saturating_duration_since(last).as_secs_f64();
            self.seen = self.seen.saturating_add(1);
            for (interval, latest) in self.intervals.iter_mut().zip(LATEST) {
                // A plain mean at first.
                *interval += (newest - *interval) * latest.max(f64::from(self.seen).recip());
            }
        }
    }

    /// How long one with `ahead` before it waits, at the slower of the two paces. `None`: too few were served to tell.
    pub(super) fn wait(&self, ahead: usize) -> Option<Duration> {
        let interval = self.intervals.into_iter().fold(0.0, f64::max);
        (self.seen >= KNOWN).then(|| Duration::from_secs_f64(interval * (ahead + 1) as f64))
    }
}

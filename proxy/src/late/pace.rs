//! How fast those who wait are served.

use std::time::{Duration, Instant};

/// Weight of the newest interval between two that were served.
const LATEST: f64 = 1.0 / 16.0;
/// Intervals after which their mean says how long the wait will be.
const KNOWN: u32 = 16;

/// The time between two that were served, as a moving average.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// Seconds.
    interval: f64,
    intervals: u32,
}

impl Pace {
    /// One was served.
    pub(super) fn served(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let newest = now.saturating_duration_since(last).as_secs_f64();
            let weight = LATEST.max(1.0 / f64::from(self.intervals + 1));
            self.interval += (newest - self.interval) * weight;
            self.intervals = self.intervals.saturating_add(1).min(KNOWN);
        }
    }

    /// How long one with `ahead` before it waits. `None`: too few were served to tell.
    pub(super) fn wait(&self, ahead: usize) -> Option<Duration> {
        (self.intervals >= KNOWN).then(|| Duration::from_secs_f64(self.interval * (ahead + 1) as f64))
    }
}

//! When an engine's metrics are read next, and how long a reading counts. Pure.

use std::time::Duration;

/// A reading may take this share of the time: the next one comes 20 times its own duration later,
const SHARE: u32 = 20;
/// but not later than this. A page of llama.cpp waits for the batch under way, half a second of prefill: that costs the
/// engine nothing, and ten blind seconds would cost the routing a lot.
const SPARED: Duration = Duration::from_secs(2);
/// Longest pause when nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const FAILED: Duration = Duration::from_secs(5);
/// Shortest that a reading counts, so that one that fails in between takes no numbers away.
pub const FRESH: Duration = Duration::from_millis(1500);
/// Longest that one reading may take.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// How long a reading counts after which there is a pause of `pause` (C1): until the next one is there, or has failed.
/// After that the report goes on with the agent's own counts.
#[must_use]
pub fn counts_for(pause: Duration) -> Duration {
    FRESH.max(pause + DEADLINE)
}

/// What a reading came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Numbers, and the engine has work.
    Busy,
    /// Numbers, and the engine has none.
    Idle,
    /// No numbers.
    Failed,
}

/// The pace of one engine's readings.
#[derive(Debug, Clone)]
pub struct Pace {
    base: Duration,
    pause: Duration,
}

impl Pace {
    /// A reading each `base` while the engine works.
    #[must_use]
    pub fn new(base: Duration) -> Self {
        Self { base, pause: base }
    }

    /// The pause after a reading that took `took`: the base or 20 times that (two seconds at most), whichever is longer;
    /// longer and longer while the engine idles or does not answer.
    pub fn after(&mut self, outcome: Outcome, took: Duration) -> Duration {
        let longest = match outcome {
            Outcome::Busy => self.base,
            Outcome::Idle => IDLE,
            Outcome::Failed => FAILED,
        };
        self.pause = (self.pause * 2).clamp(self.base, longest.max(self.base));
        self.pause.max((took * SHARE).min(SPARED))
    }

    /// The next reading comes at the base pace again: a request came in.
    pub fn quicken(&mut self) {
        self.pause = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const BASE: Duration = Duration::from_millis(100);
    const QUICK: Duration = Duration::from_millis(2);

    #[test]
    fn a_working_engine_is_read_at_the_base_pace() {
        let mut pace = Pace::new(BASE);
        for _ in 0..5 {
            assert_eq!(pace.after(Outcome::Busy, QUICK), BASE);
        }
    }

    #[test]
    fn a_slow_page_is_read_less_often() {
        assert_eq!(Pace::new(BASE).after(Outcome::Busy, Duration::from_millis(30)), Duration::from_millis(600));
        assert_eq!(Pace::new(BASE).after(Outcome::Busy, Duration::from_millis(500)), SPARED);
    }

    /// Or the load that proxies see would come and go with each reading.
    #[test]
    fn a_reading_counts_until_the_next_one_is_there() {
        for base in [BASE, Duration::from_secs(3)] {
            for took in [QUICK, Duration::from_millis(50), Duration::from_millis(600), DEADLINE] {
                for outcome in [Outcome::Busy, Outcome::Idle] {
                    let mut pace = Pace::new(base);
                    for _ in 0..8 {
                        let pause = pace.after(outcome, took);
                        assert!(counts_for(pause) >= pause + took, "{outcome:?}, {took:?}, {pause:?}");
                    }
                }
            }
        }
    }

    /// C1: an engine that stops answering is not "last seen idle" for ever.
    #[test]
    fn a_reading_does_not_outlive_the_next_ones_failure() {
        assert_eq!(counts_for(BASE), FRESH);
        assert_eq!(counts_for(SPARED), SPARED + DEADLINE);
    }

    #[test]
    fn an_idle_engine_is_left_in_peace() {
        let mut pace = Pace::new(BASE);
        let pauses: Vec<_> = (0..8).map(|_| pace.after(Outcome::Idle, QUICK)).collect();
        assert!(pauses.is_sorted() && pauses[0] == BASE * 2);
        assert_eq!(pauses[7], IDLE);
        assert_eq!(pace.after(Outcome::Busy, QUICK), BASE);
    }

    #[test]
    fn a_hanging_page_is_tried_again_within_seconds() {
        let mut pace = Pace::new(BASE);
        assert_eq!(pace.after(Outcome::Failed, DEADLINE), SPARED);
        assert!((0..20).all(|_| pace.after(Outcome::Failed, DEADLINE) <= FAILED));
    }

    #[test]
    fn failures_back_off_further() {
        let mut pace = Pace::new(BASE);
        let last = (0..20).map(|_| pace.after(Outcome::Failed, QUICK)).last();
        assert_eq!(last, Some(FAILED));
        pace.quicken();
        assert_eq!(pace.after(Outcome::Failed, QUICK), BASE * 2);
    }
}

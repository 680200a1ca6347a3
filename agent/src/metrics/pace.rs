//! When an engine's metrics are read next, and until when a reading counts. Pure.

use std::time::Duration;

/// A reading may take this share of the time: the next one comes 20 times its own duration later,
const SHARE: u32 = 20;
/// but not later than this. A page of llama.cpp waits for the batch under way, half a second of prefill: that costs the
/// engine nothing, and ten blind seconds would cost the routing a lot.
const SPARED: Duration = Duration::from_secs(2);
/// Longest pause when nothing happens. Below [`FRESH`], so that an idle engine's numbers are never old.
const IDLE: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const FAILED: Duration = Duration::from_secs(5);
/// How long a reading counts (C1). After that the report goes on with the agent's own counts.
pub const FRESH: Duration = Duration::from_millis(1500);
/// Longest that one reading may take.
pub const DEADLINE: Duration = Duration::from_secs(1);

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

    #[test]
    fn an_idle_engine_is_left_in_peace_but_its_numbers_stay_fresh() {
        let mut pace = Pace::new(BASE);
        let pauses: Vec<_> = (0..8).map(|_| pace.after(Outcome::Idle, QUICK)).collect();
        assert!(pauses.is_sorted() && pauses[0] == BASE * 2);
        assert_eq!(pauses[7], IDLE);
        assert!(IDLE < FRESH);
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

//! Whether an engine that the agent launched, and that lives, is to be started again because it hangs. Pure.
//!
//! Loading a model takes long, and so may a prompt: time alone says little. What counts is how long an engine that once
//! served has been out of service without doing anything for anybody, and even then a trial decides (see
//! [`super::health`]). One that has never served gets a deadline of its own.

use std::time::{Duration, Instant};

/// How long a launched engine is borne with; `None`: for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// After it was ready: out of service, and no sign of life.
    pub hang: Option<Duration>,
    /// From its start until it is ready for the first time.
    pub start: Option<Duration>,
}

impl Default for Patience {
    /// Five minutes, for prompts that are read for minutes; an hour, for models of hundreds of gigabytes on slow disks.
    fn default() -> Self {
        Self { hang: Some(Duration::from_secs(300)), start: Some(Duration::from_secs(3600)) }
    }
}

/// Whose patience is at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overdue {
    /// To be tried: only one that fails then is started again.
    #[error("it hangs: nothing came from it for {} s, and a request for one token failed", .0.as_secs())]
    Hangs(Duration),
    /// To be started again.
    #[error("it was not ready {} s after its start", .0.as_secs())]
    NeverReady(Duration),
}

/// One process of an engine, watched.
#[derive(Debug, Clone, Copy)]
pub struct Hang {
    was_ready: bool,
    /// Start of the process, its last sign of life, or its last trial that was not failed.
    since: Instant,
}

impl Hang {
    /// A process has started.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { was_ready: false, since: now }
    }

    /// Whether it was ready before.
    #[must_use]
    pub fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// What a look at it showed: whether it may serve, and whether anybody has got anything from it since the last look.
    pub fn saw(&mut self, ready: bool, alive: bool, now: Instant) {
        self.was_ready |= ready;
        if ready || (alive && self.was_ready) {
            self.since = now;
        }
    }

    /// A trial showed that it does not hang.
    pub fn forgive(&mut self, now: Instant) {
        self.since = now;
    }

    /// Whether it has been borne with long enough.
    #[must_use]
    pub fn overdue(&self, patience: &Patience, now: Instant) -> Option<Overdue> {
        let limit = if self.was_ready { patience.hang } else { patience.start }?;
        let over = now.saturating_duration_since(self.since) >= limit;
        over.then_some(if self.was_ready { Overdue::Hangs(limit) } else { Overdue::NeverReady(limit) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const PATIENCE: Patience = Patience { hang: Some(Duration::from_secs(60)), start: Some(Duration::from_secs(600)) };

    /// C11: an engine that loads for more than five minutes is not dead.
    #[test]
    fn loading_takes_as_long_as_the_start_deadline() {
        let start = Instant::now();
        let mut hang = Hang::new(start);
        for second in 0..600 {
            hang.saw(false, false, start + S * second);
            assert_eq!(hang.overdue(&PATIENCE, start + S * second), None);
        }
        assert_eq!(hang.overdue(&PATIENCE, start + S * 600), Some(Overdue::NeverReady(S * 600)));
        let for_ever = Patience { hang: None, start: None };
        assert_eq!(hang.overdue(&for_ever, start + S * 1_000_000), None);
    }

    #[test]
    fn who_served_and_then_says_nothing_hangs() {
        let start = Instant::now();
        let mut hang = Hang::new(start);
        hang.saw(true, false, start);
        // Out of service, but it streams.
        for second in 1..300 {
            hang.saw(false, true, start + S * second);
            assert_eq!(hang.overdue(&PATIENCE, start + S * second), None);
        }
        for second in 300..359 {
            hang.saw(false, false, start + S * second);
            assert_eq!(hang.overdue(&PATIENCE, start + S * second), None);
        }
        assert_eq!(hang.overdue(&PATIENCE, start + S * 359), Some(Overdue::Hangs(S * 60)));
        hang.forgive(start + S * 359);
        assert_eq!(hang.overdue(&PATIENCE, start + S * 418), None);
        hang.saw(true, false, start + S * 1000);
        assert_eq!(hang.overdue(&PATIENCE, start + S * 1059), None);
    }
}

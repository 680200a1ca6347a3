//! What may happen very often and is logged once a second at most: pure.

use std::time::{Duration, Instant};

/// Between two lines of the log.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts what happened since it was last told.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    told: Option<Instant>,
    since: u64,
}

impl Seldom {
    /// It happened. `Some` when it is time to tell, with how often it has happened.
    pub(super) fn count(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < PAUSE) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let now = Instant::now();
        let mut seldom = Seldom::default();
        assert_eq!(seldom.count(now), Some(1));
        assert_eq!(seldom.count(now + PAUSE / 2), None);
        assert_eq!(seldom.count(now + PAUSE / 2), None);
        assert_eq!(seldom.count(now + PAUSE), Some(3));
    }
}

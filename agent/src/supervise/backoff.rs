//! When an engine that ended is started again. Pure.

use rand::{Rng, RngExt};
use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// An engine that ran this long has not failed at starting: the count begins anew.
const STABLE: Duration = Duration::from_secs(60);
/// Ends in a row that are called a crash loop.
pub const CRASH_LOOP: u32 = 5;

/// Counts an engine's ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The engine ended after `ran`. The pause doubles from half a second to a minute, less up to a half by chance, so
    /// that engines that fall together don't rise together.
    pub fn ended(&mut self, ran: Duration, rng: &mut impl Rng) -> Duration {
        self.count(ran);
        pause(self.failures, rng)
    }

    /// The engine ended after `ran`; somebody else decides when it is started again.
    pub fn count(&mut self, ran: Duration) {
        self.failures = if ran >= STABLE { 1 } else { self.failures.saturating_add(1) };
    }

    /// Ends in a row.
    #[must_use]
    pub fn failures(self) -> u32 {
        self.failures
    }
}

/// The pause after so many ends in a row.
pub(crate) fn pause(failures: u32, rng: &mut impl Rng) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let whole = (FIRST * 2_u32.pow(doublings)).min(LONGEST);
    whole.mul_f64(rng.random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn doubles_up_to_a_minute_with_jitter() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..50 {
            let mut backoff = Backoff::default();
            let mut whole = FIRST;
            for failures in 1..40 {
                let pause = backoff.ended(Duration::from_secs(1), &mut rng);
                assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
                assert_eq!(backoff.failures(), failures);
                whole = (whole * 2).min(LONGEST);
            }
        }
    }

    #[test]
    fn jitter_spreads() {
        let mut rng = SmallRng::seed_from_u64(2);
        let pauses: std::collections::HashSet<_> =
            (0..20).map(|_| Backoff::default().ended(Duration::ZERO, &mut rng)).collect();
        assert!(pauses.len() > 15);
    }

    #[test]
    fn a_long_run_begins_anew() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut backoff = Backoff::default();
        for _ in 0..10 {
            backoff.ended(Duration::ZERO, &mut rng);
        }
        assert!(backoff.ended(STABLE, &mut rng) <= FIRST);
        assert_eq!(backoff.failures(), 1);
    }
}

//! When a replica's failures keep it out of rotation, and how it comes back: pure.
//!
//! A few failures in a row eject it for a time that doubles with each further ejection; then one request may try it.
//! Success lets it back in. Refusals for being full and answers that are the client's fault are no failures.

use crate::route::Standing;
use rand::{Rng, RngExt};
use std::time::{Duration, Instant};

/// Failures in a row that eject.
const FAILURES: u32 = 3;
/// First ejection.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest ejection.
const LONGEST: Duration = Duration::from_secs(60);
/// Doublings until [`LONGEST`].
const DOUBLINGS: u32 = 6;
/// Share of each ejection that is drawn by chance, so that probes of many proxies don't come together.
const JITTER: f64 = 0.2;

/// The record of one replica.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Breaker {
    failures: u32,
    ejections: u32,
    until: Option<Instant>,
    probing: bool,
}

impl Breaker {
    /// Whether the replica may be used.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.until {
            None => Standing::Good,
            Some(until) if now < until || self.probing => Standing::Ejected,
            Some(_) => Standing::Probation,
        }
    }

    /// A request goes there. On probation it is the one that tries; returns whether it is.
    pub(crate) fn on_send(&mut self, now: Instant) -> bool {
        let probe = self.standing(now) == Standing::Probation;
        self.probing |= probe;
        probe
    }

    /// The replica answered: it is back, and its past is forgotten.
    pub(crate) fn on_success(&mut self) {
        *self = Self::default();
    }

    /// The replica failed. Returns whether this ejected it.
    pub(crate) fn on_failure(&mut self, now: Instant, rng: &mut impl Rng) -> bool {
        self.failures += 1;
        let out = self.until.is_some_and(|until| now < until);
        if out || (self.until.is_none() && self.failures < FAILURES) {
            return false;
        }
        let doubled = SHORTEST * 2u32.pow(self.ejections.min(DOUBLINGS));
        let length = doubled.min(LONGEST).mul_f64(1.0 - JITTER * rng.random::<f64>());
        *self = Self { failures: 0, ejections: self.ejections + 1, until: Some(now + length), probing: false };
        true
    }

    /// The request that tried it ended without a verdict (the client hung up, or the replica was full): another may try.
    pub(crate) fn on_no_verdict(&mut self) {
        self.probing = false;
    }

    /// Whether there is nothing to remember.
    pub(crate) fn is_clean(&self) -> bool {
        self.failures == 0 && self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn fail(breaker: &mut Breaker, now: Instant, times: u32) -> bool {
        let mut rng = StdRng::seed_from_u64(1);
        (0..times).filter(|_| breaker.on_failure(now, &mut rng)).count() > 0
    }

    #[test]
    fn three_failures_in_a_row_eject_and_a_success_between_forgives() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        assert!(!fail(&mut breaker, now, 2));
        breaker.on_success();
        assert!(!fail(&mut breaker, now, 2));
        assert!(fail(&mut breaker, now, 1));
        assert_eq!(breaker.standing(now), Standing::Ejected);
    }

    #[test]
    fn one_request_tries_it_and_success_lets_it_in() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        fail(&mut breaker, now, FAILURES);
        let later = now + SHORTEST;
        assert_eq!(breaker.standing(later), Standing::Probation);
        assert!(breaker.on_send(later));
        assert_eq!(breaker.standing(later), Standing::Ejected, "one at a time");
        breaker.on_success();
        assert_eq!(breaker.standing(later), Standing::Good);
    }

    #[test]
    fn a_failed_probe_doubles_the_time_out() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        fail(&mut breaker, now, FAILURES);
        let later = now + SHORTEST;
        breaker.on_send(later);
        assert!(fail(&mut breaker, later, 1), "one failure is enough on probation");
        assert_eq!(breaker.standing(later + SHORTEST), Standing::Ejected);
        assert_eq!(breaker.standing(later + SHORTEST * 2), Standing::Probation);
    }

    #[test]
    fn a_probe_without_a_verdict_leaves_the_way_open() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        fail(&mut breaker, now, FAILURES);
        let later = now + SHORTEST;
        breaker.on_send(later);
        breaker.on_no_verdict();
        assert_eq!(breaker.standing(later), Standing::Probation);
    }

    proptest! {
        #[test]
        fn nobody_is_out_for_longer_than_a_minute(steps in proptest::collection::vec((0u8..4, 0u64..90_000), 0..60)) {
            let mut now = Instant::now();
            let mut rng = StdRng::seed_from_u64(7);
            let mut breaker = Breaker::default();
            for (step, wait) in steps {
                now += Duration::from_millis(wait);
                match step {
                    0 => breaker.on_success(),
                    1 => { breaker.on_failure(now, &mut rng); }
                    2 => { breaker.on_send(now); }
                    _ => breaker.on_no_verdict(),
                }
                breaker.on_no_verdict();
                prop_assert_ne!(breaker.standing(now + LONGEST), Standing::Ejected);
            }
        }
    }
}

//! How fast an engine prefills: time to first token against the size of what is new to it, a line fitted by
//! exponentially weighted least squares.
//!
//! The slope is the prefill speed, the rest what every request pays. What a request waits for others to be prefilled
//! would pass for slowness of its own, so those that found another one being prefilled count little.

use std::time::Duration;

/// What is left of earlier samples' weight at each new one: about the last twenty count.
const KEEP: f64 = 0.95;
/// Weight of a request that found another one being prefilled.
const NOT_ALONE: f64 = 0.1;
/// Samples, by weight, before there is anything to say: of the first alone, on a cold engine or in a busy moment, proxies
/// would conclude that the replica is slow, send nothing there, and it would not be measured again for a minute.
const ENOUGH: f64 = 2.5;
/// A request that takes this many times what was expected counts as no slower: it hung, or came in a bad moment. An
/// engine that has really turned slow is followed all the same, a few requests later.
const OUTLIER: f64 = 4.0;
/// Sizes that vary by less than this, KiB (standard deviation), say nothing of the slope.
const SPREAD: f64 = 0.5;

/// Weighted sums over the samples: x is KiB, y microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prefill {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Prefill {
    /// A prompt of `kib` new KiB had its first token after `ttft`.
    pub(super) fn add(&mut self, kib: u32, ttft: Duration, alone: bool) {
        let weight = if alone { 1.0 } else { NOT_ALONE };
        let keep = KEEP.powf(weight);
        let (x, y) = (f64::from(kib), ttft.as_secs_f64() * 1e6);
        let y = self.expected(x).map_or(y, |expected| y.min(expected * OUTLIER));
        let fold = |sum: &mut f64, value: f64| *sum = *sum * keep + weight * value;
        fold(&mut self.weight, 1.0);
        fold(&mut self.x, x);
        fold(&mut self.y, y);
        fold(&mut self.xx, x * x);
        fold(&mut self.xy, x * y);
    }

    fn expected(&self, kib: f64) -> Option<f64> {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let base = self.first_token().map(micros)?;
        Some((base + self.per_kib().map_or(0.0, micros) * kib).max(1000.0))
    }

    fn means(&self) -> Option<(f64, f64)> {
        (self.weight >= ENOUGH).then(|| (self.x / self.weight, self.y / self.weight))
    }

    /// What each KiB adds; `None` while prompts are too much alike to tell.
    pub(super) fn per_kib(&self) -> Option<Duration> {
        let (x, y) = self.means()?;
        let variance = self.xx / self.weight - x * x;
        if variance < SPREAD * SPREAD {
            return None;
        }
        let slope = (self.xy / self.weight - x * y) / variance;
        // Longer prompts never take less, and an empty one never less than nothing.
        Some(duration(slope.clamp(0.0, y / x.max(f64::MIN_POSITIVE))))
    }

    /// What an empty prompt takes; what an average one takes while they are too much alike to tell.
    pub(super) fn first_token(&self) -> Option<Duration> {
        let (x, y) = self.means()?;
        let per_kib = self.per_kib().unwrap_or_default().as_secs_f64() * 1e6;
        Some(duration(y - per_kib * x))
    }
}

fn duration(micros: f64) -> Duration {
    Duration::try_from_secs_f64(micros.max(0.0) / 1e6).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    const MS: Duration = Duration::from_millis(1);

    fn close(found: Option<Duration>, expected: Duration) -> bool {
        found.is_some_and(|found| found.abs_diff(expected) < MS / 10)
    }

    #[test]
    fn base_and_slope_are_told_apart() {
        let mut prefill = Prefill::default();
        assert_eq!((prefill.first_token(), prefill.per_kib()), (None, None));
        for kib in [1, 4, 2, 30, 8] {
            prefill.add(kib, 20 * MS + 5 * MS * kib, true);
        }
        assert!(close(prefill.per_kib(), 5 * MS) && close(prefill.first_token(), 20 * MS), "{prefill:?}");
    }

    /// It may have met a cold engine.
    #[test]
    fn the_first_requests_alone_are_no_speed() {
        let mut prefill = Prefill::default();
        for (nth, ttft) in [900, 30, 30].into_iter().enumerate() {
            assert_eq!(prefill.first_token(), None, "after {nth}");
            prefill.add(4, ttft * MS, true);
        }
        assert!(prefill.first_token().is_some());
    }

    #[test]
    fn equal_prompts_give_an_average_and_no_slope() {
        let mut prefill = Prefill::default();
        for ttft in [30, 50, 40] {
            prefill.add(4, ttft * MS, true);
        }
        assert_eq!(prefill.per_kib(), None);
        assert!(close(prefill.first_token(), Duration::from_micros(40_175)), "{:?}", prefill.first_token());
    }

    #[test]
    fn it_follows_an_engine_that_turns_slow_within_some_requests() {
        let mut prefill = Prefill::default();
        for n in 0..100 {
            prefill.add(n % 8, 10 * MS * (1 + n % 8), true);
        }
        for n in 0..40 {
            prefill.add(n % 8, 40 * MS * (1 + n % 8), true);
        }
        assert!(prefill.per_kib().unwrap() > 30 * MS, "{:?}", prefill.per_kib());
    }

    #[test]
    fn one_that_hung_does_not_make_it_slow() {
        let mut prefill = Prefill::default();
        for kib in [1, 4, 2, 6, 8, 3, 5, 7] {
            prefill.add(kib, 20 * MS + 5 * MS * kib, true);
        }
        prefill.add(4, 60_000 * MS, true);
        assert!(prefill.first_token().unwrap() + prefill.per_kib().unwrap() * 4 < 80 * MS, "{prefill:?}");
    }

    #[test]
    fn waiting_for_others_is_hardly_taken_for_slowness() {
        let mut prefill = Prefill::default();
        for n in 0..40 {
            prefill.add(n % 8, 10 * MS * (1 + n % 8), true);
            prefill.add(n % 8, 200 * MS, false);
        }
        let whole = prefill.first_token().unwrap() + prefill.per_kib().unwrap() * 4;
        assert!((50 * MS..80 * MS).contains(&whole), "{whole:?}");
    }

    proptest! {
        #[test]
        fn whatever_comes_nothing_is_negative_or_overflows(samples: Vec<(u32, u64, bool)>) {
            let mut prefill = Prefill::default();
            for (kib, micros, alone) in samples {
                prefill.add(kib, Duration::from_micros(micros), alone);
                let _ = (prefill.first_token(), prefill.per_kib());
            }
        }
    }
}

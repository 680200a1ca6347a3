//! How many retries the pool may cost: pure.
//!
//! Each request earns a fifth of a retry, so that replicas that time out or answer 5xx to everything are not asked
//! three times as much on top. Connections lost before the answer are retried outside the budget: the replica got no
//! work done, and the client must not notice that it went away.

/// What a pool's retries and second askings may cost.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Earned per request.
    per_request: f64,
    /// Most that can be saved up; also what there is at the start, so that a quiet proxy can retry too.
    saved: f64,
}

const RETRIES: Rate = Rate { per_request: 0.2, saved: 20.0 };
/// Percent of the requests and streams that may be hedged, where nothing else was said.
pub(crate) const HEDGED_PERCENT: u8 = 10;
/// One replica that hangs has many requests and streams, which are late together.
const HEDGES_SAVED: f64 = 64.0;

/// Retries that may still be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    rate: Rate,
    left: f64,
}

impl Budget {
    /// Of requests that go elsewhere after a failure.
    pub(crate) fn of_retries() -> Self {
        Self { rate: RETRIES, left: RETRIES.saved }
    }

    /// Of requests that another replica gets as well, the first being late: so many percent of all.
    pub(crate) fn of_hedges(percent: u8) -> Self {
        let saved = if percent == 0 { 0.0 } else { HEDGES_SAVED };
        Self { rate: Rate { per_request: f64::from(percent) / 100.0, saved }, left: saved }
    }

    /// A request came in.
    pub(crate) fn earn(&mut self) {
        self.left = (self.left + self.rate.per_request).min(self.rate.saved);
    }

    /// Whether there is one left.
    pub(crate) fn has_one(&self) -> bool {
        self.left >= 1.0
    }

    /// Whether one more retry may be made; takes it.
    pub(crate) fn spend(&mut self) -> bool {
        let enough = self.has_one();
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_everything_costs_a_fifth_more_at_most_and_lateness_what_was_said() {
        let spent = |mut budget: Budget| {
            let spends = |_: &u32| {
                budget.earn();
                budget.spend()
            };
            (0..1000).filter(spends).count()
        };
        let retries = spent(Budget::of_retries());
        assert!((200..=220).contains(&retries), "{retries}");
        let [none, tenth, all] = [0, HEDGED_PERCENT, 100].map(|percent| spent(Budget::of_hedges(percent)));
        assert_eq!((none, all), (0, 1000));
        assert!((100..=164).contains(&tenth), "{tenth}");
    }
}

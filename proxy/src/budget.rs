//! How many retries the pool may cost: pure.
//!
//! Each request earns a fifth of a retry, so that replicas that time out or answer 5xx to everything are not asked
//! three times as much on top. Connections lost before the answer are retried outside the budget: the replica got no
//! work done, and the client must not notice that it went away.

/// Retries earned per request.
const PER_REQUEST: f64 = 0.2;
/// Most that can be saved up; also what there is at the start, so that a quiet proxy can retry too.
const SAVED: f64 = 20.0;

/// Retries that may still be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    left: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: SAVED }
    }
}

impl Budget {
    /// A request came in.
    pub(crate) fn earn(&mut self) {
        self.left = (self.left + PER_REQUEST).min(SAVED);
    }

    /// Whether one more retry may be made; takes it.
    pub(crate) fn spend(&mut self) -> bool {
        let enough = self.left >= 1.0;
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
    fn failing_everything_costs_a_fifth_more_at_most() {
        let mut budget = Budget::default();
        let retries = (0..1000)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        assert!((200..=220).contains(&retries), "{retries}");
    }
}

//! Models that were looked up in vain a moment ago: pure.
//!
//! A client that asks for a wrong model again and again costs one look-up per while, not one per request. Once the
//! directory knows the model nobody asks here.

use dunlin_protocol::id::ModelId;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long a model stays not found.
const NOT_FOUND: Duration = Duration::from_secs(2);
/// Models remembered; of more, the oldest are looked up again.
const MODELS: usize = 256;

/// Models not found, oldest first.
#[derive(Debug, Default)]
pub(super) struct NotFound(VecDeque<(ModelId, Instant)>);

impl NotFound {
    /// Nobody registers `model`.
    pub(super) fn add(&mut self, model: &ModelId, now: Instant) {
        self.forget(now);
        self.0.retain(|(known, _)| known != model);
        if self.0.len() >= MODELS {
            self.0.pop_front();
        }
        self.0.push_back((model.clone(), now));
    }

    /// Whether `model` was looked up in vain just now.
    pub(super) fn has(&mut self, model: &ModelId, now: Instant) -> bool {
        self.forget(now);
        self.0.iter().any(|(known, _)| known == model)
    }

    fn forget(&mut self, now: Instant) {
        while self.0.front().is_some_and(|(_, since)| now.saturating_duration_since(*since) >= NOT_FOUND) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: impl ToString) -> ModelId {
        ModelId::new(&name.to_string()).unwrap()
    }

    #[test]
    fn a_model_is_not_found_for_a_while() {
        let (mut missing, now) = (NotFound::default(), Instant::now());
        assert!(!missing.has(&model("a"), now));
        missing.add(&model("a"), now);
        missing.add(&model("b"), now + NOT_FOUND / 2);
        assert!(missing.has(&model("a"), now + NOT_FOUND / 2));
        assert!(!missing.has(&model("a"), now + NOT_FOUND) && missing.has(&model("b"), now + NOT_FOUND));
        missing.add(&model("b"), now + NOT_FOUND);
        assert!(missing.has(&model("b"), now + NOT_FOUND * 2 - Duration::from_millis(1)));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (mut missing, now) = (NotFound::default(), Instant::now());
        (0..=MODELS).for_each(|n| missing.add(&model(n), now));
        assert_eq!(missing.0.len(), MODELS);
        assert!(!missing.has(&model(0), now) && missing.has(&model(MODELS), now));
    }
}

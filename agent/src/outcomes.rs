//! How requests to one engine ended, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The engine's whole answer went out, below 400.
    Answered,
    /// The same, a status of 400 to 499.
    ClientError,
    /// The same, 500 and above.
    ServerError,
    /// The engine's answer broke off.
    Broken,
    /// The caller went away before the end.
    HungUp,
    /// No answer of the engine: it could not be reached, broke the connection, or was silent.
    EngineFailed,
    /// Refused: all slots and the queue were taken.
    Full,
    /// Refused for another reason: not ready, another model, draining.
    Refused,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Answered,
        Self::ClientError,
        Self::ServerError,
        Self::Broken,
        Self::HungUp,
        Self::EngineFailed,
        Self::Full,
        Self::Refused,
    ];

    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::ClientError => "client_error",
            Self::ServerError => "server_error",
            Self::Broken => "broken",
            Self::HungUp => "hung_up",
            Self::EngineFailed => "engine_failed",
            Self::Full => "full",
            Self::Refused => "refused",
        }
    }

    /// Of an answer that went out whole.
    #[must_use]
    pub fn of(status: http::StatusCode) -> Self {
        match status.as_u16() {
            500.. => Self::ServerError,
            400.. => Self::ClientError,
            _ => Self::Answered,
        }
    }
}

/// Counts of one replica.
#[derive(Debug, Default)]
pub struct Outcomes([AtomicU64; Outcome::ALL.len()]);

impl Outcomes {
    /// A request ended.
    pub fn count(&self, outcome: Outcome) {
        if let Some(count) = self.0.get(outcome as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All counts.
    pub fn all(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_count() {
        let outcomes = Outcomes::default();
        for (times, outcome) in Outcome::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| outcomes.count(outcome));
        }
        for (times, (outcome, count)) in outcomes.all().enumerate() {
            assert_eq!((Outcome::ALL[times], times as u64), (outcome, count));
        }
    }
}

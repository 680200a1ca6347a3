//! Which tokens are worth a question to the API server. Pure: strangers can send any number of them.

use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Questions in a row.
const BURST: f64 = 100.0;
/// Questions a second, in the long run: hundreds of pods that start at once are through within seconds.
const PER_SECOND: f64 = 50.0;
/// A refused token stays refused for so long without another question. A pod that has just been put on record is told
/// [`super::Refusal::PodUnknown`], which is not remembered.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Refused tokens that are remembered.
const TOKENS: usize = 1024;

/// What to do with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Have it reviewed.
    Ask,
    /// It was refused a moment ago.
    KnownBad,
    /// Let it come again later.
    TooMany,
}

/// Counts questions, and remembers what came of them.
#[derive(Debug)]
pub(super) struct Gate {
    left: f64,
    filled: Option<Instant>,
    refused: HashMap<[u8; 32], Instant>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { left: BURST, filled: None, refused: HashMap::new() }
    }
}

impl Gate {
    pub(super) fn ask(&mut self, token: &str, now: Instant) -> Pass {
        if self.refused.get(&key(token)).is_some_and(|at| now.duration_since(*at) < REMEMBERED) {
            return Pass::KnownBad;
        }
        let since = self.filled.replace(now).map_or(Duration::ZERO, |filled| now.duration_since(filled));
        self.left = (self.left + since.as_secs_f64() * PER_SECOND).min(BURST);
        if self.left < 1.0 {
            return Pass::TooMany;
        }
        self.left -= 1.0;
        Pass::Ask
    }

    pub(super) fn refused(&mut self, token: &str, now: Instant) {
        if self.refused.len() >= TOKENS {
            self.refused.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        }
        // A flood of different ones is for the count above.
        if self.refused.len() < TOKENS {
            self.refused.insert(key(token), now);
        }
    }
}

fn key(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_token_is_asked_about_once_in_a_while() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        assert_eq!(gate.ask("a", now), Pass::Ask);
        gate.refused("a", now);
        assert_eq!(gate.ask("a", now + REMEMBERED / 2), Pass::KnownBad);
        assert_eq!(gate.ask("b", now), Pass::Ask);
        assert_eq!(gate.ask("a", now + REMEMBERED), Pass::Ask);
    }

    #[test]
    fn a_flood_is_let_through_at_its_pace() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        let passed = |gate: &mut Gate, at| (0..1000).filter(|n| gate.ask(&n.to_string(), at) == Pass::Ask).count();
        assert_eq!(passed(&mut gate, now), BURST as usize);
        assert_eq!(passed(&mut gate, now), 0);
        assert_eq!(passed(&mut gate, now + Duration::from_secs(1)), PER_SECOND as usize);
        assert_eq!(passed(&mut gate, now + Duration::from_secs(3600)), BURST as usize);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut gate, now) = (Gate::default(), Instant::now());
        (0..TOKENS * 3).for_each(|n| gate.refused(&n.to_string(), now));
        assert_eq!(gate.refused.len(), TOKENS);
        gate.refused("new", now + REMEMBERED);
        assert_eq!(gate.refused.len(), 1);
    }
}

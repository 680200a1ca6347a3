//! What came out.

use super::Micros;

/// Times to first token of some runs.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    times: Vec<Micros>,
    /// Prompt tokens in all, and those found in prefix caches.
    pub prompt_tokens: (u64, u64),
    /// Requests that agents refused, for all tries.
    pub refused: u64,
}

impl Summary {
    /// A request had its first token after `time`.
    pub fn add(&mut self, time: Micros) {
        self.times.push(time);
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: Self) {
        self.times.extend(other.times);
        self.prompt_tokens.0 += other.prompt_tokens.0;
        self.prompt_tokens.1 += other.prompt_tokens.1;
        self.refused += other.refused;
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.times.len()
    }

    /// Milliseconds.
    pub fn mean(&self) -> f64 {
        self.times.iter().sum::<Micros>() as f64 / self.times.len().max(1) as f64 / 1000.0
    }

    /// Milliseconds; all but one of a hundred took less.
    pub fn p99(&self) -> f64 {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
        sorted.get(at).map_or(0.0, |time| *time as f64 / 1000.0)
    }

    /// Share of the prompts' tokens that were found in prefix caches.
    pub fn hit_rate(&self) -> f64 {
        self.prompt_tokens.1 as f64 / self.prompt_tokens.0.max(1) as f64
    }
}

//! The few distributions that are needed.

use super::Micros;
use rand::{Rng, RngExt};

/// Time to the next of events that come independently, `per_s` of them a second.
pub fn until_next(per_s: f64, rng: &mut impl Rng) -> Micros {
    let uniform: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
    (-uniform.ln() / per_s * 1e6) as Micros
}

/// Anything of the range.
pub fn between(low: u64, high: u64, rng: &mut impl Rng) -> u64 {
    if low >= high { low } else { rng.random_range(low..=high) }
}

//! The policies that are compared. All but ours are models of what load balancers do: they send at once, and what an
//! engine can't take yet waits inside it.

use rand::{RngExt, rngs::SmallRng};

/// How a replica is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// Any.
    Random,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest of this proxy's requests.
    LeastInFlight,
    /// Of any two the one with the fewer.
    PowerOfTwo,
    /// `dunlin_proxy::balance`.
    Ours,
    /// One queue in front of all engines that knows everything at once and sends its first to the free engine with the
    /// shortest time to first token.
    Ideal,
}

impl Policy {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::Random, Self::RoundRobin, Self::LeastInFlight, Self::PowerOfTwo, Self::Ours, Self::Ideal];

    /// As in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round robin",
            Self::LeastInFlight => "least in flight",
            Self::PowerOfTwo => "power of two",
            Self::Ours => "dunlin",
            Self::Ideal => "ideal queue",
        }
    }
}

/// One proxy of the simple kind.
#[derive(Debug, Clone)]
pub struct Simple {
    /// Its requests at each engine.
    pub in_flight: Vec<u32>,
    turn: usize,
}

impl Simple {
    pub fn new(engines: usize, first: usize) -> Self {
        Self { in_flight: vec![0; engines], turn: first }
    }

    /// The engine for the next request.
    pub fn choose(&mut self, policy: Policy, rng: &mut SmallRng) -> usize {
        let count = self.in_flight.len();
        let fewer = |a: usize, b: usize| if self.in_flight[b] < self.in_flight[a] { b } else { a };
        match policy {
            Policy::RoundRobin => {
                self.turn += 1;
                self.turn % count
            }
            Policy::LeastInFlight => {
                let first = rng.random_range(0..count);
                (0..count).map(|n| (first + n) % count).reduce(fewer).unwrap_or(0)
            }
            Policy::PowerOfTwo => {
                let one = rng.random_range(0..count);
                let other = (one + rng.random_range(1..count.max(2))) % count;
                fewer(one, other)
            }
            _ => rng.random_range(0..count),
        }
    }
}

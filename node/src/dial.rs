//! Dials: one at a time per peer, joined, bounded in number and time.

use std::time::Duration;

/// Longest time from asking for a connection to its end, one way or the other.
pub const DEADLINE: Duration = Duration::from_secs(5);

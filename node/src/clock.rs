//! The wall clock, read in one place. Only certificates and epochs look at it; everything else takes `now` as an
//! argument or measures with a monotonic clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 on a machine whose clock stands before that.
#[must_use]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

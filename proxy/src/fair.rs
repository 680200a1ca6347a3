//! How much of something bounded one tenant may take: pure.

/// How many times what it leaves free one tenant may hold.
const OF_FREE: usize = 3;

/// Whether one tenant may hold `held` while `free` are left to all (the dynamic threshold of shared switch buffers:
/// Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). One alone so gets three quarters, and whoever
/// comes next finds room, however many of the others have filled theirs.
pub(crate) fn may_hold(held: usize, free: usize) -> bool {
    held <= free.saturating_mul(OF_FREE)
}

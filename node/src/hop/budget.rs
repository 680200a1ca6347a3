//! One byte budget per process for bodies that are held in memory.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that all requests of this process together may hold. Cheap to clone; clones share the budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// Room for the bodies of a few requests of the largest kind (64 MiB each) and thousands of ordinary ones.
    pub const DEFAULT: usize = 512 * 1024 * 1024;

    /// A budget of so many bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Ledger { limit, used: AtomicUsize::new(0) }))
    }

    /// Takes bytes out of the budget until the reservation is dropped; `None` when they aren't there. Never waits.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let mut reservation = Reservation { ledger: Arc::clone(&self.0), bytes: 0 };
        reservation.grow(bytes).then_some(reservation)
    }

    /// Bytes reserved now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

/// Bytes taken out of a [`Budget`]; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Reservation {
    /// Takes more bytes, for a body whose length is learnt while it arrives; `false`, and nothing taken, when they
    /// aren't there.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.ledger.limit);
        let taken = self.ledger.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_beyond_the_limit_and_gets_all_back() {
        let budget = Budget::new(100);
        let mut first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        assert!(!first.grow(41) && first.grow(40) && !first.grow(1));
        assert_eq!(budget.used(), 100);
        drop(first);
        assert_eq!(budget.used(), 0);
        assert!(budget.reserve(usize::MAX).is_none());
    }
}

//! Who holds how much of the memory for request bodies.
//!
//! No tenant may hold so much that another finds no room (see [`crate::fair`]).

use crate::{auth::Tenant, fair};
use dunlin_node::hop::{Budget, Reservation};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bodies whose answer streams may be kept meanwhile up to this part of the memory: the rest is for requests that come.
const STAYING: usize = 2;

/// The memory for all bodies. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Shares(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: Budget,
    limit: usize,
    /// Of those whose bodies are here; so no more entries than bodies.
    held: Mutex<HashMap<Tenant, Holding>>,
}

#[derive(Debug, Default)]
struct Holding {
    bytes: usize,
    bodies: usize,
}

impl Shares {
    /// `limit` bytes for all.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { budget: Budget::new(limit), limit, held: Mutex::default() }))
    }

    /// Nothing yet, for one body of `tenant`.
    pub(crate) fn open(&self, tenant: Tenant) -> Option<Share> {
        let reservation = self.0.budget.reserve(0)?;
        self.0.held().entry(tenant.clone()).or_default().bodies += 1;
        Some(Share { shares: self.clone(), tenant, bytes: 0, reservation })
    }

    /// Bytes held by all.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.0.budget.used()
    }
}

impl Inner {
    fn held(&self) -> MutexGuard<'_, HashMap<Tenant, Holding>> {
        // Counters only: nothing that a panic elsewhere could leave half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one body holds; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Shares,
    tenant: Tenant,
    bytes: usize,
    reservation: Reservation,
}

impl Share {
    /// Whose body it is.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Takes more; `false`, and nothing taken, when there is no room or the tenant has its share.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let inner = &self.shares.0;
        let mut held = inner.held();
        let holding = held.entry(self.tenant.clone()).or_default();
        let free = inner.limit.saturating_sub(inner.budget.used().saturating_add(bytes));
        let fits = fair::may_hold(holding.bytes.saturating_add(bytes), free);
        if !fits || !self.reservation.grow(bytes) {
            return false;
        }
        holding.bytes += bytes;
        self.bytes += bytes;
        true
    }
}

impl Share {
    /// Whether so little of the memory is taken that a body may be kept for longer than it takes to send it.
    pub(crate) fn may_stay(&self) -> bool {
        self.shares.0.budget.used() <= self.shares.0.limit / STAYING
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.0.held();
        let Some(holding) = held.get_mut(&self.tenant) else { return };
        holding.bytes = holding.bytes.saturating_sub(self.bytes);
        holding.bodies = holding.bodies.saturating_sub(1);
        if holding.bodies == 0 {
            held.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::Key(name.into())
    }

    #[test]
    fn whoever_takes_all_that_it_can_leaves_room_for_others() {
        let shares = Shares::new(1000);
        let taken_by = |name: &str| {
            let mut bodies: Vec<Share> = (0..10).map(|_| shares.open(tenant(name)).unwrap()).collect();
            let taken = (0..100).map(|n| bodies[n % 10].grow(10)).filter(|grown| *grown).count() * 10;
            (taken, bodies)
        };
        let (first, _first) = taken_by("a");
        let (second, second_bodies) = taken_by("b");
        let (third, _third) = taken_by("c");
        assert_eq!((first, second, third), (750, 180, 50));
        // Given back, it is there for the next.
        drop(second_bodies);
        assert!(shares.open(tenant("d")).unwrap().grow(100));
    }

    #[test]
    fn bodies_stay_while_half_of_the_memory_is_free() {
        let shares = Shares::new(1000);
        let mut body = shares.open(tenant("a")).unwrap();
        assert!(body.grow(500) && body.may_stay());
        assert!(body.grow(1) && !body.may_stay());
    }

    #[test]
    fn nobody_is_remembered_who_holds_nothing() {
        let shares = Shares::new(1000);
        let (mut one, other) = (shares.open(tenant("a")).unwrap(), shares.open(tenant("a")).unwrap());
        assert!(one.grow(700) && !one.grow(700));
        drop(one);
        assert_eq!((shares.used(), shares.0.held().len()), (0, 1));
        drop(other);
        assert_eq!(shares.0.held().len(), 0);
    }
}

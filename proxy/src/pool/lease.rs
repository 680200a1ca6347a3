//! One request's hold on a replica: counted from the choice to the end of the answer, however it ends.

use super::Pool;
use crate::route::{Ranked, Step};
use dunlin_protocol::id::{ModelId, ReplicaId};
use http::HeaderValue;
use std::{sync::Arc, time::Instant};

/// A slot of a replica, ours until dropped.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    best: Ranked,
    name: HeaderValue,
    /// It is the one request that tries an ejected replica, and has no verdict yet.
    probe: bool,
}

impl Lease {
    pub(super) fn new(pool: Arc<Pool>, best: Ranked, name: HeaderValue, probe: bool) -> Self {
        pool.metrics.in_flight.inc();
        Self { pool, best, name, probe }
    }

    /// Who is to be asked.
    pub(crate) fn replica(&self) -> ReplicaId {
        self.best.replica
    }

    /// The same as a header's value.
    pub(crate) fn name(&self) -> &HeaderValue {
        &self.name
    }

    /// How it was chosen.
    pub(crate) fn step(&self) -> Step {
        self.best.step
    }

    /// The replica begins to answer. That is enough to end its probation, but not to forget earlier failures: its
    /// answers may all break off.
    pub(crate) fn answered(&mut self) {
        if self.probe {
            self.succeeded();
        }
    }

    /// The replica answered to the end.
    pub(crate) fn succeeded(&mut self) {
        self.probe = false;
        if let Some(record) = self.pool.state().records.get_mut(&self.best.replica) {
            record.breaker.on_success();
        }
    }

    /// The replica failed.
    pub(crate) fn failed(&mut self) {
        self.probe = false;
        let mut state = self.pool.state();
        let super::State { records, rng, .. } = &mut *state;
        let Some(record) = records.get_mut(&self.best.replica) else { return };
        if record.breaker.on_failure(Instant::now(), rng) {
            self.pool.metrics.ejections.inc();
            tracing::warn!(replica = %self.best.replica, "replica ejected after failures");
        }
    }

    /// The replica doesn't serve `model`, whatever its announcement says.
    pub(crate) fn lacks(self, model: &ModelId) {
        if let Some(record) = self.pool.state().records.get_mut(&self.best.replica) {
            record.lacks(model, Instant::now());
        }
    }

    /// The replica refused for being full.
    pub(crate) fn refused(self) {
        let replica = self.best.replica;
        let pool = self.pool.clone();
        // The slot first: its end clears an older refusal.
        drop(self);
        if let Some(record) = pool.state().records.get_mut(&replica) {
            record.refuse(Instant::now());
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.metrics.in_flight.dec();
        let mut state = self.pool.state();
        if let Some(record) = state.records.get_mut(&self.best.replica) {
            record.end(Instant::now());
            if self.probe {
                record.breaker.on_no_verdict();
            }
        }
        if state.line.len() > 0 {
            self.pool.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.best).finish()
    }
}

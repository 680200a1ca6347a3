//! One request's hold on a replica: counted from the choice to the end of the answer, however it ends.

use super::Pool;
use crate::{balance::Grant, route::Step};
use dunlin_protocol::{
    hop,
    id::{ModelId, ReplicaId},
};
use http::{HeaderName, HeaderValue};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A slot of a replica, ours until dropped.
pub(crate) struct Lease {
    pool: Arc<Pool>,
    grant: Grant,
    refused: bool,
}

impl Lease {
    pub(super) fn new(pool: Arc<Pool>, grant: Grant) -> Self {
        pool.metrics.in_flight.inc();
        Self { pool, grant, refused: false }
    }

    /// Who is to be asked.
    pub(crate) fn replica(&self) -> ReplicaId {
        self.grant.replica
    }

    /// The same as a header's value.
    pub(crate) fn name(&self) -> &HeaderValue {
        &self.grant.name
    }

    /// How it was chosen.
    pub(crate) fn step(&self) -> Step {
        self.grant.step
    }

    /// When the first token is expected; `None` where nothing was measured.
    pub(crate) fn expected(&self) -> Option<Duration> {
        self.grant.expected_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    /// What the agent is to know of the request: the values of [`hop::PROMPT`] and [`hop::LINE`].
    pub(crate) fn headers(&self) -> [(HeaderName, Option<HeaderValue>); 2] {
        let Grant { kib, new_kib, guess, waited, patience, .. } = &self.grant;
        let prompt = match new_kib {
            Some(new) if *guess => format!("{kib} {new} {}", hop::GUESS),
            Some(new) => format!("{kib} {new}"),
            None => kib.to_string(),
        };
        let line = format!("{} {}", waited.as_millis(), patience.as_millis());
        // Digits are always a header value.
        [(hop::PROMPT, prompt), (hop::LINE, line)]
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::try_from(value).ok()))
    }

    /// The replica begins to answer.
    pub(crate) fn answered(&mut self) {
        self.pool.balancer().begin(&mut self.grant, Instant::now());
    }

    /// The replica answered to the end.
    pub(crate) fn succeeded(&mut self) {
        self.pool.balancer().succeed(&mut self.grant);
    }

    /// The replica failed.
    pub(crate) fn failed(&mut self) {
        if self.pool.balancer().fail(&mut self.grant, Instant::now()) {
            self.pool.metrics.ejections.inc();
            tracing::warn!(replica = %self.grant.replica, "replica ejected after failures");
        }
    }

    /// The replica gave the response of this hash, on which later requests may build.
    pub(crate) fn holds(&self, response: u64) {
        self.pool.balancer().holds(&self.grant.replica, response);
    }

    /// The replica doesn't serve `model`, whatever its announcement says.
    pub(crate) fn lacks(self, model: &ModelId) {
        self.pool.balancer().lacks(&self.grant.replica, model, Instant::now());
    }

    /// The replica refused for being full.
    pub(crate) fn refused(mut self) {
        self.refused = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.metrics.in_flight.dec();
        let mut balancer = self.pool.balancer();
        match self.refused {
            true => balancer.refuse(&mut self.grant, Instant::now()),
            false => balancer.end(&mut self.grant, Instant::now()),
        }
        if balancer.waiting() > 0 {
            self.pool.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.grant).finish()
    }
}

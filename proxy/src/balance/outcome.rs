//! What became of a request at its replica.

use super::{Balancer, Grant};
use dunlin_protocol::id::{ModelId, ReplicaId};
use std::time::Instant;

impl<W> Balancer<W> {
    /// The first piece of an answer has come. That is enough to end a replica's probation, but not to forget earlier
    /// failures: its answers may all break off.
    pub fn begin(&mut self, grant: &mut Grant, now: Instant) {
        if !std::mem::replace(&mut grant.begun, true)
            && let Some(record) = self.records.get_mut(&grant.replica)
        {
            record.begin(grant.since, grant.new_kib, now);
        }
        if grant.probe {
            self.succeed(grant);
        }
    }

    /// The replica answered to the end.
    pub fn succeed(&mut self, grant: &mut Grant) {
        grant.probe = false;
        if let Some(record) = self.records.get_mut(&grant.replica) {
            record.breaker.on_success();
        }
    }

    /// The replica failed. Returns whether this ejected it.
    pub fn fail(&mut self, grant: &mut Grant, now: Instant) -> bool {
        grant.probe = false;
        let record = self.records.get_mut(&grant.replica);
        record.is_some_and(|record| record.breaker.on_failure(now, &mut self.rng))
    }

    /// The request has ended, one way or the other.
    pub fn end(&mut self, grant: &mut Grant, now: Instant) {
        let Some(record) = self.records.get_mut(&grant.replica) else { return };
        if !std::mem::replace(&mut grant.begun, true) {
            record.begin(grant.since, grant.new_kib, now);
        }
        record.end(grant.kib, now);
        if grant.probe {
            record.breaker.on_no_verdict();
        }
    }

    /// The replica refused the request, for being full: it has ended, and its prompt is not there.
    pub fn refuse(&mut self, grant: &mut Grant, now: Instant) {
        // The slot first: its end clears an older refusal.
        self.end(grant, now);
        if let Some(record) = self.records.get_mut(&grant.replica) {
            record.refuse(now, &mut self.rng);
        }
        self.affinity.take_back(&grant.prompt, grant.sent);
    }

    /// The replica doesn't serve `model`, whatever its announcement says.
    pub fn lacks(&mut self, replica: &ReplicaId, model: &ModelId, now: Instant) {
        if let Some(record) = self.records.get_mut(replica) {
            record.lacks(model, now);
        }
    }

    /// The replica gave the response of this hash, on which later requests may build.
    pub fn holds(&mut self, replica: &ReplicaId, response: u64) {
        if let Some(record) = self.records.get(replica) {
            self.affinity.hold(response, record.number);
        }
    }
}

//! Another replica beside one that is late.

use super::{Balancer, Grant, Want};
use crate::route::{self, Ask, Candidate, Loads, Reach, Room};
use dunlin_protocol::{id::ReplicaId, load};
use std::time::{Duration, Instant};

impl<W> Balancer<W> {
    /// Another replica for a request that `taken` are at already and late with: one with a slot that nobody waits for, as
    /// long as the budget of such lasts.
    pub fn second(
        &mut self,
        want: &Want,
        taken: &[ReplicaId],
        candidates: &mut Vec<Candidate>,
        now: Instant,
    ) -> Option<Grant> {
        if self.line.waiting_for(&want.model) > 0 {
            return None;
        }
        let tag = load::model_tag(&want.model);
        // Loading an adapter or a model takes longer than what is late.
        let ready =
            |one: &Candidate| one.loads == Loads::Never || one.load.is_some_and(|load| load.recent.contains(&tag));
        candidates.retain(|one| !taken.contains(&one.replica) && one.reach != Reach::Gone && ready(one));
        self.fill_own(&want.model, candidates, now);
        self.fill_held(&want.prompt, candidates);
        let turn = self.turn(&want.model);
        let kib = want.prompt.bytes as f64 / 1024.0;
        let ask = Ask { tried: &[], turn, fresh: self.settings.fresh, kib, tag };
        let ranked = route::rank(candidates, &ask, now, &mut self.rng);
        let best = ranked.first().copied().filter(|best| best.room == Room::Free && best.in_rotation)?;
        self.hedges.spend().then(|| self.take(want, best, Duration::ZERO, Duration::ZERO, now))
    }

    /// Another replica answered though it had been asked later: as good as a failure. Returns whether this ejected it.
    pub fn outrun(&mut self, replica: &ReplicaId, now: Instant) -> bool {
        let record = self.records.get_mut(replica);
        record.is_some_and(|record| record.breaker.on_failure(now, &mut self.rng))
    }
}

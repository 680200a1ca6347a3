//! Another replica beside one that is late.

use super::{Balancer, Grant, Want};
use crate::route::{self, Ask, Candidate, Loads, Reach, Room};
use dunlin_protocol::{
    id::{ModelId, ReplicaId},
    load,
};
use std::time::{Duration, Instant};

/// Streams of one engine that are silent together for so long hang; less is also the prefill of a long prompt among them.
const HANGS: Duration = Duration::from_secs(3);

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
        if !self.hedges_at_all(&want.model) {
            return None;
        }
        let silent = self.are_silent(taken, candidates, now);
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
        (silent || self.hedges.spend()).then(|| self.take(want, best, Duration::ZERO, Duration::ZERO, now))
    }

    /// Whether a request for `model` that `late` is late with may go to another of `candidates` as well, as far as the budget
    /// and those who wait are concerned.
    #[must_use]
    pub fn may_hedge(&self, model: &ModelId, late: ReplicaId, candidates: &[Candidate], now: Instant) -> bool {
        self.hedges_at_all(model) && (self.hedges.has_one() || self.are_silent(&[late], candidates, now))
    }

    /// Only slots that nobody waits for are given twice to one request.
    fn hedges_at_all(&self, model: &ModelId) -> bool {
        self.settings.hedged_percent > 0 && self.line.waiting_for(model) == 0
    }

    /// Whether all of `replicas` say nothing to anybody. What they are late with costs nothing to ask of another: nobody works
    /// on it. So one that hangs with hundreds of streams doesn't use the budget up.
    fn are_silent(&self, replicas: &[ReplicaId], candidates: &[Candidate], now: Instant) -> bool {
        let believed = |at: Instant| now.saturating_duration_since(at) <= self.settings.fresh;
        let silent = |one: &Candidate| {
            matches!(one.reach, Reach::Suspect | Reach::Gone)
                || one.load.is_some_and(|load| believed(load.received) && load.silent >= HANGS)
        };
        let known = |replica: &ReplicaId| candidates.iter().find(|one| one.replica == *replica);
        replicas.iter().all(|replica| known(replica).is_none_or(silent))
    }

    /// Another replica answered though it had been asked later: as good as a failure. Returns whether this ejected it.
    pub fn outrun(&mut self, replica: &ReplicaId, now: Instant) -> bool {
        let record = self.records.get_mut(replica);
        record.is_some_and(|record| record.breaker.on_failure(now, &mut self.rng))
    }
}

//! All decisions of one proxy about its requests: who gets which replica, who waits, what is remembered. Pure: the time
//! and what the directory shows come in as arguments, chance from a seeded generator.
//!
//! [`Balancer::arrive`] gives a request a replica or a place in the line; [`Balancer::next_grant`] gives those who wait
//! what has become free. A [`Grant`] is reported on until it [ends](Balancer::end). `W` is whatever wakes a request that
//! waits.

mod affinity;
mod held;
mod outcome;
mod record;
mod request;
mod second;

pub use request::{Arrival, Grant, Refusal, Ticket, Want};

use crate::{
    budget::Budget,
    late::{Full, Line, Place},
    route::{self, Ask, Candidate, Ranked, Room},
};
use affinity::{Affinity, Number};
use dunlin_protocol::{
    id::{ModelId, ReplicaId},
    load,
};
use rand::rngs::SmallRng;
use record::Record;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Waiting requests that are looked at when the first in line can't use a free slot or had better wait for another.
const LOOK_AHEAD: usize = 8;
/// From so many who wait for a model on, one is sent ahead to a far replica that is full still.
const LONG_LINE: usize = 3;
/// Replicas remembered before those that have nothing to remember are dropped.
const RECORDS: usize = 8192;
/// Models with a turn of their own; when there are more, all start over.
const TURNS: usize = 4096;
/// Between two tries of those who wait at replicas that may be full.
const TRY_AGAIN: Duration = Duration::from_millis(4);
/// Longest wait at a replica for a slot.
const LONGEST_PATIENCE: Duration = Duration::from_millis(200);
/// Weight of the newest look at that share, once there were so many that this is more than the newest's part of them.
const LATEST: f64 = 0.02;
/// A wait is an estimate, and engines get slower while it lasts: so much of the time that a request may wait, it may be
/// expected to.
const SURE: (u32, u32) = (3, 5);
/// A request waits for a better replica than there is for as long as that was expected to take, and no longer than this.
const LONGEST_CHOICE: Duration = Duration::from_secs(2);

/// Bounds of the balancer.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A report older than this is not believed.
    pub fresh: Duration,
    /// Requests that may wait for one model.
    pub waiting_per_model: usize,
    /// Requests that may wait in all.
    pub waiting: usize,
    /// Requests that may wait for one model of which no replica is up.
    pub starting_per_model: usize,
    /// The same for all models together.
    pub starting: usize,
    /// How long a request may wait.
    pub hold: Duration,
    /// Percent of the requests that may be at a second replica as well, the first being late.
    pub hedged_percent: u8,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiter<W> {
    want: Want,
    since: Instant,
    tried: Vec<ReplicaId>,
    choosy_until: Option<Instant>,
    /// No replica was up when it came.
    for_starting: bool,
    wake: W,
}

/// One proxy's memory and its line.
#[derive(Debug)]
pub struct Balancer<W> {
    settings: Settings,
    records: HashMap<ReplicaId, Record>,
    numbered: Number,
    affinity: Affinity,
    /// Share of the requests at the replicas that come from other proxies: 0 to 1, a moving average.
    others: f64,
    /// Looks at that share so far.
    looks: u32,
    line: Line<Waiter<W>>,
    /// Of those in line, how many came when no replica of their model was up.
    for_starting: usize,
    tried_again: Option<Instant>,
    turns: HashMap<ModelId, u64>,
    retries: Budget,
    hedges: Budget,
    rng: SmallRng,
}

impl<W> Balancer<W> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(settings: Settings, rng: SmallRng) -> Self {
        Self {
            settings,
            records: HashMap::new(),
            numbered: 0,
            affinity: Affinity::default(),
            others: 0.0,
            looks: 0,
            line: Line::new(settings.waiting_per_model, settings.waiting),
            for_starting: 0,
            tried_again: None,
            turns: HashMap::new(),
            retries: Budget::of_retries(),
            hedges: Budget::of_hedges(settings.hedged_percent),
            rng,
        }
    }

    /// A replica for a request that comes, or comes back, at `now`; or a place in the line, and then `wake` is called
    /// for what [`Self::next_grant`] will return. `candidates` are all replicas of its model that serve.
    ///
    /// # Errors
    /// So many wait already that this one may not.
    pub fn arrive(
        &mut self,
        want: &Want,
        ticket: &mut Ticket,
        candidates: &mut [Candidate],
        now: Instant,
        wake: impl FnOnce() -> W,
    ) -> Result<Arrival, Refusal> {
        let first_time = ticket.place.is_none();
        let place = *ticket.place.get_or_insert_with(|| self.line.number(want.tenant));
        let since = *ticket.since.get_or_insert(now);
        if first_time {
            self.retries.earn();
            self.hedges.earn();
        }
        if self.line.is_next(&want.model, place) {
            self.fill_own(&want.model, candidates, now);
            let asker = Asker { want, tried: &ticket.tried, since, first: true };
            let found = self.choose(asker, &mut ticket.choosy_until, candidates, now);
            if let Found::Grant(grant) = found {
                return Ok(Arrival::Granted(grant));
            }
        }
        let (tried, choosy_until) = (ticket.tried.clone(), ticket.choosy_until);
        let for_starting = candidates.is_empty();
        let waiter = Waiter { want: want.clone(), since, tried, choosy_until, for_starting, wake: wake() };
        if !first_time {
            self.line.rejoin(&want.model, place, want.priority, waiter);
        } else if for_starting && !self.may_wait_for_starting(&want.model) {
            return Err(Refusal::TooManyForStarting);
        } else {
            let wait = self.wait(want).or_else(|| {
                let ahead = self.line.ahead(&want.model, want.tenant, want.priority);
                Some(route::pace(candidates)? * u32::try_from(ahead + 1).unwrap_or(u32::MAX))
            });
            match wait {
                Some(wait) if wait > self.settings.hold * SURE.0 / SURE.1 => return Err(Refusal::TooLong { wait }),
                _ => self
                    .line
                    .join(&want.model, place, want.priority, waiter)
                    .map_err(|Full| Refusal::TooMany { wait })?,
            }
        }
        self.for_starting += usize::from(for_starting);
        Ok(Arrival::Waits(place))
    }

    /// The next of those who wait for `model` that gets a replica at `now`. To be asked until there is none, whenever
    /// something may have become free.
    pub fn next_grant(&mut self, model: &ModelId, candidates: &mut [Candidate], now: Instant) -> Option<(W, Grant)> {
        self.fill_own(model, candidates, now);
        let heads: Vec<_> = self.line.waiters(model, LOOK_AHEAD).map(|(place, one)| (place, one.head())).collect();
        for (nth, (place, (want, since, tried, mut choosy_until))) in heads.into_iter().enumerate() {
            let asker = Asker { want: &want, tried: &tried, since, first: nth == 0 };
            match self.choose(asker, &mut choosy_until, candidates, now) {
                Found::Grant(grant) => return self.serve(model, place, now).map(|wake| (wake, grant)),
                Found::Better => {
                    if let Some(waiter) = self.line.get_mut(model, place) {
                        waiter.choosy_until = choosy_until;
                    }
                }
                Found::Nothing if tried.is_empty() => break,
                Found::Nothing => {}
            }
        }
        None
    }

    /// Adds what this proxy knows of them to the candidates.
    fn fill_own(&mut self, model: &ModelId, candidates: &mut [Candidate], now: Instant) {
        for candidate in candidates.iter_mut() {
            let received = candidate.load.map(|load| load.received);
            candidate.own = self.record(candidate.replica).own(model, received, now);
        }
        if let Some(share) = route::share_of_others(candidates) {
            // A plain mean at first: else a proxy would take itself for the only one over its first hundred requests.
            self.looks = self.looks.saturating_add(1);
            self.others += f64::from(self.looks).recip().max(LATEST) * (share - self.others);
        }
    }

    fn choose(
        &mut self,
        asker: Asker<'_>,
        choosy_until: &mut Option<Instant>,
        candidates: &mut [Candidate],
        now: Instant,
    ) -> Found {
        let Asker { want, tried, .. } = asker;
        self.fill_held(&want.prompt, candidates);
        let turn = self.turn(&want.model);
        let (fresh, tag) = (self.settings.fresh, load::model_tag(&want.model));
        let kib = want.prompt.bytes as f64 / 1024.0;
        let ask = Ask { tried, turn, fresh, kib, tag };
        let ranked = route::rank(candidates, &ask, now, &mut self.rng);
        let Some(best) = ranked.first().copied() else { return Found::Nothing };
        if let Some(better) = route::worth_waiting_for(&ranked) {
            let longest = Duration::from_micros(better.cost as u64).min(LONGEST_CHOICE);
            if now < *choosy_until.get_or_insert(now + longest) {
                return Found::Better;
            }
        }
        match best.room {
            Room::Free => {}
            // The slot of one that is near may be free sooner; with many in line there is work for both.
            Room::Maybe if best.soon && self.line.waiting_for(&want.model) < LONG_LINE => return Found::Nothing,
            Room::Maybe if asker.first && self.may_try_again(now) => self.tried_again = Some(now),
            Room::Maybe | Room::Full => return Found::Nothing,
        }
        self.advance_turn(&want.model);
        let another = ranked.get(1).is_some_and(|next| next.room == Room::Free && next.in_rotation);
        let patience = if another { Duration::ZERO } else { LONGEST_PATIENCE };
        let waited = now.saturating_duration_since(asker.since);
        Found::Grant(self.take(want, best, waited, patience, now))
    }

    fn may_try_again(&self, now: Instant) -> bool {
        self.tried_again.is_none_or(|last| now.saturating_duration_since(last) >= TRY_AGAIN)
    }

    fn take(&mut self, want: &Want, best: Ranked, waited: Duration, patience: Duration, now: Instant) -> Grant {
        let Ranked { replica, step, .. } = best;
        let kib = want.prompt.kib();
        let new_rounded = best.new_kib.round() as u32;
        let new_kib = want.stream.then_some(new_rounded);
        let record = self.record(replica);
        record.start(kib, new_kib, now);
        let probe = record.breaker.on_send(now);
        let (number, name) = (record.number, record.name.clone());
        let sent = self.affinity.send(&want.prompt, new_rounded, number);
        Grant {
            replica,
            name,
            step,
            kib,
            new_kib,
            guess: best.guess,
            waited,
            patience,
            expected_ms: best.expected_ms(),
            probe,
            since: now,
            begun: false,
            prompt: Arc::clone(&want.prompt),
            sent,
        }
    }

    fn record(&mut self, replica: ReplicaId) -> &mut Record {
        // Only for one that is new: each request looks at every replica of its model.
        if self.records.len() >= RECORDS && !self.records.contains_key(&replica) {
            self.records.retain(|_, record| !record.is_forgettable());
            // So many of them have failed: those that have none of ours are forgotten all the same.
            if self.records.len() >= RECORDS {
                self.records.retain(|_, record| record.is_busy());
            }
        }
        let (numbered, affinity) = (&mut self.numbered, &mut self.affinity);
        self.records.entry(replica).or_insert_with(|| {
            *numbered = numbered.checked_add(1).unwrap_or_else(|| {
                affinity.clear();
                1
            });
            Record::new(replica, *numbered)
        })
    }

    /// Whether a retry of a timeout or a 5xx may be made; takes it from the budget.
    pub fn may_retry(&mut self) -> bool {
        self.retries.spend()
    }

    /// Gives a place in the line up.
    pub fn leave(&mut self, model: &ModelId, place: Place) {
        let waiter = self.line.leave(model, place);
        self.for_starting -= waiter.map_or(0, |waiter| usize::from(waiter.for_starting));
    }

    fn serve(&mut self, model: &ModelId, place: Place, now: Instant) -> Option<W> {
        let waiter = self.line.serve(model, place, now)?;
        self.for_starting -= usize::from(waiter.for_starting);
        Some(waiter.wake)
    }

    fn may_wait_for_starting(&self, model: &ModelId) -> bool {
        self.for_starting < self.settings.starting && self.line.waiting_for(model) < self.settings.starting_per_model
    }

    /// The models waited for, longest wait first.
    #[must_use]
    pub fn models(&self) -> Vec<ModelId> {
        self.line.models()
    }

    /// How long one more request like this would wait. `None`: nothing is known of that.
    #[must_use]
    pub fn wait(&self, want: &Want) -> Option<Duration> {
        self.line.wait(&want.model, want.tenant, want.priority)
    }

    /// Requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    fn turn(&self, model: &ModelId) -> u64 {
        self.turns.get(model).copied().unwrap_or(0)
    }

    fn advance_turn(&mut self, model: &ModelId) {
        if let Some(turn) = self.turns.get_mut(model) {
            *turn = turn.wrapping_add(1);
            return;
        }
        if self.turns.len() >= TURNS {
            self.turns.clear();
        }
        self.turns.insert(model.clone(), 1);
    }
}

/// Who asks for a replica.
#[derive(Clone, Copy)]
struct Asker<'a> {
    want: &'a Want,
    tried: &'a [ReplicaId],
    since: Instant,
    /// Nobody waits that came earlier.
    first: bool,
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made, and never kept")]
enum Found {
    Grant(Grant),
    /// A full replica is worth waiting for.
    Better,
    Nothing,
}

impl<W> Waiter<W> {
    /// What the choice needs, taken out of the line.
    fn head(&self) -> (Want, Instant, Vec<ReplicaId>, Option<Instant>) {
        (self.want.clone(), self.since, self.tried.clone(), self.choosy_until)
    }
}

#[cfg(test)]
mod tests;

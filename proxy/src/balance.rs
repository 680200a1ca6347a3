//! All decisions of one proxy about its requests: who gets which replica, who waits, what is remembered. Pure: the time
//! and what the directory shows come in as arguments, chance from a seeded generator.
//!
//! [`Balancer::arrive`] gives a request a replica or a place in the line; [`Balancer::next_grant`] gives those who wait
//! what has become free. A [`Grant`] is reported on until it [ends](Balancer::end). `W` is whatever wakes a request that
//! waits.

mod affinity;
mod record;

use crate::{
    budget::Budget,
    late::{Full, Line, Place, Priority},
    prompt::{self, Prompt},
    route::{self, Ask, Candidate, Held, Ranked, Room, Step},
};
use affinity::{Affinity, Number};
use dunlin_protocol::{
    id::{ModelId, ReplicaId},
    load,
};
use http::HeaderValue;
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
/// Chance that a beginning is where all proxies agree to send it, as far as requests come from others at all.
const AT_HOME: f64 = 0.9;
/// The same at the second place that all agree on, where it goes while the first is busy.
const AT_SECOND_HOME: f64 = 0.4;
/// Chance that it is not any more where we sent it, as far as requests come from others: most that begin so go home.
const AWAY: f64 = 0.9;
/// A smaller share of others' requests is none.
const ALONE: f64 = 0.1;
/// Weight of the newest look at that share, once there were so many that this is more than the newest's part of them.
const LATEST: f64 = 0.02;
/// A wait is an estimate: so much of the time that a request may wait, it may be expected to.
const SURE: (u32, u32) = (7, 8);
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
}

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// So many wait already.
    #[error("too many requests wait")]
    TooMany {
        /// How long this one would wait, as far as that is known.
        wait: Option<Duration>,
    },
    /// It would wait longer than it may.
    #[error("it would wait for {wait:?}")]
    TooLong {
        /// How long it would wait.
        wait: Duration,
    },
    /// So many wait already for a replica that starts.
    #[error("too many requests wait for a replica that starts")]
    TooManyForStarting,
}

/// A request's way to its replica: kept over its tries.
#[derive(Debug, Default)]
pub struct Ticket {
    place: Option<Place>,
    /// When it came.
    since: Option<Instant>,
    /// Replicas on which it failed.
    pub tried: Vec<ReplicaId>,
    /// Whether it had to wait for a slot.
    pub waited: bool,
    /// Until when it may wait for a better replica than there is.
    choosy_until: Option<Instant>,
}

impl Ticket {
    /// The request failed on `replica`, perhaps not for the first time.
    pub fn failed_on(&mut self, replica: ReplicaId) {
        if !self.tried.contains(&replica) {
            self.tried.push(replica);
        }
    }
}

/// What a request asks for.
#[derive(Debug, Clone)]
pub struct Want {
    /// The model.
    pub model: ModelId,
    /// Whose request it is, as a number: those who wait are served in turns.
    pub tenant: u64,
    /// How early the tenant's requests are served among those who wait.
    pub priority: Priority,
    /// The outline of its prompt.
    pub prompt: Arc<Prompt>,
    /// Whether it can be seen when the prompt has been worked through: the answer comes in pieces.
    pub stream: bool,
}

/// One request's hold on a replica. Must be given back with [`Balancer::end`].
#[derive(Debug)]
pub struct Grant {
    /// Who is to be asked.
    pub replica: ReplicaId,
    /// The same as a header's value.
    pub name: HeaderValue,
    /// How it was chosen.
    pub step: Step,
    /// KiB of the prompt.
    pub kib: u32,
    /// KiB of it that the replica has not seen; `None` where it can't be seen when they are worked through.
    pub new_kib: Option<u32>,
    /// Whether that is a guess about what other proxies did.
    pub guess: bool,
    /// How long it has waited already.
    pub waited: Duration,
    /// How long it may wait at the replica for a slot: not at all where another is free.
    pub patience: Duration,
    /// It is the one request that tries an ejected replica, and has no verdict yet.
    probe: bool,
    since: Instant,
    begun: bool,
}

/// What became of a request that asked.
#[derive(Debug)]
pub enum Arrival {
    /// It has a replica.
    Granted(Grant),
    /// It waits.
    Waits(Place),
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
    budget: Budget,
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
            budget: Budget::default(),
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
            self.budget.earn();
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
            let wait = self.line.wait(&want.model, want.tenant, want.priority);
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

    /// Adds to the candidates what each of them has of this prompt already.
    fn fill_held(&self, prompt: &Prompt, candidates: &mut [Candidate]) {
        let others = self.others;
        let held = self.affinity.look_up(&prompt.blocks, candidates.len(), others);
        let holder = |name: Option<u64>| name.and_then(|name| self.affinity.holder(name));
        let (session, response) = (holder(prompt.session), holder(prompt.previous));
        let homes = held.own.filter(|_| others > ALONE).map(|own| self.homes(own, candidates)).unwrap_or_default();
        for candidate in candidates {
            let Some(record) = self.records.get(&candidate.replica) else { continue };
            let cached = held.by(record.number);
            let more = |chance: f64| (prompt.bytes as f64 - cached).max(0.0) * chance * others / 1024.0;
            let away = cached * (1.0 - AWAY * others) / 1024.0;
            (candidate.own.cached_kib, candidate.own.home_kib) = match Some(candidate.replica) {
                here if here == homes[0] => (cached / 1024.0, more(AT_HOME)),
                here if here == homes[1] => (away, more(AT_SECOND_HOME)),
                _ => (away, 0.0),
            };
            candidate.own.held = match Some(record.number) {
                known if known == response => Held::Response,
                known if known == session => Held::Session,
                _ => Held::Nothing,
            };
        }
    }

    /// The replicas on which all proxies agree for a prompt that goes on with the block of this hash, without a word
    /// between them: the one with the highest hash of both (rendezvous hashing), and the second, for when that is busy.
    fn homes(&self, block: u64, candidates: &[Candidate]) -> [Option<ReplicaId>; 2] {
        let mut highest = [(0, None); 2];
        for candidate in candidates {
            let Some(record) = self.records.get(&candidate.replica) else { continue };
            let one = (prompt::hash((record.hash, block)), Some(candidate.replica));
            if one.0 > highest[0].0 {
                highest = [one, highest[0]];
            } else if one.0 > highest[1].0 {
                highest[1] = one;
            }
        }
        highest.map(|(_, replica)| replica)
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
        self.affinity.add(&want.prompt.blocks, new_rounded, number);
        if let Some(session) = want.prompt.session {
            self.affinity.hold(session, number);
        }
        Grant {
            replica,
            name,
            step,
            kib,
            new_kib,
            guess: best.guess,
            waited,
            patience,
            probe,
            since: now,
            begun: false,
        }
    }

    fn record(&mut self, replica: ReplicaId) -> &mut Record {
        // Only for one that is new: each request looks at every replica of its model.
        if self.records.len() >= RECORDS && !self.records.contains_key(&replica) {
            self.records.retain(|_, record| !record.is_forgettable());
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

    /// The replica refused a request, which has ended, for being full.
    pub fn refuse(&mut self, replica: &ReplicaId, now: Instant) {
        if let Some(record) = self.records.get_mut(replica) {
            record.refuse(now, &mut self.rng);
        }
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

    /// Whether a retry of a timeout or a 5xx may be made; takes it from the budget.
    pub fn may_retry(&mut self) -> bool {
        self.budget.spend()
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

//! The proxy's own view of the replicas: what it has sent where, who failed, who waits. Binds the pure decisions
//! (`route`, `late`, `eject`, `budget`) to the directory, the clock and the tasks that wait.

mod lease;
mod lives;
mod record;
mod seen;
#[cfg(test)]
mod tests;

pub(crate) use lease::Lease;

use crate::{
    budget::Budget,
    late::{Line, Place},
    metrics::Metrics,
    route::{self, Ask, Ranked},
};
use dunlin_node::directory::SharedDirectory;
use dunlin_protocol::id::{ModelId, ReplicaId};
use lives::Lives;
use rand::rngs::SmallRng;
use record::Record;
use seen::Seen;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, oneshot},
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// How often those who wait are looked at when nothing is heard: reports go stale and refusals are forgotten in silence.
const TICK: Duration = Duration::from_millis(50);
/// How often it is noted which models are served.
const SWEEP: Duration = Duration::from_secs(1);
/// Waiting requests that are looked at when the first in line can't use the free slot because it failed there.
const LOOK_AHEAD: usize = 8;
/// Replicas remembered before those that have nothing to remember are dropped.
const RECORDS: usize = 8192;
/// Models with a turn of their own; when there are more, all start over.
const TURNS: usize = 4096;

/// Why no replica was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unserved {
    /// The directory knows no replica of the model in any state.
    Unknown,
    /// Replicas are known, and none serves or starts.
    NoReplica,
    /// None was up by the deadline though some are starting.
    StillStarting,
    /// All slots were taken until the deadline.
    StillFull,
    /// So many wait already that this one may not.
    TooMany,
    /// The same, and all of them for a replica that starts.
    TooManyForStarting,
}

/// Bounds of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// A report older than this is not believed.
    pub(crate) fresh: Duration,
    /// Requests that may wait for one model.
    pub(crate) waiting_per_model: usize,
    /// Requests that may wait in all.
    pub(crate) waiting: usize,
    /// Requests that may wait for one model of which no replica is up.
    pub(crate) starting_per_model: usize,
    /// The same for all models together.
    pub(crate) starting: usize,
}

/// A request's way through the pool: kept over its tries.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    place: Option<Place>,
    /// Replicas on which it failed.
    pub(crate) tried: Vec<ReplicaId>,
    /// Whether it had to wait for a slot.
    pub(crate) waited: bool,
}

impl Ticket {
    /// The request failed on `replica`, perhaps not for the first time.
    pub(crate) fn failed_on(&mut self, replica: ReplicaId) {
        if !self.tried.contains(&replica) {
            self.tried.push(replica);
        }
    }
}

/// All replicas as this proxy sees them.
pub(crate) struct Pool {
    directory: SharedDirectory,
    settings: Settings,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    lives: Mutex<Lives>,
    /// Somebody began to wait, or a request ended while somebody waits.
    wake: Notify,
}

struct State {
    records: HashMap<ReplicaId, Record>,
    line: Line<Waiter>,
    /// Of those in line, how many came when no replica of their model was up.
    for_starting: usize,
    turns: HashMap<ModelId, u64>,
    budget: Budget,
    rng: SmallRng,
}

/// Somebody who waits for a slot.
#[derive(Debug)]
struct Waiter {
    tried: Vec<ReplicaId>,
    grant: oneshot::Sender<Lease>,
    /// No replica was up when it came.
    for_starting: bool,
}

impl Pool {
    /// A pool over `directory`.
    pub(crate) fn new(directory: SharedDirectory, settings: Settings, metrics: Arc<Metrics>) -> Self {
        let state = State {
            records: HashMap::new(),
            line: Line::new(settings.waiting_per_model, settings.waiting),
            for_starting: 0,
            turns: HashMap::new(),
            budget: Budget::default(),
            rng: rand::make_rng(),
        };
        Self { directory, settings, metrics, state: Mutex::new(state), lives: Mutex::default(), wake: Notify::new() }
    }

    /// The replica that `model` is to be asked of now, or as soon as one has a slot free.
    ///
    /// # Errors
    /// Says why there is none by `until`. Dropping the future gives the place in the line up.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        model: &ModelId,
        ticket: &mut Ticket,
        until: Instant,
    ) -> Result<Lease, Unserved> {
        let (place, granted) = match self.lease_or_wait(model, ticket)? {
            Found::Lease(lease) => return Ok(lease),
            Found::Wait(place, granted) => (place, granted),
        };
        ticket.waited = true;
        let _leaves = LeaveLine { pool: self, model, place };
        self.wake.notify_one();
        match time::timeout_at(until.into(), granted).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) | Err(_) => Err(match self.seen(model).unserved() {
                // It was served a moment ago, or nobody had waited.
                Unserved::Unknown => Unserved::NoReplica,
                why => why,
            }),
        }
    }

    fn lease_or_wait(self: &Arc<Self>, model: &ModelId, ticket: &mut Ticket) -> Result<Found, Unserved> {
        let now = Instant::now();
        let seen = self.seen(model);
        if let Some(replica) = seen.connected {
            self.lives().reachable(model, replica, now);
        }
        if seen.nobody() && !self.may_return(model) {
            return Err(seen.unserved());
        }
        let mut state = self.state();
        let first_time = ticket.place.is_none();
        let place = *ticket.place.get_or_insert_with(|| state.line.number());
        if first_time {
            state.budget.earn();
        }
        let for_starting = seen.ready.is_empty();
        if state.line.is_next(model, place)
            && let Some(lease) = self.try_lease(&mut state, model, &ticket.tried, seen, now)
        {
            return Ok(Found::Lease(lease));
        }
        let (grant, granted) = oneshot::channel();
        let waiter = Waiter { tried: ticket.tried.clone(), grant, for_starting };
        if !first_time {
            state.line.rejoin(model, place, waiter);
        } else if for_starting && !state.may_wait_for_starting(model, &self.settings) {
            return Err(Unserved::TooManyForStarting);
        } else {
            state.line.join(model, place, waiter).map_err(|_| Unserved::TooMany)?;
        }
        state.for_starting += usize::from(for_starting);
        self.metrics.set_waiting(state.line.len());
        Ok(Found::Wait(place, granted))
    }

    /// Takes a slot of the best replica that has one free.
    fn try_lease(
        self: &Arc<Self>,
        state: &mut State,
        model: &ModelId,
        tried: &[ReplicaId],
        mut seen: Seen,
        now: Instant,
    ) -> Option<Lease> {
        for candidate in &mut seen.ready {
            if let Some(record) = state.records.get_mut(&candidate.replica) {
                candidate.own = record.own(model, candidate.load.map(|load| load.received), now);
            }
        }
        let turn = state.turn(model);
        let ask = Ask { tried, turn, fresh: self.settings.fresh };
        let best = route::rank(&seen.ready, &ask, now, &mut state.rng).first().copied().filter(|best| best.free)?;
        state.advance_turn(model);
        Some(self.take(state, best, now))
    }

    fn take(self: &Arc<Self>, state: &mut State, best: Ranked, now: Instant) -> Lease {
        if state.records.len() >= RECORDS {
            state.records.retain(|_, record| !record.is_forgettable());
        }
        let record = state.records.entry(best.replica).or_insert_with(|| Record::new(best.replica));
        record.start(now);
        let probe = record.breaker.on_send(now);
        Lease::new(self.clone(), best, record.name.clone(), probe)
    }

    fn seen(&self, model: &ModelId) -> Seen {
        self.directory.read(|directory| Seen::of(directory, model))
    }

    /// Gives free slots to those who wait, until `shutdown`. Does nothing while nobody waits.
    pub(crate) async fn drive(self: Arc<Self>, shutdown: CancellationToken) {
        let mut changes = self.directory.changed();
        let stopped = shutdown.cancelled();
        tokio::pin!(stopped);
        let mut sweep = time::interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let somebody_waits = self.waiting() > 0;
            tokio::select! {
                () = &mut stopped => return,
                () = self.wake.notified() => {}
                _ = sweep.tick() => self.directory.read(|directory| self.lives().sweep(directory, Instant::now())),
                _ = changes.changed(), if somebody_waits => {}
                () = time::sleep(TICK), if somebody_waits => {}
            }
            changes.mark_unchanged();
            self.serve_waiting();
        }
    }

    fn serve_waiting(self: &Arc<Self>) {
        let models = self.state().line.models();
        for model in models {
            // Granted outside the lock: a waiter that has gone drops the lease right here, which takes the lock.
            while let Some((grant, lease)) = self.next_grant(&model) {
                drop(grant.send(lease));
            }
        }
    }

    fn next_grant(self: &Arc<Self>, model: &ModelId) -> Option<(oneshot::Sender<Lease>, Lease)> {
        let now = Instant::now();
        let seen = self.seen(model);
        let mut state = self.state();
        let heads: Vec<(Place, Vec<ReplicaId>)> =
            state.line.waiters(model).take(LOOK_AHEAD).map(|(place, waiter)| (place, waiter.tried.clone())).collect();
        for (place, tried) in heads {
            if let Some(lease) = self.try_lease(&mut state, model, &tried, seen.clone(), now) {
                let grant = state.leave(model, place).map(|waiter| waiter.grant);
                self.metrics.set_waiting(state.line.len());
                drop(state);
                return grant.map(|grant| (grant, lease));
            }
            if tried.is_empty() {
                break;
            }
        }
        None
    }

    /// Whether a retry of a timeout or a 5xx may be made; takes it from the budget.
    pub(crate) fn may_retry(&self) -> bool {
        self.state().budget.spend()
    }

    /// Whether no other replica serves `model` than these.
    pub(crate) fn only(&self, model: &ModelId, tried: &[ReplicaId]) -> bool {
        self.seen(model).ready.iter().all(|one| tried.contains(&one.replica))
    }

    /// A replica of `model` has answered.
    pub(crate) fn answered(&self, model: &ModelId) {
        self.lives().changing(model, Instant::now());
    }

    /// Whether `model`, of which there is no replica now, was served a moment ago and may be again.
    pub(crate) fn may_return(&self, model: &ModelId) -> bool {
        self.directory.read(|directory| self.lives().may_return(directory, model, Instant::now()))
    }

    /// Whether it is worth waiting for the replicas of `model`, after one of them could not be reached: there is no
    /// other, and they were connected a moment ago.
    pub(crate) fn just_lost(&self, model: &ModelId, tried: &[ReplicaId]) -> bool {
        let (seen, now) = (self.seen(model), Instant::now());
        let untried = seen.connected.is_some() && !seen.ready.iter().all(|one| tried.contains(&one.replica));
        let mut lives = self.lives();
        lives.changing(model, now);
        !untried && lives.was_reachable(model, now)
    }

    /// The same after one of them has refused without having begun: it answered a moment ago, or has just come back.
    pub(crate) fn just_changing(&self, model: &ModelId, tried: &[ReplicaId]) -> bool {
        self.only(model, tried) && self.lives().is_changing(model, Instant::now())
    }

    /// Returns when a replica of `model` is connected that was not, or after `at_most`.
    pub(crate) async fn connected(&self, model: &ModelId, at_most: Duration) {
        let mut changes = self.directory.changed();
        let before = self.seen(model).connected;
        let connects = async {
            while changes.changed().await.is_ok() {
                let now = self.seen(model).connected;
                if now.is_some() && now != before {
                    return;
                }
            }
        };
        // That nothing came is no news.
        let _ = time::timeout(at_most, connects).await;
    }

    /// Requests that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.state().line.len()
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        // Times only: nothing that a panic elsewhere could leave half done.
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counters and queues only: nothing that a panic elsewhere could leave half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Found {
    Lease(Lease),
    Wait(Place, oneshot::Receiver<Lease>),
}

impl State {
    fn may_wait_for_starting(&self, model: &ModelId, settings: &Settings) -> bool {
        self.for_starting < settings.starting && self.line.waiting_for(model) < settings.starting_per_model
    }

    fn leave(&mut self, model: &ModelId, place: Place) -> Option<Waiter> {
        let waiter = self.line.leave(model, place)?;
        self.for_starting -= usize::from(waiter.for_starting);
        Some(waiter)
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

/// Gives a place in the line up, however the wait ends.
struct LeaveLine<'a> {
    pool: &'a Pool,
    model: &'a ModelId,
    place: Place,
}
impl Drop for LeaveLine<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.leave(self.model, self.place);
        self.pool.metrics.set_waiting(state.line.len());
    }
}

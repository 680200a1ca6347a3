//! The balancer at work: binds its decisions (`balance`) to the directory, the clock and the tasks that wait.

mod lease;
mod lives;
mod seen;
#[cfg(test)]
mod tests;

pub(crate) use crate::balance::{Settings, Ticket};
pub(crate) use lease::Lease;

use crate::{
    balance::{Arrival, Balancer, Refusal, Want},
    late::Place,
    metrics::Metrics,
    route::Candidate,
};
use dunlin_node::directory::SharedDirectory;
use dunlin_protocol::id::{ModelId, ReplicaId};
use lives::Lives;
use seen::Seen;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, oneshot},
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// How often those who wait are looked at when nothing is heard: reports go stale and refusals are forgotten in silence.
const TICK: Duration = Duration::from_millis(10);
/// How often it is noted which models are served: a replica that is lost sooner after its coming is not waited for.
const SWEEP: Duration = Duration::from_millis(100);

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
    StillFull {
        /// How long another would wait, as far as that is known.
        wait: Option<Duration>,
    },
    /// So many wait already that this one may not.
    TooMany {
        /// How long it would wait, as far as that is known.
        wait: Option<Duration>,
    },
    /// It would wait longer than it may.
    TooLong {
        /// How long it would wait.
        wait: Duration,
    },
    /// The same, and all of them for a replica that starts.
    TooManyForStarting,
}

/// All replicas as this proxy sees them.
pub(crate) struct Pool {
    directory: SharedDirectory,
    metrics: Arc<Metrics>,
    balancer: Mutex<Balancer<oneshot::Sender<Lease>>>,
    lives: Mutex<Lives>,
    /// Somebody began to wait, or a request ended while somebody waits.
    wake: Notify,
}

impl Pool {
    /// A pool over `directory`.
    pub(crate) fn new(directory: SharedDirectory, settings: Settings, metrics: Arc<Metrics>) -> Self {
        let balancer = Mutex::new(Balancer::new(settings, rand::make_rng()));
        Self { directory, metrics, balancer, lives: Mutex::default(), wake: Notify::new() }
    }

    /// The replica that is to be asked for `want` now, or as soon as one has a slot free.
    ///
    /// # Errors
    /// Says why there is none by `until`. Dropping the future gives the place in the line up.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        want: &Want,
        ticket: &mut Ticket,
        until: Instant,
    ) -> Result<Lease, Unserved> {
        let model = &want.model;
        let (place, granted) = match self.lease_or_wait(want, ticket)? {
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
                Unserved::StillFull { .. } => Unserved::StillFull { wait: self.balancer().wait(want) },
                why => why,
            }),
        }
    }

    fn lease_or_wait(self: &Arc<Self>, want: &Want, ticket: &mut Ticket) -> Result<Found, Unserved> {
        let now = Instant::now();
        let mut seen = self.seen(&want.model);
        if let Some(replica) = seen.connected {
            self.lives().reachable(&want.model, replica, now);
        }
        if seen.nobody() && !self.may_return(&want.model) {
            return Err(seen.unserved());
        }
        let mut granted = None;
        let wake = || {
            let (grant, receiver) = oneshot::channel();
            granted = Some(receiver);
            grant
        };
        let mut balancer = self.balancer();
        let arrival = balancer.arrive(want, ticket, &mut seen.ready, now, wake).map_err(|refusal| match refusal {
            Refusal::TooMany { wait } => Unserved::TooMany { wait },
            Refusal::TooLong { wait } => Unserved::TooLong { wait },
            Refusal::TooManyForStarting => Unserved::TooManyForStarting,
        })?;
        self.metrics.set_waiting(balancer.waiting());
        drop(balancer);
        match (arrival, granted) {
            (Arrival::Granted(grant), _) => Ok(Found::Lease(Lease::new(self.clone(), grant))),
            (Arrival::Waits(place), Some(granted)) => Ok(Found::Wait(place, granted)),
            // Nobody waits without a way to be woken.
            (Arrival::Waits(_), None) => Err(Unserved::TooMany { wait: None }),
        }
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
        let models = self.balancer().models();
        for model in models {
            // Granted outside the lock: a waiter that has gone drops the lease right here, which takes the lock.
            while let Some((grant, lease)) = self.next_grant(&model) {
                drop(grant.send(lease));
            }
        }
    }

    fn next_grant(self: &Arc<Self>, model: &ModelId) -> Option<(oneshot::Sender<Lease>, Lease)> {
        let mut seen = self.seen(model);
        let mut balancer = self.balancer();
        let (wake, grant) = balancer.next_grant(model, &mut seen.ready, Instant::now())?;
        self.metrics.set_waiting(balancer.waiting());
        drop(balancer);
        Some((wake, Lease::new(self.clone(), grant)))
    }

    /// Another replica for a request that `taken` are late with, if one is free for it.
    pub(crate) fn second(self: &Arc<Self>, want: &Want, taken: &[ReplicaId]) -> Option<Lease> {
        let mut seen = self.seen(&want.model);
        let grant = self.balancer().second(want, taken, &mut seen.ready, Instant::now())?;
        Some(Lease::new(self.clone(), grant))
    }

    /// Whether another replica may be asked beside one that is late, as far as can be told without looking at them.
    pub(crate) fn may_hedge(&self, model: &ModelId, late: ReplicaId) -> bool {
        let seen = self.seen(model);
        self.balancer().may_hedge(model, late, &seen.ready, Instant::now())
    }

    /// Whether a replica of `model` was connected within the last half minute.
    pub(crate) fn was_reachable(&self, model: &ModelId) -> bool {
        self.lives().was_reachable(model, Instant::now())
    }

    /// One that was asked later than `replica` has answered before it.
    pub(crate) fn outrun(&self, replica: &ReplicaId) {
        if self.balancer().outrun(replica, Instant::now()) {
            self.metrics.ejections.inc();
            tracing::warn!(%replica, "replica ejected: others answer before it");
        }
    }

    /// Whether a retry of a timeout or a 5xx may be made; takes it from the budget.
    pub(crate) fn may_retry(&self) -> bool {
        self.balancer().may_retry()
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
        // One that was lost within a second of its coming was never swept up.
        let reported = |one: &Candidate| one.load.is_some_and(|load| lives::is_recent(load.received, now));
        !untried && (lives.was_reachable(model, now) || seen.ready.iter().any(reported))
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
        self.balancer().waiting()
    }

    fn lives(&self) -> MutexGuard<'_, Lives> {
        // Times only: nothing that a panic elsewhere could leave half done.
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn balancer(&self) -> MutexGuard<'_, Balancer<oneshot::Sender<Lease>>> {
        // Counters and queues only: nothing that a panic elsewhere could leave half done.
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is made, and never kept")]
enum Found {
    Lease(Lease),
    Wait(Place, oneshot::Receiver<Lease>),
}

/// Gives a place in the line up, however the wait ends.
struct LeaveLine<'a> {
    pool: &'a Pool,
    model: &'a ModelId,
    place: Place,
}
impl Drop for LeaveLine<'_> {
    fn drop(&mut self) {
        let mut balancer = self.pool.balancer();
        balancer.leave(self.model, self.place);
        self.pool.metrics.set_waiting(balancer.waiting());
    }
}

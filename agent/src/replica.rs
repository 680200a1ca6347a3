//! One replica: an engine as all tasks of its agent see it.

pub(crate) mod adapters;
pub mod due;
pub mod hang;
pub mod health;
pub(crate) mod life;
pub(crate) mod report;
pub(crate) mod self_test;
pub mod status;
pub(crate) mod trial;
mod view;

pub(crate) use view::{Reading, Unready, View};

use crate::{
    admit::gate::{Counts, Gate},
    config::{AdapterConfig, EngineConfig, Source},
    counters::Counters,
    engine::{EngineUrl, models::served},
    metrics::page::AdaptersInUse,
    outcomes::Outcomes,
    output::Output,
    supervise::{Process, container::Named},
};
use dunlin_node::{Handle, Offer};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::ModelId,
    load::{EngineLoad, LoadReport},
    pod::FetchProgress,
    record::Continuation,
    runtime::Runtime,
};
use hang::Patience;
use health::{Health, Traffic};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};
use trial::Asked;

/// Looks that missing models ask for are at least this far apart: a client may ask for anything.
const DOUBTS_APART: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) index: u16,
    pub(crate) configured: Vec<ModelId>,
    /// Adapters that the engine may be told to load.
    allowed: Vec<AdapterConfig>,
    /// One order to load or drop an adapter at a time.
    loading: tokio::sync::Mutex<()>,
    pub(crate) metrics_interval: Duration,
    /// Its engine is the simulated one inside this process.
    built_in: bool,
    slots: Option<u16>,
    /// See [`EngineConfig::flavor`].
    flavor: u8,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) outcomes: Outcomes,
    /// How long looks at the engine took, seconds.
    pub(crate) probes: Histogram,
    pub(crate) output: Arc<Output>,
    health: Mutex<Health>,
    view: watch::Sender<Arc<View>>,
    /// The last reading of the engine's metrics, and until when it counts.
    reading: Mutex<Option<(Reading, Instant)>>,
    /// See [`EngineConfig::found`].
    pub(crate) found: bool,
    /// See [`EngineConfig::stand_in`].
    pub(crate) stand_in: bool,
    /// Drains or has ended, and will not serve again.
    ending: AtomicBool,
    /// What it was asked for last.
    asked: Mutex<Option<Asked>>,
    /// When an answer last made somebody doubt the list of models.
    doubted: Mutex<Option<Instant>>,
    /// `None` for engines that this agent didn't launch.
    process: Mutex<Option<Process>>,
    /// The container that the process runs.
    container: Mutex<Option<Named>>,
    /// How far the loading of its weights has come, where the pod has a loader.
    fetching: Mutex<Option<FetchProgress>>,
    restarts: AtomicU32,
    pub(crate) patience: Patience,
    /// Why its process is to be ended and started again; taken by its supervisor.
    restart: watch::Sender<Option<String>>,
    /// Grows whenever the engine becomes another one: what was found out about an earlier one counts no more.
    generation: AtomicU64,
    /// Told when the engine should be looked at now.
    pub(crate) look: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replica {
    pub(crate) fn new(index: u16, config: &EngineConfig, runtime: Runtime) -> Self {
        let slots = config.slots.unwrap_or(runtime.slots.default);
        let view = View {
            state: ReplicaState::Starting,
            reason: None,
            runtime: Arc::new(runtime),
            url: None,
            // What is configured is known before the engine is up, so that proxies hold requests for it (C16).
            models: served(&config.models, None),
            slots,
            continuation: None,
            has_served: false,
        };
        Self {
            index,
            configured: config.models.clone(),
            allowed: config.adapters.clone(),
            loading: tokio::sync::Mutex::default(),
            metrics_interval: config.metrics_interval,
            built_in: matches!(config.source, Source::Demo(_)),
            slots: config.slots,
            flavor: config.flavor,
            gate: Arc::new(Gate::new(slots)),
            counters: Arc::default(),
            outcomes: Outcomes::default(),
            probes: Histogram::new(exponential_buckets(0.001, 2.0, 13)),
            output: Arc::default(),
            health: Mutex::default(),
            view: watch::Sender::new(Arc::new(view)),
            reading: Mutex::default(),
            found: config.found,
            stand_in: config.stand_in,
            ending: AtomicBool::new(false),
            doubted: Mutex::default(),
            asked: Mutex::default(),
            process: Mutex::default(),
            container: Mutex::default(),
            fetching: Mutex::default(),
            restarts: AtomicU32::new(0),
            patience: config.patience,
            restart: watch::Sender::new(None),
            generation: AtomicU64::new(0),
            look: Notify::new(),
        }
    }

    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }
    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }
    pub(crate) fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.view.borrow().runtime)
    }
    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Changes the view; those who watch it hear of it only when something is different.
    fn change(&self, change: impl FnOnce(&mut View)) {
        self.view.send_if_modified(|view| {
            let mut new = View::clone(view);
            change(&mut new);
            let changed = new != **view;
            if changed {
                *view = Arc::new(new);
            }
            changed
        });
    }

    /// A client's request failed: noted, and the engine is looked at now.
    pub(crate) fn request_failed(&self) {
        self.health().saw(Traffic::Failed);
        self.look.notify_one();
    }

    /// A request of `model` goes to the engine's `path`: should it fail, a trial asks for the same.
    pub(crate) fn asks(&self, model: &ModelId, path: &str) {
        let mut asked = lock(&self.asked);
        if asked.as_ref().is_none_or(|asked| !asked.is(model, path)) {
            *asked = Some(Asked::new(model.clone(), path));
        }
    }
    pub(crate) fn last_asked(&self) -> Option<Asked> {
        lock(&self.asked).clone()
    }

    /// The engine answered 404: it may not have the model any more, so it is looked at now.
    pub(crate) fn model_missed(&self) {
        let now = Instant::now();
        let mut doubted = lock(&self.doubted);
        if doubted.is_none_or(|at| now.duration_since(at) >= DOUBTS_APART) {
            *doubted = Some(now);
            self.look.notify_one();
        }
    }

    /// The engine listens there from now on; `None` when it is gone.
    pub(crate) fn set_url(&self, url: Option<EngineUrl>) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.change(|view| (view.url, view.continuation) = (url, None));
        self.look.notify_one();
    }

    pub(crate) fn set_runtime(&self, runtime: Runtime) {
        if *self.runtime() != runtime {
            self.change(|view| (view.runtime, view.continuation) = (Arc::new(runtime), None));
        }
    }

    /// How many requests the engine says that it works on at once.
    pub(crate) fn set_slots(&self, told: Option<u16>) {
        let slots = self.slots.or(told).unwrap_or(self.runtime().slots.default);
        self.gate.resize(slots);
        self.change(|view| view.slots = slots);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// An engine that was found stays away: nobody should wait for it. It may come back.
    pub(crate) fn leave(&self) {
        if !self.is_ending() {
            self.change(|view| (view.state, view.models) = (ReplicaState::Gone, Vec::new()));
        }
    }

    /// Ready with these models, or not ready and why. Does nothing once the replica drains.
    pub(crate) fn set_serving(&self, serving: Result<Vec<ServedModel>, Unready>) {
        if let Err(unready) = &serving {
            self.log_new_reason(unready);
        }
        if self.is_ending() {
            return;
        }
        self.change(|view| match serving {
            Ok(models) => {
                if self_test::tested(&models) != self_test::tested(&view.models) {
                    view.continuation = None;
                }
                (view.state, view.reason, view.models) = (ReplicaState::Ready, None, models);
                view.has_served = true;
            }
            // What comes back may be another engine.
            Err(Unready { state, reason }) => {
                (view.state, view.reason, view.continuation) = (state, Some(reason), None);
            }
        });
    }

    /// What became of the self-test of the engine that `tested` showed; nothing if it is another one by now.
    pub(crate) fn set_continuation(&self, tested: &View, verdict: Continuation) {
        self.change(|view| {
            let same = view.state == ReplicaState::Ready
                && (&view.url, &view.runtime) == (&tested.url, &tested.runtime)
                && self_test::tested(&view.models) == self_test::tested(&tested.models);
            if same {
                view.continuation = Some(verdict);
            }
        });
    }

    /// Each reason once, not at every look. A launched engine has every right to load for a while; its ends are warned of
    /// by its supervisor.
    fn log_new_reason(&self, Unready { state, reason }: &Unready) {
        let view = self.view();
        if self.is_ending() || view.reason.as_ref() == Some(reason) {
            return;
        }
        let url = view.url.as_ref().map(tracing::field::display);
        if *state == ReplicaState::Unhealthy {
            tracing::warn!(replica = self.index, url, reason, "engine is unhealthy");
        } else if self.process().is_some() {
            tracing::info!(replica = self.index, url, reason, "engine is starting");
        } else {
            tracing::warn!(replica = self.index, url, reason, "engine is not there yet");
        }
    }

    /// The engine's process has ended unasked.
    pub(crate) fn process_ended(&self, how: &str) {
        self.health().ended();
        self.set_serving(Err(format!("the engine's process has ended: {how}").into()));
        self.set_url(None);
        *lock(&self.reading) = None;
    }

    pub(crate) fn drain(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.gate.drain();
        self.change(|view| {
            if view.state != ReplicaState::Gone {
                view.state = ReplicaState::Draining;
            }
        });
    }
    pub(crate) fn gone(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.change(|view| view.state = ReplicaState::Gone);
    }

    pub(crate) fn set_process(&self, process: Process) {
        *lock(&self.process) = Some(process);
    }
    pub(crate) fn process(&self) -> Option<Process> {
        lock(&self.process).clone()
    }
    /// Has the engine's process ended and started again. For launched engines.
    pub(crate) fn order_restart(&self, why: String) {
        self.restart.send_replace(Some(why));
    }
    /// Takes the order back that an earlier process left.
    pub(crate) fn forget_restart(&self) {
        self.restart.send_replace(None);
    }
    /// Waits for [`Self::order_restart`]. Cancel-safe.
    pub(crate) async fn restart_ordered(&self) -> String {
        let mut restart = self.restart.subscribe();
        // The sender lives as long as this replica.
        let ordered = restart.wait_for(Option::is_some).await;
        ordered.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
    pub(crate) fn set_container(&self, container: Option<Named>) {
        *lock(&self.container) = container;
    }
    pub(crate) fn container(&self) -> Option<Named> {
        lock(&self.container).clone()
    }
    pub(crate) fn set_fetching(&self, progress: FetchProgress) {
        if lock(&self.fetching).replace(progress).is_none() {
            self.set_serving(Err("its weights are being fetched".to_owned().into()));
        }
    }
    pub(crate) fn fetching(&self) -> Option<FetchProgress> {
        lock(&self.fetching).clone()
    }
    pub(crate) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn set_reading(&self, reading: Reading, until: Instant) {
        *lock(&self.reading) = Some((reading, until));
    }
    /// The load of the last reading, unless it is too old to count (C1).
    pub(crate) fn reading(&self, now: Instant) -> Option<EngineLoad> {
        lock(&self.reading).as_ref().filter(|(_, until)| now < *until).map(|(reading, _)| reading.load)
    }
    /// The adapters of the last reading, likewise.
    pub(crate) fn adapters(&self, now: Instant) -> Option<AdaptersInUse> {
        lock(&self.reading).as_ref().filter(|(_, until)| now < *until)?.0.adapters.clone()
    }

    /// The whole truth for the mesh.
    pub(crate) fn offer(&self) -> Offer {
        let view = self.view();
        Offer {
            index: self.index,
            state: view.state,
            runtime: view.runtime.name.clone(),
            continuation: view.continuation.unwrap_or_default(),
            slots: view.slots,
            models: view.models.clone(),
        }
    }

    /// Its load now, with a new version.
    pub(crate) fn load(&self, handle: &Handle, now: Instant) -> LoadReport {
        let Counts { slots, in_flight, queued, draining } = self.gate.counts();
        LoadReport {
            replica: handle.replica_id(self.index),
            version: handle.next_load_version(),
            slots,
            in_flight,
            queued,
            draining,
            flavor: self.flavor,
            measured: self.counters.measured(),
            engine: self.reading(now),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! How an agent's engines look to a person.

use super::Replica;
use crate::{
    metrics::page::AdaptersInUse,
    replicas::Replicas,
    supervise::{Process, child},
};
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ModelId, RuntimeName},
    load::{EngineLoad, Measured},
    pod::FetchProgress,
    record::Continuation,
};
use serde::Serialize;
use std::time::Instant;

/// Lines of an engine's output in its status.
const LAST_LINES: usize = 5;

/// Sees all engines of an agent. Cheap to clone; outlives the agent.
#[derive(Debug, Clone)]
pub struct Status(pub(crate) Replicas);

/// One engine of an agent.
#[derive(Debug, Clone, Serialize)]
pub struct EngineStatus {
    /// The replica's index.
    pub index: u16,
    /// Its kind, as far as known.
    pub runtime: RuntimeName,
    /// Where it listens; `None` while it doesn't.
    pub url: Option<String>,
    /// Where it stands.
    pub state: ReplicaState,
    /// Whether it has been ready since it was taken in.
    pub has_served: bool,
    /// Whether it serves only until a real engine does, and never again after that.
    pub stand_in: bool,
    /// Why it isn't ready, for people.
    pub reason: Option<String>,
    /// What it serves.
    pub models: Vec<ModelId>,
    /// Whether it goes on with a partial answer exactly, by its self-test; `None` until that has been made.
    pub continuation: Option<Continuation>,
    /// Requests that it works on at once.
    pub slots: u16,
    /// Requests that it has from this agent.
    pub in_flight: u16,
    /// Requests that wait in the agent.
    pub queued: u16,
    /// What the agent measured.
    pub measured: Measured,
    /// What its metrics say, when fresh.
    pub engine: Option<EngineLoad>,
    /// LoRA adapters with requests, when it tells and that is fresh.
    pub adapters: Option<AdaptersInUse>,
    /// Its process, when the agent launched it.
    pub process: Option<Process>,
    /// How far the loading of its weights has come, where a container of its pod does that.
    pub fetching: Option<FetchProgress>,
    /// Starts after the first.
    pub restarts: u32,
    /// The end of its output, when the agent launched it.
    pub last_output: Vec<String>,
}

impl Status {
    /// All engines, in order of index.
    #[must_use]
    pub fn engines(&self) -> Vec<EngineStatus> {
        self.0.all().iter().map(|replica| engine(replica)).collect()
    }

    /// Kills all engines that the agent launched, with their children, and waits for nothing. For a process that ends
    /// without running destructors: an agent that still runs would start them again.
    pub fn kill_launched(&self) {
        for replica in self.0.all().iter() {
            if let Some(pid) = replica.process().and_then(|process| process.pid()) {
                child::kill_group(pid, replica.container().as_ref());
            }
        }
    }

    /// Whether at least one engine serves.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        self.0.all().iter().any(|replica| replica.view().state == ReplicaState::Ready)
    }
}

fn engine(replica: &Replica) -> EngineStatus {
    let (view, counts) = (replica.view(), replica.gate.counts());
    EngineStatus {
        index: replica.index,
        runtime: view.runtime.name.clone(),
        url: view.url.as_ref().map(ToString::to_string),
        state: view.state,
        has_served: view.has_served,
        stand_in: replica.stand_in,
        reason: view.reason.clone(),
        models: view.models.iter().map(|model| model.id.clone()).collect(),
        continuation: view.continuation,
        slots: view.slots,
        in_flight: counts.in_flight,
        queued: counts.queued,
        measured: replica.counters.measured(),
        engine: replica.reading(Instant::now()),
        adapters: replica.adapters(Instant::now()),
        process: replica.process(),
        fetching: replica.fetching(),
        restarts: replica.restarts(),
        last_output: replica.output.tail(LAST_LINES).into_iter().map(|line| line.text.to_string()).collect(),
    }
}

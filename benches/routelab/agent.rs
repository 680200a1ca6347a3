//! The agent beside one engine: admission, measuring and reports, as they ship.

use super::{engine::Engine, events::Id};
use dunlin_agent::{
    admit::{Admission, Decision, InLine, Ticket},
    counters::{self, Counters, Meter},
    replica::due::Due,
};
use dunlin_protocol::{
    id::{ReplicaId, Version},
    load::{EngineLoad, LoadReport},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Instant,
};

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// It goes to the engine.
    Admitted,
    /// It waits for a while.
    Waits,
    /// It waits, and this one, which had waited for less, is refused.
    WaitsInsteadOf(Id),
    /// It is refused.
    Refused,
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    replica: ReplicaId,
    admission: Admission,
    waiting: HashMap<Id, Ticket>,
    /// KiB of the prompts in flight.
    kib: HashMap<Id, u32>,
    /// Requests in the engine; ordered, so that a run is the same every time.
    meters: BTreeMap<Id, (Meter, bool)>,
    counters: Arc<Counters>,
    due: Due,
    seq: u64,
}

impl Agent {
    pub fn new(replica: ReplicaId, slots: u16) -> Self {
        Self {
            replica,
            admission: Admission::new(slots),
            waiting: HashMap::new(),
            kib: HashMap::new(),
            meters: BTreeMap::new(),
            counters: Arc::default(),
            due: Due::default(),
            seq: 0,
        }
    }

    /// A request comes in.
    pub fn enter(&mut self, id: Id, line: InLine) -> Entry {
        self.kib.insert(id, line.kib);
        match self.admission.ask(line) {
            Decision::Admitted => Entry::Admitted,
            Decision::Refused(_) => Entry::Refused,
            Decision::Wait(ticket) => {
                self.waiting.insert(id, ticket);
                Entry::Waits
            }
            Decision::WaitInsteadOf(ticket, displaced) => {
                let displaced = self.called(displaced);
                self.waiting.insert(id, ticket);
                displaced.map_or(Entry::Waits, Entry::WaitsInsteadOf)
            }
        }
    }

    /// Whose ticket it is; it isn't any more.
    fn called(&mut self, ticket: Ticket) -> Option<Id> {
        let id = *self.waiting.iter().find(|(_, waiting)| **waiting == ticket)?.0;
        self.waiting.remove(&id);
        Some(id)
    }

    /// It has waited for long enough. Returns whether it still did.
    pub fn give_up(&mut self, id: Id) -> bool {
        self.waiting.remove(&id).is_some_and(|ticket| self.admission.give_up(ticket))
    }

    /// An admitted request goes to the engine.
    pub fn send(&mut self, id: Id, request: counters::Request, now: Instant) {
        self.meters.insert(id, (Meter::start(self.counters.clone(), request, now), false));
    }

    /// Its first token has come.
    pub fn first(&mut self, id: Id, now: Instant) {
        if let Some((meter, begun)) = self.meters.get_mut(&id) {
            meter.chunk(now);
            *begun = true;
        }
    }

    /// Its last token has come.
    pub fn last(&mut self, id: Id, now: Instant) {
        if let Some((mut meter, _)) = self.meters.remove(&id) {
            meter.finish(now);
        }
        self.admission.leave(self.kib.remove(&id).unwrap_or(0));
    }

    /// It reads what its engine says.
    pub fn read(&mut self, engine: &Engine) {
        self.admission.learn(Some(&says(engine)));
    }

    /// Somebody who waited and has a slot now.
    pub fn call(&mut self) -> Option<Id> {
        let called = self.admission.call()?;
        self.called(called)
    }

    /// Its regular look; streams that have begun speak, unless the engine hangs.
    pub fn sample(&mut self, hangs: bool, now: Instant) {
        for (meter, _) in self.meters.values_mut().filter(|(_, begun)| *begun && !hangs) {
            meter.chunk(now);
        }
        self.counters.sample(now);
    }

    /// What it says now.
    pub fn load(&mut self, engine: &Engine) -> LoadReport {
        self.seq += 1;
        LoadReport {
            replica: self.replica,
            version: Version { epoch: 1, seq: self.seq },
            slots: self.admission.slots(),
            in_flight: self.admission.in_flight(),
            queued: self.admission.queued(),
            draining: false,
            flavor: 0,
            measured: self.counters.measured(),
            engine: Some(says(engine)),
        }
    }

    /// Whether a report may go out if there is news.
    pub fn may_report(&self, now: Instant) -> bool {
        self.due.may(now)
    }

    /// Whether `report` goes out.
    pub fn reports(&mut self, report: &LoadReport, now: Instant) -> bool {
        self.due.take(report, now)
    }
}

/// An engine's own numbers.
fn says(engine: &Engine) -> EngineLoad {
    let (running, waiting) = engine.counts();
    EngineLoad {
        running: Some(running),
        waiting: Some(waiting),
        kv_used_permille: Some(engine.kv_permille()),
        ..EngineLoad::default()
    }
}

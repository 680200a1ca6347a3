//! What happens when, in order; at one moment in the order of scheduling.

use super::Micros;
use dunlin_protocol::load::LoadReport;
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

/// A request's number.
pub type Id = usize;

/// What happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client asks.
    Arrives(Id),
    /// A request reaches an engine's agent.
    AtAgent(Id),
    /// It has waited for long enough in an agent's queue, for so manieth time.
    GivesUp(Id, u32),
    /// The agent's refusal reaches the proxy.
    Refused(Id),
    /// The engine has the first token.
    First(Id),
    /// The engine has the last token.
    Last(Id),
    /// The first token reaches the proxy, with the load as of then.
    FirstAtProxy(Id, Option<Arc<LoadReport>>),
    /// The last token does.
    LastAtProxy(Id, Option<Arc<LoadReport>>),
    /// An agent looks at its engine; counts only when nothing has been reported since it was planned.
    Tick { engine: usize, plan: u64 },
    /// An agent reads its engine's metrics.
    Reads { engine: usize },
    /// A load report reaches a proxy.
    Report { proxy: usize, engine: usize, report: Arc<LoadReport> },
    /// An engine that hung goes on.
    Resumes { engine: usize },
    /// A proxy looks at those who wait.
    Look { proxy: usize },
}

struct Planned {
    at: Micros,
    order: u64,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Planned {}
impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// The future.
#[derive(Default)]
pub struct Events {
    heap: BinaryHeap<Reverse<Planned>>,
    planned: u64,
}

impl Events {
    /// Plans `event`.
    pub fn at(&mut self, at: Micros, event: Event) {
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, order: self.planned, event }));
    }

    /// What happens next.
    pub fn next(&mut self) -> Option<(Micros, Event)> {
        self.heap.pop().map(|Reverse(planned)| (planned.at, planned.event))
    }
}

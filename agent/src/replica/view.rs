//! A replica as the rest of its agent sees it at one moment.

use crate::{engine::EngineUrl, metrics::page::AdaptersInUse};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::ModelId,
    load::EngineLoad,
    record::Continuation,
    runtime::Runtime,
};
use std::sync::Arc;

/// What the agent says of a replica, and what requests need to know of it. Replaced whole.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct View {
    pub(crate) state: ReplicaState,
    /// Why it isn't ready.
    pub(crate) reason: Option<String>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) url: Option<EngineUrl>,
    /// What it serves; while it starts, what it is going to serve, as far as known.
    pub(crate) models: Vec<ServedModel>,
    pub(crate) slots: u16,
    /// The self-test's verdict on the engine as it is now; `None` until there is one.
    pub(crate) continuation: Option<Continuation>,
    /// Whether it has ever been ready.
    pub(crate) has_served: bool,
}

/// Why a replica does not serve.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unready {
    /// [`ReplicaState::Starting`] or [`ReplicaState::Unhealthy`].
    pub(crate) state: ReplicaState,
    /// For people.
    pub(crate) reason: String,
}

impl From<String> for Unready {
    fn from(reason: String) -> Self {
        Self { state: ReplicaState::Starting, reason }
    }
}

impl View {
    /// Whether it serves this model.
    pub(crate) fn serves(&self, model: &ModelId) -> bool {
        self.models.iter().any(|served| served.id == *model)
    }
}

/// What a page of metrics said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading {
    pub(crate) load: EngineLoad,
    pub(crate) adapters: Option<AdaptersInUse>,
}

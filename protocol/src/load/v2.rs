//! The second version of load reports, for peers that still send it.

use super::{EngineLoad, Measured};
use crate::id::{ReplicaId, Version};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct LoadReport {
    pub(super) replica: ReplicaId,
    pub(super) version: Version,
    pub(super) slots: u16,
    pub(super) in_flight: u16,
    pub(super) queued: u16,
    pub(super) draining: bool,
    pub(super) measured: Measured,
    pub(super) engine: Option<EngineLoad>,
}

impl From<LoadReport> for super::LoadReport {
    fn from(old: LoadReport) -> Self {
        let LoadReport { replica, version, slots, in_flight, queued, draining, measured, engine } = old;
        Self { replica, version, slots, in_flight, queued, draining, flavor: 0, measured, engine }
    }
}

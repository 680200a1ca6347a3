//! The first version of load reports, for peers that still send it.

use super::EngineLoad;
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

#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) ttft_us: Option<u32>,
    pub(super) itl_us: Option<u32>,
    pub(super) service_us: Option<u32>,
    pub(super) chunks_per_s: u32,
}

impl From<LoadReport> for super::LoadReport {
    fn from(old: LoadReport) -> Self {
        let LoadReport { replica, version, slots, in_flight, queued, draining, measured, engine } = old;
        let Measured { ttft_us, itl_us, service_us, chunks_per_s } = measured;
        let measured = super::Measured { ttft_us, itl_us, service_us, chunks_per_s, ..super::Measured::default() };
        Self { replica, version, slots, in_flight, queued, draining, flavor: 0, measured, engine }
    }
}

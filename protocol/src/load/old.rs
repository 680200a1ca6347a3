//! Earlier versions of load reports, for peers that still send them.

use super::{EngineLoad, Measured};
use crate::id::{ReplicaId, Version};
use serde::{Deserialize, Serialize};

/// The first two, which differ in what is measured.
#[derive(Serialize, Deserialize)]
pub(super) struct LoadReport<M> {
    pub(super) replica: ReplicaId,
    pub(super) version: Version,
    pub(super) slots: u16,
    pub(super) in_flight: u16,
    pub(super) queued: u16,
    pub(super) draining: bool,
    pub(super) measured: M,
    pub(super) engine: Option<EngineLoad>,
}

/// In the first version.
#[derive(Serialize, Deserialize)]
pub(super) struct FirstMeasured {
    pub(super) ttft_us: Option<u32>,
    pub(super) itl_us: Option<u32>,
    pub(super) service_us: Option<u32>,
    pub(super) chunks_per_s: u32,
}

impl From<FirstMeasured> for Measured {
    fn from(old: FirstMeasured) -> Self {
        let FirstMeasured { ttft_us, itl_us, service_us, chunks_per_s } = old;
        Self { ttft_us, itl_us, service_us, chunks_per_s, ..Self::default() }
    }
}

impl<M: Into<Measured>> From<LoadReport<M>> for super::LoadReport {
    fn from(old: LoadReport<M>) -> Self {
        let LoadReport { replica, version, slots, in_flight, queued, draining, measured, engine } = old;
        Self { replica, version, slots, in_flight, queued, draining, flavor: 0, measured: measured.into(), engine }
    }
}

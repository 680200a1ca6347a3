//! When load reports go out: the newest of each replica, no more often than the mesh's size allows. Pure.

use dunlin_protocol::load::LoadReport;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Reports that wait for their time.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    waiting: BTreeMap<u16, LoadReport>,
    last: Option<Instant>,
}

impl Reports {
    /// Takes newer reports in place of those that wait.
    pub(crate) fn add(&mut self, reports: BTreeMap<u16, LoadReport>) {
        self.waiting.extend(reports);
    }

    /// When to ask [`Self::due`] next; `None` when nothing waits.
    pub(crate) fn next(&self, interval: Duration, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() {
            return None;
        }
        Some(self.last.map_or(now, |last| last + interval))
    }

    /// The reports to send now.
    pub(crate) fn due(&mut self, interval: Duration, now: Instant) -> Vec<LoadReport> {
        if self.next(interval, now).is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.last = Some(now);
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}

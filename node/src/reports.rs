//! When load reports go out: the newest of each replica, no more often than the mesh's size allows. Pure.

use dunlin_protocol::load::LoadReport;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A report may go out by this part of the interval earlier. Agents too keep an interval between two reports: were both
/// equal, a report would wait here for as long as the first one happened to, up to a whole interval, for ever.
const EARLIER: u32 = 8;

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
        Some(self.last.map_or(now, |last| last + (interval - interval / EARLIER)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::{
        id::{PeerId, ReplicaId, Version},
        load::Measured,
    };

    const MS: Duration = Duration::from_millis(1);
    const INTERVAL: Duration = Duration::from_millis(100);

    fn report(replica: ReplicaId) -> BTreeMap<u16, LoadReport> {
        let report = LoadReport {
            replica,
            version: Version::default(),
            slots: 1,
            in_flight: 0,
            queued: 0,
            draining: false,
            flavor: 0,
            measured: Measured::default(),
            engine: None,
        };
        BTreeMap::from([(0, report)])
    }

    /// As long as an agent reports at the same interval, no report waits once some have gone out.
    #[test]
    fn reports_at_the_same_interval_soon_go_out_as_they_come() {
        let (start, replica) = (Instant::now(), ReplicaId { peer: PeerId::random(), index: 0 });
        let mut reports = Reports::default();
        reports.add(report(replica));
        assert_eq!(reports.due(INTERVAL, start).len(), 1);
        let mut waits = Vec::new();
        for n in 0..10 {
            let made = start + 40 * MS + n * INTERVAL;
            reports.add(report(replica));
            let sent = reports.next(INTERVAL, made).unwrap().max(made);
            assert_eq!(reports.due(INTERVAL, sent).len(), 1);
            waits.push(sent - made);
        }
        assert_eq!((waits[0], waits[9]), (Duration::from_micros(47_500), Duration::ZERO), "{waits:?}");
    }
}

//! When a load report is due: pure.

use dunlin_protocol::load::{EngineLoad, LoadReport, Measured};
use std::time::{Duration, Instant};

/// Reports go out at most this often. The node lowers the rate further in large meshes.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// And at least this often.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// A measured duration or speed that moved by less than a fifth is no news.
const RELATIVE: u64 = 5;
/// A share that moved by less than this, thousandths, is no news.
const SHARE: u16 = 20;
/// An engine that has been silent for longer than this, milliseconds, is news; and again each time that doubles.
const SILENCE: u16 = 250;

/// What was reported last, and when.
#[derive(Debug, Default)]
pub struct Due {
    last: Option<(LoadReport, Instant)>,
}

impl Due {
    /// Whether a report may go out at `now` if it says anything new.
    #[must_use]
    pub fn may(&self, now: Instant) -> bool {
        self.last.as_ref().is_none_or(|(_, sent)| now.saturating_duration_since(*sent) >= INTERVAL)
    }

    /// Whether `report` is to be sent at `now`; then it is the last one.
    pub fn take(&mut self, report: &LoadReport, now: Instant) -> bool {
        let due = self.may(now)
            && self
                .last
                .as_ref()
                .is_none_or(|(old, sent)| now.saturating_duration_since(*sent) >= HEARTBEAT || is_news(old, report));
        if due {
            self.last = Some((report.clone(), now));
        }
        due
    }
}

/// Whether `new` says something that a proxy should know before the next heartbeat.
fn is_news(old: &LoadReport, new: &LoadReport) -> bool {
    let counts = |report: &LoadReport| (report.slots, report.in_flight, report.queued, report.draining);
    counts(old) != counts(new)
        || measured_is_news(&old.measured, &new.measured)
        || match (&old.engine, &new.engine) {
            (Some(old), Some(new)) => engine_is_news(old, new),
            (old, new) => old.is_some() != new.is_some(),
        }
}

fn measured_is_news(old: &Measured, new: &Measured) -> bool {
    let pairs = [
        (old.ttft_us, new.ttft_us),
        (old.itl_us, new.itl_us),
        (old.service_us, new.service_us),
        (old.first_token_us, new.first_token_us),
        (old.prefill_us_per_kib, new.prefill_us_per_kib),
    ];
    pairs.into_iter().any(|(old, new)| match (old, new) {
        (Some(old), Some(new)) => moved(old, new),
        (old, new) => old != new,
    }) || moved(old.chunks_per_s, new.chunks_per_s)
        || moved(old.unstarted_kib, new.unstarted_kib)
        || old.recent != new.recent
        || silence(old.silent_ms) != silence(new.silent_ms)
}

/// How often the silence has doubled.
fn silence(ms: u16) -> u32 {
    (ms / SILENCE).checked_ilog2().map_or(0, |doubled| doubled + 1)
}

fn moved(old: u32, new: u32) -> bool {
    u64::from(old.abs_diff(new)) * RELATIVE > u64::from(old.max(new))
}

/// Token counts grow with every token and are no news by themselves.
fn engine_is_news(old: &EngineLoad, new: &EngineLoad) -> bool {
    let share = |old: Option<u16>, new: Option<u16>| match (old, new) {
        (Some(old), Some(new)) => old.abs_diff(new) >= SHARE,
        (old, new) => old != new,
    };
    (old.running, old.waiting) != (new.running, new.waiting)
        || share(old.kv_used_permille, new.kv_used_permille)
        || share(old.prefix_hit_permille, new.prefix_hit_permille)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::{PeerId, ReplicaId, Version};

    fn base() -> LoadReport {
        LoadReport {
            replica: ReplicaId { peer: PeerId::random(), index: 0 },
            version: Version::default(),
            slots: 8,
            in_flight: 2,
            queued: 0,
            draining: false,
            flavor: 0,
            measured: Measured { ttft_us: Some(1000), chunks_per_s: 100, ..Measured::default() },
            engine: Some(EngineLoad { running: Some(2), kv_used_permille: Some(500), ..EngineLoad::default() }),
        }
    }
    fn news(change: impl FnOnce(&mut LoadReport)) -> bool {
        let old = base();
        let mut new = old.clone();
        new.version.seq += 1;
        change(&mut new);
        is_news(&old, &new)
    }
    fn engine_news(change: impl FnOnce(&mut EngineLoad)) -> bool {
        news(|report| change(report.engine.as_mut().unwrap()))
    }

    #[test]
    fn a_new_version_alone_is_no_news() {
        assert!(!news(|_| {}));
    }

    #[test]
    fn counts_are_news() {
        assert!(news(|report| report.in_flight = 3));
        assert!(news(|report| report.queued = 1));
        assert!(news(|report| report.draining = true));
        assert!(engine_news(|engine| engine.running = Some(3)));
        assert!(engine_news(|engine| engine.waiting = Some(0)));
        assert!(news(|report| report.engine = None));
    }

    #[test]
    fn small_moves_are_none() {
        assert!(!news(|report| report.measured.ttft_us = Some(1100)));
        assert!(news(|report| report.measured.ttft_us = Some(1300)));
        assert!(news(|report| report.measured.itl_us = Some(1)));
        assert!(!news(|report| report.measured.chunks_per_s = 110));
        assert!(news(|report| report.measured.chunks_per_s = 0));
        assert!(news(|report| report.measured.unstarted_kib = 1));
        assert!(news(|report| report.measured.recent = [1, 0, 0, 0]));
        assert!(!news(|report| report.measured.silent_ms = 200));
        assert!(news(|report| report.measured.silent_ms = 300));
        assert!(!engine_news(|engine| engine.kv_used_permille = Some(510)));
        assert!(engine_news(|engine| engine.kv_used_permille = Some(530)));
        assert!(!engine_news(|engine| engine.generated_tokens = None));
    }

    #[test]
    fn the_first_change_is_told_at_once_and_the_next_after_the_interval() {
        let (mut due, start, mut report) = (Due::default(), Instant::now(), base());
        assert!(due.take(&report, start));
        assert!(!due.take(&report, start + HEARTBEAT - INTERVAL));
        report.in_flight += 1;
        let changed = start + HEARTBEAT - INTERVAL / 2;
        assert!(due.take(&report, changed));
        report.in_flight += 1;
        assert!(!due.may(changed + INTERVAL / 2) && !due.take(&report, changed + INTERVAL / 2));
        assert!(due.take(&report, changed + INTERVAL));
        assert!(!due.take(&report, changed + INTERVAL * 2) && due.take(&report, changed + INTERVAL + HEARTBEAT));
    }
}

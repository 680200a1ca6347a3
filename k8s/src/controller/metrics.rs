//! What an orchestrator counts, for Prometheus.

use super::tables::Tables;
use crate::resources::Phase;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// How replicas stand, in the order of their lives.
const PHASES: [(Phase, &str); 7] = [
    (Phase::Pending, "pending"),
    (Phase::Placing, "placing"),
    (Phase::Pulling, "pulling"),
    (Phase::Loading, "loading"),
    (Phase::Ready, "ready"),
    (Phase::Draining, "draining"),
    (Phase::Failed, "failed"),
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

/// What is counted. Clones are the same.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    leads: Gauge,
    playgrounds: Gauge,
    wanted: Gauge,
    replicas: Family<OfPhase, Gauge>,
    work: Family<OfResult, Counter>,
    placing: Counter<f64, AtomicU64>,
    counted: AtomicU64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("dunlin_orchestrator");
        let inner = Inner {
            leads: Gauge::default(),
            playgrounds: Gauge::default(),
            wanted: Gauge::default(),
            replicas: Family::default(),
            work: Family::default(),
            placing: Counter::default(),
            counted: AtomicU64::default(),
            registry: Mutex::default(),
        };
        registry.register("leads", "1 while this process leads", inner.leads.clone());
        registry.register("playgrounds", "Playgrounds that are looked after", inner.playgrounds.clone());
        registry.register("replicas_wanted", "Replicas that Playgrounds ask for", inner.wanted.clone());
        registry.register("replicas", "Replicas on record, by phase", inner.replicas.clone());
        registry.register("work", "Rounds of calls for one Playground, by what came of them", inner.work.clone());
        registry.register("placement_seconds", "Time spent on placement", inner.placing.clone());
        *inner.registry.lock().unwrap_or_else(PoisonError::into_inner) = registry;
        Self(Arc::new(inner))
    }
}

/// Between two counts of all replicas, milliseconds.
const COUNT_MS: u64 = 1_000;

impl Metrics {
    /// All of it, as a scraper takes it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into memory does not fail.
        let _ = encode(&mut text, &self.0.registry.lock().unwrap_or_else(PoisonError::into_inner));
        text
    }

    /// Whether this process leads from now on. One that does not knows nothing of Playgrounds.
    pub(super) fn leads(&self, leads: bool) {
        self.0.leads.set(i64::from(leads));
        if !leads {
            self.0.playgrounds.set(0);
            self.0.wanted.set(0);
            self.0.replicas.clear();
        }
    }

    pub(super) fn worked(&self, result: &'static str) {
        self.0.work.get_or_create(&OfResult { result }).inc();
    }

    pub(super) fn placed(&self, took: std::time::Duration) {
        self.0.placing.inc_by(took.as_secs_f64());
    }

    /// Counts replicas, unless that was done a moment before `now`, milliseconds of any clock.
    pub(super) fn count(&self, tables: &Tables, now: u64) {
        if now.saturating_sub(self.0.counted.load(Ordering::Relaxed)) < COUNT_MS {
            return;
        }
        self.0.counted.store(now, Ordering::Relaxed);
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let all = || tables.playgrounds.values();
        self.0.playgrounds.set(signed(all().count()));
        self.0.wanted.set(all().map(|tracked| i64::from(tracked.playground.spec.replicas)).sum());
        for (phase, word) in PHASES {
            let states = all().flat_map(|tracked| &tracked.status.replica_states);
            let count = states.filter(|state| state.phase == phase).count();
            self.0.replicas.get_or_create(&OfPhase { phase: word }).set(signed(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let metrics = Metrics::default();
        metrics.leads(true);
        metrics.worked("done");
        metrics.count(&Tables::default(), 5_000);
        let text = metrics.text();
        // The chart's alerts ask for nothing that is not there.
        let alerts = include_str!("../../chart/templates/monitoring.yaml");
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut names: Vec<&str> = alerts.split(|c| !is_name(c)).filter(|word| word.starts_with("dunlin_")).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 4, "{names:?}");
        for name in names {
            assert!(
                text.lines()
                    .any(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "))),
                "{name}"
            );
        }
        for line in [
            "dunlin_orchestrator_leads 1",
            "dunlin_orchestrator_work_total{result=\"done\"} 1",
            "dunlin_orchestrator_replicas{phase=\"ready\"} 0",
        ] {
            assert!(text.contains(line), "{text}");
        }
        metrics.leads(false);
        assert!(metrics.text().contains("dunlin_orchestrator_leads 0") && !metrics.text().contains("phase"));
    }
}

//! One proxy: what it has heard of each replica, and the balancer that ships.

use super::{events::Id, scenario::Scenario};
use dunlin_protocol::{id::ReplicaId, load::LoadReport};
use dunlin_proxy::{
    balance::{Balancer, Settings},
    route::{Candidate, Load, Loads, Own, Reach},
};
use rand::{SeedableRng, rngs::SmallRng};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// One proxy.
pub struct Proxy {
    /// Its decisions.
    pub balancer: Balancer<Id>,
    views: Vec<View>,
    /// When those who wait are looked at next.
    pub looks: bool,
}

struct View {
    replica: ReplicaId,
    slots: u16,
    rtt: Duration,
    loads: Loads,
    report: Option<(Arc<LoadReport>, Instant)>,
}

impl Proxy {
    pub fn new(scenario: &Scenario, replicas: &[ReplicaId], seed: u64) -> Self {
        let many = 1_000_000;
        let settings = Settings {
            fresh: Duration::from_millis(1500),
            waiting_per_model: many,
            waiting: many,
            starting_per_model: many,
            starting: many,
        };
        let loads = if scenario.adapters > 0 { Loads::Adapter } else { Loads::Never };
        let views = scenario.engines.iter().zip(replicas).map(|(spec, replica)| View {
            replica: *replica,
            slots: spec.slots,
            rtt: Duration::from_micros(2 * spec.way),
            loads,
            report: None,
        });
        let balancer = Balancer::new(settings, SmallRng::seed_from_u64(seed));
        Self { balancer, views: views.collect(), looks: false }
    }

    /// Takes a report in, unless a newer one is known.
    pub fn hear(&mut self, engine: usize, report: Arc<LoadReport>, now: Instant) {
        let view = &mut self.views[engine];
        if view.report.as_ref().is_none_or(|(known, _)| known.version < report.version) {
            view.report = Some((report, now));
        }
    }

    /// What it knows of all replicas.
    pub fn candidates(&self) -> Vec<Candidate> {
        let candidate = |view: &View| Candidate {
            replica: view.replica,
            reach: Reach::Direct,
            rtt: Some(view.rtt),
            slots: view.slots,
            loads: view.loads,
            load: view.report.as_ref().map(|(report, received)| Load::new(report, *received)),
            own: Own::default(),
        };
        self.views.iter().map(candidate).collect()
    }
}

//! One proxy: what it has heard of each replica, and the balancer that ships.

use super::{events::Id, scenario::Scenario};
use dunlin_protocol::{
    id::{ModelId, ReplicaId},
    load::LoadReport,
};
use dunlin_proxy::{
    balance::{Arrival, Balancer, Settings, Ticket, Want},
    late::Priority,
    prompt::Prompt,
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
            hold: Duration::from_secs(86_400),
            // The engines of the simulation answer what they were given.
            hedged_percent: 0,
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

/// A proxy whose decisions alone are timed.
pub struct Hot {
    proxy: Proxy,
    model: ModelId,
}

impl Hot {
    pub fn new(scenario: &Scenario) -> Self {
        let replicas: Vec<_> = (0..scenario.engines.len()).map(super::run::replica).collect();
        let model = ModelId::new("model").expect("a plain name");
        Self { proxy: Proxy::new(scenario, &replicas, 1), model }
    }

    /// One request from its prompt to its end, as far as routing has to do with it. Returns whether it got a replica.
    pub fn choose(&mut self, seed: u32, text: &[u8]) -> bool {
        let prompt = Arc::new(Prompt::of(seed, [text]));
        let want = Want { tenant: 0, priority: Priority::default(), model: self.model.clone(), prompt, stream: true };
        let mut candidates = self.proxy.candidates();
        let now = Instant::now();
        let arrival = self.proxy.balancer.arrive(&want, &mut Ticket::default(), &mut candidates, now, || 0);
        let Ok(Arrival::Granted(mut grant)) = arrival else { return false };
        self.proxy.balancer.begin(&mut grant, now);
        self.proxy.balancer.end(&mut grant, now);
        true
    }
}

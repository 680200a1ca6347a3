//! One run: a policy, a scenario, so many proxies, a seed.

use super::{
    Micros,
    agent::{Agent, Entry},
    engine::Engine,
    events::{Event, Events, Id},
    policy::Simple,
    proxy::Proxy,
    random::between,
    scenario::Scenario,
    summary::Summary,
    workload::{self, Request},
};
use dunlin_agent::{
    admit::{InLine, LONGEST_WAIT},
    counters,
    replica::due::INTERVAL,
};
use dunlin_protocol::{
    id::{PeerId, ReplicaId},
    load::{LoadReport, model_tag},
};
use dunlin_proxy::balance::{Arrival, Grant, Ticket};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

pub use super::policy::Policy;

/// Between two looks of a proxy at those who wait, as in its pool.
const LOOK: Micros = 10_000;
/// Between two readings of an engine's metrics, as its agent makes them.
const READ: Micros = 100_000;

/// What is known of a request under way.
struct Way {
    proxy: usize,
    engine: usize,
    ticket: Ticket,
    grant: Option<Grant>,
}

struct World<'a> {
    scenario: &'a Scenario,
    policy: Policy,
    requests: &'a [Request],
    ways: Vec<Way>,
    engines: Vec<Engine>,
    agents: Vec<Agent>,
    replicas: Vec<ReplicaId>,
    plans: Vec<u64>,
    /// Waits of each request in agents' queues so far.
    tries: Vec<u32>,
    proxies: Vec<Proxy>,
    simple: Vec<Simple>,
    central: VecDeque<Id>,
    events: Events,
    rng: SmallRng,
    base: Instant,
    now: Micros,
    open: usize,
    summary: Summary,
}

/// Times to first token of one run.
pub fn run(scenario: &Scenario, policy: Policy, proxies: usize, seed: u64) -> Summary {
    let requests = workload::make(scenario, seed);
    World::new(scenario, policy, proxies, &requests, seed).run()
}

/// A replica whose id depends on `n` only.
pub fn replica(n: usize) -> ReplicaId {
    let mut bytes = vec![0x12, 0x20];
    bytes.extend([n as u8 + 1; 32]);
    ReplicaId { peer: PeerId::from_bytes(&bytes).expect("a multihash of SHA-256"), index: 0 }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, policy: Policy, proxies: usize, requests: &'a [Request], seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let count = scenario.engines.len();
        let replicas: Vec<_> = (0..count).map(replica).collect();
        let way = |proxy| Way { proxy, engine: 0, ticket: Ticket::default(), grant: None };
        Self {
            scenario,
            policy,
            requests,
            ways: requests.iter().map(|_| way(rng.random_range(0..proxies))).collect(),
            engines: scenario.engines.iter().cloned().map(Engine::new).collect(),
            agents: scenario.engines.iter().zip(&replicas).map(|(spec, id)| Agent::new(*id, spec.slots)).collect(),
            plans: vec![0; count],
            tries: vec![0; requests.len()],
            proxies: (0..proxies as u64).map(|n| Proxy::new(scenario, &replicas, seed ^ n << 32)).collect(),
            replicas,
            simple: (0..proxies).map(|n| Simple::new(count, n)).collect(),
            central: VecDeque::new(),
            events: Events::default(),
            rng,
            // A moment later than the clock's own start, from which earlier moments can be told.
            base: Instant::now() + Duration::from_secs(60),
            now: 0,
            open: requests.len(),
            summary: Summary::default(),
        }
    }

    fn run(mut self) -> Summary {
        for (id, request) in self.requests.iter().enumerate() {
            self.events.at(request.at, Event::Arrives(id));
        }
        for engine in 0..self.engines.len() {
            if let Some((_, to)) = self.engines[engine].spec.hangs {
                self.events.at(to, Event::Resumes { engine });
            }
            if self.policy == Policy::Ours {
                let first = between(0, micros(INTERVAL), &mut self.rng);
                self.events.at(first, Event::Tick { engine, plan: 0 });
                self.events.at(first, Event::Reads { engine });
            }
        }
        while self.open > 0
            && let Some((at, event)) = self.events.next()
        {
            self.now = at;
            self.happens(event);
        }
        for engine in &self.engines {
            self.summary.prompt_tokens.0 += engine.prompt_tokens.0;
            self.summary.prompt_tokens.1 += engine.prompt_tokens.1;
        }
        self.summary
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives(id) => match self.policy {
                Policy::Ours => self.arrive(id),
                Policy::Ideal => {
                    self.central.push_back(id);
                    self.serve_central();
                }
                policy => {
                    let proxy = &mut self.simple[self.ways[id].proxy];
                    let engine = proxy.choose(policy, &mut self.rng);
                    proxy.in_flight[engine] += 1;
                    self.send(id, engine);
                }
            },
            Event::AtAgent(id) => self.at_agent(id),
            Event::GivesUp(id, nth) => {
                let engine = self.ways[id].engine;
                if self.tries[id] == nth && self.agents[engine].give_up(id) {
                    self.refuse(id);
                }
            }
            Event::Refused(id) => self.refused(id),
            Event::First(id) => {
                let (engine, now) = (self.ways[id].engine, self.instant());
                self.agents[engine].first(id, now);
                let load = self.load_on_answer(engine);
                self.events.at(self.now + self.scenario.engines[engine].way, Event::FirstAtProxy(id, load));
            }
            Event::Last(id) => self.last(id),
            Event::FirstAtProxy(id, load) => self.first_at_proxy(id, load),
            Event::LastAtProxy(id, load) => self.last_at_proxy(id, load),
            Event::Tick { engine, plan } => self.tick(engine, plan),
            Event::Reads { engine } => {
                self.agents[engine].read(&self.engines[engine]);
                self.call(engine);
                self.events.at(self.now + READ, Event::Reads { engine });
            }
            Event::Report { proxy, engine, report } => {
                let now = self.instant();
                self.proxies[proxy].hear(engine, report, now);
                self.serve_waiting(proxy);
            }
            Event::Resumes { engine } => {
                self.start(engine);
                self.serve_central();
            }
            Event::Look { proxy } => {
                self.proxies[proxy].looks = false;
                self.serve_waiting(proxy);
            }
        }
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    // Ours.

    fn arrive(&mut self, id: Id) {
        let now = self.instant();
        let way = &mut self.ways[id];
        let proxy = &mut self.proxies[way.proxy];
        let mut candidates = proxy.candidates();
        let want = &self.requests[id].want;
        let arrival = proxy.balancer.arrive(want, &mut way.ticket, &mut candidates, now, || id);
        match arrival.expect("the line is long enough") {
            Arrival::Granted(grant) => self.granted(id, grant),
            // Somebody who waits is looked at as soon as the pool's task runs.
            Arrival::Waits(_) => self.serve_waiting(self.ways[id].proxy),
        }
    }

    fn granted(&mut self, id: Id, grant: Grant) {
        let engine = self.replicas.iter().position(|replica| *replica == grant.replica).expect("one of them");
        self.ways[id].grant = Some(grant);
        self.send(id, engine);
    }

    fn serve_waiting(&mut self, proxy: usize) {
        let now = self.instant();
        for model in self.proxies[proxy].balancer.models() {
            loop {
                let mut candidates = self.proxies[proxy].candidates();
                let granted = self.proxies[proxy].balancer.next_grant(&model, &mut candidates, now);
                let Some((id, grant)) = granted else { break };
                self.granted(id, grant);
            }
        }
        let proxy_now = &mut self.proxies[proxy];
        if proxy_now.balancer.waiting() > 0 && !proxy_now.looks {
            proxy_now.looks = true;
            self.events.at(self.now + LOOK, Event::Look { proxy });
        }
    }

    fn refuse(&mut self, id: Id) {
        let way = self.scenario.engines[self.ways[id].engine].way;
        self.summary.refused += 1;
        self.events.at(self.now + way, Event::Refused(id));
    }

    fn refused(&mut self, id: Id) {
        let now = self.instant();
        let way = &mut self.ways[id];
        if let Some(mut grant) = way.grant.take() {
            let balancer = &mut self.proxies[way.proxy].balancer;
            balancer.refuse(&mut grant, now);
        }
        self.arrive(id);
    }

    fn tick(&mut self, engine: usize, plan: u64) {
        if self.plans[engine] != plan {
            return;
        }
        let now = self.instant();
        let hangs = self.engines[engine].is_hanging(self.now);
        self.agents[engine].sample(hangs, now);
        if !self.report(engine) {
            self.events.at(self.now + micros(INTERVAL), Event::Tick { engine, plan });
        }
    }

    /// Something has changed at an agent.
    fn moved(&mut self, engine: usize) {
        if self.policy == Policy::Ours && self.agents[engine].may_report(self.instant()) {
            self.report(engine);
        }
    }

    /// Sends a report if there is news. Returns whether it did.
    fn report(&mut self, engine: usize) -> bool {
        let now = self.instant();
        let report = self.agents[engine].load(&self.engines[engine]);
        if !self.agents[engine].reports(&report, now) {
            return false;
        }
        let report = Arc::new(report);
        let way = self.scenario.engines[engine].way;
        let travel = self.scenario.reports;
        for proxy in 0..self.proxies.len() {
            if self.rng.random::<f64>() >= travel.lost {
                let delay = way + between(travel.delay.0, travel.delay.1, &mut self.rng);
                let report = report.clone();
                self.events.at(self.now + delay, Event::Report { proxy, engine, report });
            }
        }
        self.plans[engine] += 1;
        self.events.at(self.now + micros(INTERVAL), Event::Tick { engine, plan: self.plans[engine] });
        true
    }

    fn load_on_answer(&mut self, engine: usize) -> Option<Arc<LoadReport>> {
        let carried = self.policy == Policy::Ours && self.scenario.reports.on_answers;
        carried.then(|| Arc::new(self.agents[engine].load(&self.engines[engine])))
    }

    // The ideal queue.

    fn serve_central(&mut self) {
        while let Some(&id) = self.central.front() {
            let request = &self.requests[id];
            let free = (0..self.engines.len()).filter(|&n| self.engines[n].is_free(request, self.now));
            let time = |n: &usize| {
                let engine = &self.engines[*n];
                (engine.foresee(request, self.now) + 2 * engine.spec.way, engine.spec.inter_token)
            };
            let Some(engine) = free.min_by_key(time) else { return };
            self.central.pop_front();
            // It knows without delay, so it also sends without; the way is paid all the same.
            self.ways[id].engine = engine;
            self.submit(id);
        }
    }

    // All.

    fn send(&mut self, id: Id, engine: usize) {
        self.ways[id].engine = engine;
        self.events.at(self.now + self.scenario.engines[engine].way, Event::AtAgent(id));
    }

    fn at_agent(&mut self, id: Id) {
        let engine = self.ways[id].engine;
        if self.policy != Policy::Ours {
            return self.submit(id);
        }
        let grant = self.ways[id].grant.as_ref();
        let (waited, patience) = grant.map_or((Duration::ZERO, LONGEST_WAIT), |grant| (grant.waited, grant.patience));
        let kib = self.ways[id].grant.as_ref().map_or(0, |grant| grant.kib);
        let line = InLine { since: self.instant() - waited, patience, kib };
        let entry = self.agents[engine].enter(id, line);
        if matches!(entry, Entry::Waits | Entry::WaitsInsteadOf(_)) {
            self.tries[id] += 1;
            self.events.at(self.now + micros(patience), Event::GivesUp(id, self.tries[id]));
        }
        match entry {
            Entry::Admitted => self.submit(id),
            Entry::Waits => {}
            Entry::WaitsInsteadOf(displaced) => self.refuse(displaced),
            Entry::Refused => self.refuse(id),
        }
        self.moved(engine);
    }

    fn submit(&mut self, id: Id) {
        let (engine, request, now) = (self.ways[id].engine, &self.requests[id], self.instant());
        let model = model_tag(&request.want.model);
        let told = self.ways[id].grant.as_ref().map_or(counters::Request::default(), |grant| {
            let Grant { kib, new_kib, guess, .. } = *grant;
            counters::Request { kib, new_kib, guess, measures: true, model }
        });
        self.agents[engine].send(id, told, now);
        self.engines[engine].submit(id, request);
        self.start(engine);
    }

    fn start(&mut self, engine: usize) {
        while let Some(started) = self.engines[engine].start(self.now) {
            self.events.at(started.first, Event::First(started.id));
            self.events.at(started.last, Event::Last(started.id));
        }
    }

    /// Those who wait at the agent and have a slot now.
    fn call(&mut self, engine: usize) {
        while let Some(next) = self.agents[engine].call() {
            self.submit(next);
        }
    }

    fn last(&mut self, id: Id) {
        let (engine, now) = (self.ways[id].engine, self.instant());
        self.engines[engine].end(&self.requests[id]);
        self.agents[engine].last(id, now);
        self.start(engine);
        self.call(engine);
        self.moved(engine);
        let load = self.load_on_answer(engine);
        self.events.at(self.now + self.scenario.engines[engine].way, Event::LastAtProxy(id, load));
        if self.policy == Policy::Ideal {
            self.serve_central();
        }
    }

    fn first_at_proxy(&mut self, id: Id, load: Option<Arc<LoadReport>>) {
        let now = self.instant();
        let way = &mut self.ways[id];
        let extra = if self.policy == Policy::Ideal { self.scenario.engines[way.engine].way } else { 0 };
        self.summary.add(self.now + extra - self.requests[id].at);
        if let Some(grant) = &mut way.grant {
            let proxy = &mut self.proxies[way.proxy];
            if let Some(load) = load {
                proxy.hear(way.engine, load, now);
            }
            proxy.balancer.begin(grant, now);
        }
    }

    fn last_at_proxy(&mut self, id: Id, load: Option<Arc<LoadReport>>) {
        let now = self.instant();
        self.open -= 1;
        let way = &mut self.ways[id];
        self.simple[way.proxy].in_flight[way.engine] = self.simple[way.proxy].in_flight[way.engine].saturating_sub(1);
        if let Some(mut grant) = way.grant.take() {
            let (at, engine) = (way.proxy, way.engine);
            let proxy = &mut self.proxies[at];
            if let Some(load) = load {
                proxy.hear(engine, load, now);
            }
            proxy.balancer.succeed(&mut grant);
            proxy.balancer.end(&mut grant, now);
            self.serve_waiting(at);
        }
    }
}

fn micros(time: Duration) -> Micros {
    time.as_micros() as Micros
}

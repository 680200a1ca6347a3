//! Replicas are killed, stopped and drained at random while clients ask, and every character of every answer is checked.
//!
//! ```sh
//! DUNLIN_CHAOS_SECONDS=600 DUNLIN_CHAOS_SEED=7 cargo test --test e2e -- --nocapture chaos
//! ```

mod clients;
mod script;

use crate::harness::{
    engine::DemoEngine,
    http::Endpoint,
    node::{LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use clients::Clients;
use rustix::process::Signal;
use script::{Fault, Step, script};
use std::time::{Duration, Instant};

const REPLICAS: usize = 3;
const CLIENTS: usize = 8;
/// Shorter than in production, so that faults that last seconds are long.
const PROXY: [&str; 4] = ["--first-byte-timeout", "3", "--inter-token-timeout", "2"];
/// Answers of 80 tokens take half a second, so most faults meet some in their middle.
const ENGINE: [&str; 4] = ["--tokens-per-second", "160", "--slots", "16"];
const SECONDS: u64 = 60;
const RESTART: Duration = Duration::from_secs(20);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// One replica: an engine and the agent beside it.
struct Replica<'a> {
    sandbox: &'a Sandbox,
    number: usize,
    engine: DemoEngine,
    agent: Node<'a>,
    agent_args: Vec<String>,
    /// Names the logs of those started again.
    starts: usize,
}

impl<'a> Replica<'a> {
    fn new(sandbox: &'a Sandbox, mesh: &Mesh<'a>, number: usize) -> Self {
        let engine = DemoEngine::start(sandbox, &format!("engine-{number}"), &ENGINE);
        let url = engine.url();
        let agent_args: Vec<String> =
            ["agent"].iter().chain(&LOOPBACK).chain(&["--engine", &url]).map(|&arg| arg.to_owned()).collect();
        let agent = mesh.agent_of(&format!("agent-{number}"), &engine);
        Self { sandbox, number, engine, agent, agent_args, starts: 0 }
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::KillEngine => self.engine.process.kill(),
            Fault::StopEngine => self.engine.process.signal(Signal::STOP),
            Fault::KillAgent => self.agent.process.kill(),
            Fault::StopAgent => self.agent.process.signal(Signal::STOP),
            Fault::DrainAgent => self.agent.process.signal(Signal::TERM),
        }
    }

    fn end(&mut self, fault: Fault) {
        self.starts += 1;
        match fault {
            Fault::StopEngine => self.engine.process.signal(Signal::CONT),
            Fault::StopAgent => self.agent.process.signal(Signal::CONT),
            Fault::KillEngine => {
                let name = format!("engine-{}-{}", self.number, self.starts);
                self.engine = DemoEngine::start_at(self.sandbox, &name, self.engine.address, &ENGINE);
            }
            Fault::KillAgent | Fault::DrainAgent => {
                let ended = self.agent.process.wait(RESTART);
                assert!(fault == Fault::KillAgent || ended.success(), "a drained agent ended with {ended}");
                let args: Vec<&str> = self.agent_args.iter().map(String::as_str).collect();
                self.agent.restart(&args);
            }
        }
    }
}

/// Carries the script out, each fault's end included.
fn play(steps: &[Step], replicas: &mut [Replica<'_>], timeline: &mut Vec<String>) {
    let mut moments: Vec<(Duration, bool, Step)> =
        steps.iter().flat_map(|step| [(step.at, true, *step), (step.at + step.lasts, false, *step)]).collect();
    moments.sort_by_key(|(at, ..)| *at);
    let start = Instant::now();
    for (at, begins, step) in moments {
        std::thread::sleep(at.saturating_sub(start.elapsed()));
        let Step { replica, fault, .. } = step;
        timeline.push(format!(
            "{:7.2?} {} {fault:?} of {replica}",
            start.elapsed(),
            if begins { "begin" } else { "end" }
        ));
        if begins {
            replicas[replica].begin(fault);
        } else {
            replicas[replica].end(fault);
        }
    }
}

#[test]
fn chaos() {
    let seconds = from_environment("DUNLIN_CHAOS_SECONDS").unwrap_or(SECONDS);
    let seed = from_environment("DUNLIN_CHAOS_SEED").unwrap_or_else(rand::random);
    let clients = from_environment("DUNLIN_CHAOS_CLIENTS").map_or(CLIENTS, |n| usize::try_from(n).unwrap());
    println!("seed {seed}, {seconds} s");
    let sandbox = Sandbox::new();
    let reference = DemoEngine::start(&sandbox, "reference", &["--tokens-per-second", "0", "--slots", "16"]);
    let mesh = Mesh::new(&sandbox, &PROXY);
    let mut replicas: Vec<_> = (0..REPLICAS).map(|number| Replica::new(&sandbox, &mesh, number)).collect();
    mesh.proxy.wait_for_replicas("demo", REPLICAS as u64);

    let steps = script(seed, REPLICAS, Duration::from_secs(seconds));
    let load = Clients::start(&mesh.endpoint, &reference.direct(), clients);
    let mut timeline = Vec::new();
    play(&steps, &mut replicas, &mut timeline);
    wait_for("all replicas to be well again", Duration::from_secs(30), || {
        (mesh.proxy.replicas("demo") == REPLICAS as u64).then_some(())
    });
    let counts = load.finish();
    let streams = lost_streams(&mesh.endpoint);
    println!("{} faults; {counts}\n{}", steps.len(), streams.join("\n"));
    if !counts.is_right() {
        panic!("seed {seed}, {seconds} s\n{}\n{counts}\n{}", timeline.join("\n"), counts.wrong.join("\n"));
    }
    let is_continued = |line: &&String| line.contains("\"continued\"");
    assert!(steps.len() < 10 || streams.iter().any(|line| is_continued(&line)), "none went on: {streams:?}");
}

/// What the proxy counted of streams that lost their replica.
fn lost_streams(endpoint: &Endpoint) -> Vec<String> {
    let page = endpoint.get("/metrics").unwrap().text();
    let counters = page.lines().filter(|line| line.starts_with("dunlin_proxy_lost_streams_total"));
    counters.map(str::to_owned).collect()
}

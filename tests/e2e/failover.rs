//! Agents and engines that die or freeze under load: no request fails before its first byte.

use crate::harness::{
    engine::DemoEngine,
    load::{End, Load, Plan, Report},
    node::{Mesh, Node},
    sandbox::Sandbox,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Seconds after which a replica that says nothing is given up. Long enough for a busy machine.
const FIRST_BYTE: &str = "3";

/// Two agents, an engine beside each, and clients that ask all the time.
struct Scene<'a> {
    engines: [DemoEngine; 2],
    agents: [Node<'a>; 2],
    mesh: Mesh<'a>,
    load: Load,
}

impl<'a> Scene<'a> {
    fn new(sandbox: &'a Sandbox, stream: bool) -> Self {
        let args = ["--tokens-per-second", "100", "--slots", "16"];
        let engines = [DemoEngine::start(sandbox, "engine-a", &args), DemoEngine::start(sandbox, "engine-b", &args)];
        let mesh = Mesh::new(sandbox, &["--first-byte-timeout", FIRST_BYTE]);
        let agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
        mesh.proxy.wait_for_replicas("demo", 2);
        let load = Load::start(&mesh.endpoint, &Plan { clients: 12, model: "demo".into(), tokens: 20, stream });
        load.wait_for_more(40);
        Self { engines, agents, mesh, load }
    }

    /// Lets the load go on after `broken` happened, ends it, and checks what holds for every way to break.
    fn finish(self, broken: Instant) -> Report {
        self.load.wait_for_more(120);
        let report = self.load.finish();
        report.assert_none_failed();
        let left = self.agents[1].peer_id();
        // Whoever starts to ask after the break was noticed is answered by the replica that is left.
        let noticed = broken + Duration::from_secs(12);
        let late = report.outcomes.iter().filter(|outcome| outcome.started > noticed);
        for outcome in late {
            assert!(outcome.replica.as_ref().is_some_and(|replica| replica.starts_with(&left)), "{outcome:?}");
        }
        self.mesh.endpoint.chat("demo", "and now?", 4).unwrap().content();
        report
    }
}

#[test]
fn an_agent_killed_under_load_fails_nobody_before_the_first_byte() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, true);
    scene.agents[0].process.kill();
    scene.finish(Instant::now());
}

/// Answers in one piece have no first byte until they are ready: none fails at all.
#[test]
fn an_agent_killed_under_load_costs_no_unstreamed_answer() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, false);
    scene.agents[0].process.kill();
    scene.finish(Instant::now()).assert_all_whole();
}

#[test]
fn an_engine_killed_under_load_fails_nobody_before_the_first_byte() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, true);
    scene.engines[0].process.kill();
    scene.finish(Instant::now());
}

#[test]
fn a_frozen_agent_fails_nobody_before_the_first_byte() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox, true);
    scene.agents[0].process.signal(Signal::STOP);
    // Streams that it had are silent until it is given up.
    scene.finish(Instant::now());
}

/// Accepts connections and never answers: the hardest to notice.
#[test]
fn a_frozen_engine_fails_nobody_before_the_first_byte() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox, true);
    scene.engines[0].process.signal(Signal::STOP);
    let report = scene.finish(Instant::now());
    let slowest = report.outcomes.iter().filter(|o| o.end == End::Whole).map(|o| o.first_byte).max().unwrap();
    assert!(slowest < Duration::from_secs(30), "{slowest:?} to the first byte");
}

/// Its clients hang, and whoever else they ask is not hindered: the slots that it held are given back. Thawed, it goes on.
#[test]
fn a_frozen_proxy_gives_its_slots_back_and_goes_on_later() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "20", "--slots", "2"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    let token = mesh.proxy.home.ask(&["invite", "--role", "proxy", "--keys"]);
    let home = crate::harness::node::Home::new(&sandbox, "other");
    home.join(&token);
    let other = home.start(&[&["proxy", "--http", "127.0.0.1:0"], &crate::harness::node::LOOPBACK[..]].concat());
    other.wait_for_replicas("demo", 1);
    mesh.proxy.wait_for_replicas("demo", 1);
    let endpoint = other.endpoint();
    // Both slots are taken for fifty seconds by the proxy that freezes.
    let held: Vec<_> = (0..2).map(|_| mesh.endpoint.chat_stream("demo", "long", 1000).unwrap()).collect();
    mesh.proxy.process.signal(Signal::STOP);
    let start = Instant::now();
    assert!(!endpoint.chat("demo", "hello", 4).unwrap().content().is_empty());
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    mesh.proxy.process.signal(Signal::CONT);
    crate::harness::wait_for("the thawed proxy to answer", crate::harness::PATIENCE, || {
        mesh.endpoint.chat("demo", "hello", 4).ok().filter(|answer| answer.status == 200)
    });
    // Of the streams that it held, the beginning is there, and that the rest is not.
    for answer in held {
        let streamed = answer.events().collect_chat();
        assert!(streamed.error.is_some() || streamed.is_whole(), "{streamed:?}");
    }
    drop(agent);
}

/// Chosen, then gone before it sent headers, and it was the only one: an answer, not a hang.
#[test]
fn the_only_replica_frozen_ends_in_an_error_that_can_be_retried() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &["--first-byte-timeout", "1"]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    engine.process.signal(Signal::STOP);
    let start = Instant::now();
    let answer =
        mesh.endpoint.start("/v1/chat/completions", &crate::harness::http::chat_body("demo", "hello", 4, true));
    let answer = answer.unwrap().whole().unwrap();
    assert!(matches!(answer.status, 502..=504), "{} {}", answer.status, answer.text());
    assert!(answer.json()["error"]["message"].is_string());
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    engine.process.signal(Signal::CONT);
    crate::harness::wait_for("the thawed engine to be asked again", crate::harness::PATIENCE, || {
        (mesh.endpoint.chat("demo", "hello", 4).unwrap().status == 200).then_some(())
    });
}

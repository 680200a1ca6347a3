//! Told to end: what is under way ends well or goes on elsewhere, and the process exits with 0. Told twice: at once.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::{Events, Streamed},
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// What shells use for a process that SIGTERM ended.
const ENDED_AT_ONCE: i32 = 128 + 15;
/// Half a second is promised for the end at once; the rest is for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

fn tell(node: &mut Node<'_>) -> i32 {
    node.process.signal(Signal::TERM);
    node.process.wait(PATIENCE).code().unwrap()
}

/// Tells it a second time, once it has heard the first.
fn tell_twice(node: &mut Node<'_>) -> i32 {
    node.process.signal(Signal::TERM);
    wait_for("the first to be heard", PATIENCE, || node.process.output().contains("once more").then_some(()));
    let start = Instant::now();
    let code = tell(node);
    assert!(start.elapsed() < AT_ONCE, "ended after {:?}", start.elapsed());
    code
}

/// A stream that has begun.
fn begun(mesh: &Mesh<'_>, tokens: u32) -> (Events, Streamed) {
    let mut events = mesh.endpoint.chat_stream("demo", "a long story", tokens).unwrap().events();
    let mut streamed = Streamed::default();
    events.by_ref().take(5).for_each(|event| streamed.take(&event.unwrap()));
    (events, streamed)
}

fn rest((events, mut streamed): (Events, Streamed)) -> Streamed {
    for event in events {
        match event {
            Ok(data) => streamed.take(&data),
            Err(error) => {
                streamed.error = Some(error.to_string());
                break;
            }
        }
    }
    streamed
}

/// What an agent can't finish in time goes on at another replica, and the process ends by its deadline.
#[test]
fn what_an_agent_cannot_finish_goes_on_elsewhere() {
    let sandbox = Sandbox::new();
    let speed = ["--tokens-per-second", "20"];
    let engines = ["engine-a", "engine-b"].map(|name| DemoEngine::start(&sandbox, name, &speed));
    let mesh = Mesh::new(&sandbox, &[]);
    let mut first = mesh.agent("a", &["--engine", &engines[0].url(), "--drain-timeout", "1"]);
    mesh.proxy.wait_for_exact("demo", 1);
    let whole = begun(&mesh, 120);
    let _second = mesh.agent_of("b", &engines[1]);
    mesh.proxy.wait_for_exact("demo", 2);
    let start = Instant::now();
    assert_eq!(tell(&mut first), 0);
    // One for the requests, two for the farewell, and a busy machine.
    assert!(start.elapsed() < Duration::from_secs(8), "ended after {:?}", start.elapsed());
    let streamed = rest(whole);
    assert!(streamed.is_whole(), "{streamed:?}");
    assert_eq!(streamed.text, mesh.endpoint.chat("demo", "a long story", 120).unwrap().content());
}

#[test]
fn up_lets_its_clients_finish() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "node");
    let args = ["up", "--http", "127.0.0.1:0", "--launch", "demo"];
    let node = home.start(&[&args, &LOOPBACK[..], &["--", "--tokens-per-second", "20"]].concat());
    node.wait_for_replicas("demo", 1);
    let mut mesh = Mesh { sandbox: &sandbox, endpoint: node.endpoint(), proxy: node };
    let under_way = begun(&mesh, 60);
    assert_eq!(tell(&mut mesh.proxy), 0);
    let streamed = rest(under_way);
    assert!(streamed.is_whole(), "{streamed:?}");
    assert!(!sandbox.processes().iter().any(|(_, line)| line.contains("demo-engine")), "{:?}", sandbox.processes());
}

#[test]
fn a_relay_leaves_at_once_and_says_so() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let mut relay = mesh.member("relay", &["--role", "relay"]).start(&[&["relay"], &LOOPBACK[..]].concat());
    let id = relay.peer_id();
    let connected = || {
        let peers = mesh.proxy.home.list(&["peers"]);
        let of_relay = peers.as_array().unwrap().iter().find(|peer| peer["peer"] == id).cloned();
        of_relay.is_some_and(|peer| peer["reachability"].as_str().unwrap().starts_with("connected"))
    };
    wait_for("the relay to be connected", PATIENCE, || connected().then_some(()));
    let start = Instant::now();
    assert_eq!(tell(&mut relay), 0);
    assert!(start.elapsed() < Duration::from_secs(8), "ended after {:?}", start.elapsed());
    wait_for("its end to be known", Duration::from_secs(3), || (!connected()).then_some(()));
}

/// `up` has a test of its own (`up.rs`): it takes its engines along.
#[test]
fn a_second_signal_ends_each_at_once() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "10"]);
    let mut mesh = Mesh::new(&sandbox, &[]);
    let mut agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let _keeps_the_agent = begun(&mesh, 2000);
    assert_eq!(tell_twice(&mut agent), ENDED_AT_ONCE);

    agent.restart(&[&["agent", "--engine", &engine.url()], &LOOPBACK[..]].concat());
    mesh.proxy.wait_for_replicas("demo", 1);
    let _keeps_the_proxy = begun(&mesh, 2000);
    assert_eq!(tell_twice(&mut mesh.proxy), ENDED_AT_ONCE);
}

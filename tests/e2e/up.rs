//! What a newcomer does first: one machine, one command.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::Endpoint,
    node::{Home, LOOPBACK, Mesh},
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn up(more: &[&'static str]) -> Vec<&'static str> {
    [&["up", "--http", "127.0.0.1:0"], &LOOPBACK[..], more].concat()
}

#[test]
fn up_then_chat() {
    let sandbox = Sandbox::new();
    // An engine is named so that none that happens to run on this machine is found.
    let mut node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    node.wait_for_replicas("demo", 1);

    let answer = node.home.ask(&["chat", "demo", "Why do dunlins flock?"]);
    assert!(!answer.trim().is_empty(), "chat printed nothing");
    let said = node.process.output();
    assert!(said.contains("dunlin join"), "`up` says how to join another machine:\n{said}");

    // The key that `up` printed works, and is asked for.
    let endpoint = node.endpoint();
    let printed = said.split_whitespace().find(|word| word.starts_with("sk-dunlin-") || word.starts_with("dunlin-"));
    let printed = printed.unwrap_or_else(|| panic!("no key in:\n{said}")).trim_matches(|c: char| !c.is_alphanumeric());
    let with_printed = Endpoint { key: Some(printed.to_owned()), ..endpoint.clone() };
    assert_eq!(with_printed.get("/v1/models").unwrap().status, 200);
    assert_eq!(Endpoint::open(endpoint.address).get("/v1/models").unwrap().status, 401);

    let streamed = endpoint.chat_stream("demo", "Why do dunlins flock?", 16).unwrap().events().collect_chat();
    assert!(streamed.is_whole(), "{streamed:?}");
    assert!(!streamed.text.is_empty());

    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait(PATIENCE).code(), Some(0));
    assert_eq!(sandbox.processes(), [], "`up` leaves nothing running");
}

/// Who asks twice does not want to wait, and yet no engine may be left on the GPU.
#[test]
fn a_second_signal_ends_it_at_once_with_its_engines() {
    let sandbox = Sandbox::new();
    let mut node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    node.wait_for_replicas("demo", 1);
    // Something to wait for.
    let mut events = node.endpoint().chat_stream("demo", "a long story", 4000).unwrap().events();
    events.next().unwrap().unwrap();
    node.process.signal(Signal::TERM);
    wait_for("the first signal to be taken", PATIENCE, || node.process.output().contains("once more").then_some(()));
    assert!(sandbox.processes().len() >= 2, "node and engine finish what they have");
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait(PATIENCE).code(), Some(143));
    wait_for("the engine to be gone", PATIENCE, || sandbox.processes().is_empty().then_some(()));
}

/// Over QUIC nobody hears of a process's end from its kernel: without a word, ten seconds of silence would tell.
#[test]
fn a_second_signal_still_says_goodbye() {
    let sandbox = Sandbox::new();
    let quic = ["--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let mesh = Mesh::listening(&sandbox, &quic);
    let home = mesh.member("a", &["--role", "agent"]);
    let mut agent = home.start(&[&["agent", "--launch", "demo"], &quic[..]].concat());
    let agent_id = agent.peer_id();
    mesh.proxy.wait_for_replicas("demo", 1);
    let mut events = mesh.endpoint.chat_stream("demo", "a long story", 4000).unwrap().events();
    events.next().unwrap().unwrap();
    agent.process.signal(Signal::TERM);
    wait_for("the first signal to be taken", PATIENCE, || agent.process.output().contains("once more").then_some(()));
    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.wait(PATIENCE).code(), Some(143));
    let (ended, peer) = (Instant::now(), agent_id);
    wait_for("the proxy to hear of the end", PATIENCE, || {
        let peers = mesh.proxy.home.list(&["peers"]);
        let of_agent = peers.as_array().unwrap().iter().find(|known| known["peer"] == peer);
        of_agent.is_none_or(|known| known["reachability"] == "disconnected").then_some(())
    });
    assert!(ended.elapsed() < Duration::from_secs(5), "told after {:?}", ended.elapsed());
}

#[test]
fn up_again_keeps_mesh_peer_and_keys() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let url = engine.url();
    let args: Vec<&str> = [&["up", "--http", "127.0.0.1:0", "--engine", &url], &LOOPBACK[..]].concat();
    let mut node = Home::new(&sandbox, "home").start(&args);
    let (peer, key) = (node.peer_id(), node.endpoint().key);
    let mesh = node.status()["mesh"].clone();
    node.restart(&args);
    assert_eq!(node.peer_id(), peer);
    assert_eq!(node.status()["mesh"], mesh);
    let again = Endpoint { key, ..node.endpoint() };
    node.wait_for_replicas("demo", 1);
    again.chat("demo", "still there?", 4).unwrap().content();
}

#[test]
fn one_state_directory_runs_one_node() {
    let sandbox = Sandbox::new();
    let node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    let second = node.home.run(&up(&["--launch", "demo"]));
    assert_eq!(second.status.code(), Some(1));
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(error.contains(&node.process.id().to_string()), "it names the process that holds it: {error}");
}

#[test]
fn without_a_node_commands_say_so() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "nobody");
    for (command, code) in [("status", 3), ("peers", 3), ("models", 3), ("chat", 1)] {
        let output = home.run(&[command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("dunlin up"), "{command}: {output:?}");
    }
    assert_eq!(home.run(&["serve"]).status.code(), Some(2));
}

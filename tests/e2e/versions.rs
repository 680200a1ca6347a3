//! An older build and this one in one mesh: neither notices.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    load::{Load, Plan},
    node::{Home, LOOPBACK, Mesh, Node, executable},
    sandbox::Sandbox,
    skipped, wait_for,
};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longer than a returned agent needs to say anew what it serves.
const BELIEVED: Duration = Duration::from_secs(3);

/// What `tests/older.sh` has built; else says loudly that the test is skipped.
fn older() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let commit = std::fs::read_to_string(root.join("tests/data/older-commit")).unwrap();
    let kept = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let cache = std::env::var_os("DUNLIN_TEST_CACHE").map_or_else(kept, PathBuf::from);
    let built = cache.join(format!("older-{}", commit.trim())).join("dunlin");
    if !built.exists() {
        skipped(&format!("no older build: tests/older.sh {} makes it where the clone has its commit", cache.display()));
        return None;
    }
    Some(built)
}

/// A mesh whose proxy is of one build, with an agent of each.
fn meet(proxys: &Path, agents: [&Path; 2]) {
    let sandbox = Sandbox::new();
    let speed = ["--tokens-per-second", "100", "--slots", "8"];
    let engines = ["engine-a", "engine-b"].map(|name| DemoEngine::start(&sandbox, name, &speed));
    let home = Home::new(&sandbox, "proxy").of(proxys);
    home.ask(&["mesh", "create"]);
    let proxy = home.start(&[&["proxy", "--http", "127.0.0.1:0"], &LOOPBACK[..]].concat());
    let mesh = Mesh { sandbox: &sandbox, endpoint: proxy.endpoint(), proxy };
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for ((name, build), engine) in ["a", "b"].into_iter().zip(agents).zip(&engines) {
        let home = Home::new(&sandbox, name).of(build);
        home.join(&mesh.proxy.home.ask(&["invite", "--role", "agent"]));
        nodes.push(home.start(&[&["agent", "--engine", &engine.url()], &LOOPBACK[..]].concat()));
    }
    // Found, and their own tests of their engines believed.
    mesh.proxy.wait_for_exact("demo", 2);
    let ids: BTreeSet<String> = nodes.iter().map(Node::peer_id).collect();

    // Load reports are read: that is why one is chosen.
    let mut chosen = BTreeSet::new();
    wait_for("both to be chosen by their load", PATIENCE, || {
        let answer = mesh.endpoint.chat("demo", "hello", 4).unwrap();
        answer.content();
        if answer.header("x-dunlin-route").is_some_and(|route| route.contains("fresh")) {
            chosen.insert(answer.header("x-dunlin-replica").unwrap().split('/').next().unwrap().to_owned());
        }
        (chosen == ids).then_some(())
    });

    // A stream goes on from one build to the other.
    let whole = mesh.endpoint.chat("demo", "versions", 120).unwrap().content();
    for n in 0..2 {
        let of = nodes[n].peer_id();
        let stream = wait_for("a stream from that one", PATIENCE, || {
            let stream = mesh.endpoint.chat_stream("demo", "versions", 120).unwrap();
            stream.header("x-dunlin-replica").unwrap().starts_with(&of).then_some(stream)
        });
        let mut events = stream.events();
        let mut streamed = crate::harness::http::Streamed::default();
        events.by_ref().take(20).for_each(|event| streamed.take(&event.unwrap()));
        nodes[n].process.kill();
        events.for_each(|event| streamed.take(&event.unwrap()));
        assert!(streamed.is_whole() && streamed.text == whole, "{streamed:?}");
        // Gone first: what it said before its end is not to be taken for what it says after its start.
        mesh.proxy.wait_for_exact("demo", 1);
        let url = engines[n].url();
        nodes[n].restart(&[&["agent", "--engine", &url], &LOOPBACK[..]].concat());
        // The older build believes for a moment after a peer's return what the process before had proved.
        std::thread::sleep(BELIEVED);
        mesh.proxy.wait_for_exact("demo", 2);
    }

    // Each drains, and nobody notices.
    let load = Load::start(&mesh.endpoint, &Plan { clients: 6, model: "demo".into(), tokens: 20, stream: true });
    for n in 0..2 {
        load.wait_for_more(20);
        nodes[n].process.signal(Signal::TERM);
        assert_eq!(nodes[n].process.wait(PATIENCE).code(), Some(0));
        mesh.proxy.wait_for_replicas("demo", 1);
        load.wait_for_more(20);
        let url = engines[n].url();
        nodes[n].restart(&[&["agent", "--engine", &url], &LOOPBACK[..]].concat());
        mesh.proxy.wait_for_replicas("demo", 2);
    }
    let report = load.finish();
    report.assert_all_whole();
    assert_eq!(report.by_replica().len(), 2, "{:?}", report.by_replica());
}

#[test]
fn a_newer_proxy_and_an_older_agent_beside_a_newer_one() {
    let Some(older) = older() else { return };
    meet(&executable(), [&older, &executable()]);
}

#[test]
fn an_older_proxy_and_a_newer_agent_beside_an_older_one() {
    let Some(older) = older() else { return };
    meet(&older, [&executable(), &older]);
}

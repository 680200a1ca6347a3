//! Clocks that are wrong, and one that jumps: nothing looks at them but certificates, which have an hour of leeway.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    load::{Load, Plan},
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    skipped, wait_for,
};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Debian's libfaketime, which tells a process another time of day.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|file| file.exists())
}

/// The clock of a node, as far as it is off.
struct Clock(PathBuf);

impl Clock {
    fn set(&self, off: &str) {
        // In one step: it is read again and again.
        let beside = self.0.with_extension("new");
        std::fs::write(&beside, format!("{off}\n")).unwrap();
        std::fs::rename(beside, &self.0).unwrap();
    }
}

/// The commands of `home` see such a clock.
fn with_clock<'a>(home: Home<'a>, library: &Path, off: &str) -> (Home<'a>, Clock) {
    let clock = Clock(home.folder().with_extension("clock"));
    clock.set(off);
    let preload = format!("LD_PRELOAD={}", library.display());
    let file = format!("FAKETIME_TIMESTAMP_FILE={}", clock.0.display());
    let home = home.run_by(&["env", &preload, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]);
    (home, clock)
}

/// Minutes since midnight, of the last line that a node logged.
fn minutes(node: &Node<'_>) -> i32 {
    let said = node.process.output();
    let line = said.lines().rev().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).unwrap();
    let time = line["timestamp"].as_str().unwrap().split('T').nth(1).unwrap().to_owned();
    let mut parts = time.split(':').map(|part| part.parse::<i32>().unwrap_or_default());
    parts.next().unwrap() * 60 + parts.next().unwrap()
}

/// Whether `node`'s clock is so many minutes before that of `other`, about.
fn assert_apart(node: &Node<'_>, other: &Node<'_>, apart: i32) {
    let found = (minutes(node) - minutes(other)).rem_euclid(24 * 60);
    assert!((found - apart).abs() <= 3, "{found} minutes apart, not {apart}: the clocks were not set");
}

#[test]
fn clocks_that_are_off_or_jump_change_nothing() {
    let Some(library) = library() else { return skipped("no libfaketime (Debian: libfaketime)") };
    let sandbox = Sandbox::new();
    let speed = ["--tokens-per-second", "100"];
    let engines = ["engine-a", "engine-b"].map(|name| DemoEngine::start(&sandbox, name, &speed));
    let (home, proxys) = with_clock(Home::new(&sandbox, "proxy"), &library, "-10m");
    home.ask(&["mesh", "create"]);
    let proxy = home.start(&[&["proxy", "--http", "127.0.0.1:0"], &LOOPBACK[..]].concat());
    let mesh = Mesh { sandbox: &sandbox, endpoint: proxy.endpoint(), proxy };
    let args = engines.each_ref().map(|engine| {
        let url = engine.url();
        ["agent", "--engine", &url].iter().chain(&LOOPBACK).map(|&arg| arg.to_owned()).collect::<Vec<_>>()
    });
    let arguments = |n: usize| args[n].iter().map(String::as_str).collect::<Vec<_>>();
    let token = mesh.proxy.home.ask(&["invite", "--role", "agent"]);
    let (home, agents) = with_clock(Home::new(&sandbox, "ahead"), &library, "+10m");
    home.join(&token);
    let mut ahead = home.start(&arguments(0));
    let right = mesh.member("right", &["--role", "agent"]).start(&arguments(1));
    mesh.proxy.wait_for_exact("demo", 2);
    assert_apart(&ahead, &mesh.proxy, 20);
    assert_apart(&ahead, &right, 10);

    let by_fresh_load = || {
        let asked = || {
            let answer = mesh.endpoint.chat("demo", "hello", 4).unwrap();
            let fresh = answer.header("x-dunlin-route").is_some_and(|route| route.contains("fresh"));
            fresh.then(|| answer.header("x-dunlin-replica").unwrap().split('/').next().unwrap().to_owned())
        };
        let mut replicas = BTreeSet::new();
        wait_for("both to be asked by their load", PATIENCE, || {
            replicas.extend(asked());
            (replicas.len() == 2).then_some(())
        });
    };
    by_fresh_load();
    let plan = Plan { clients: 4, model: "demo".into(), tokens: 20, stream: true };
    let load = Load::start(&mesh.endpoint, &plan);
    load.wait_for_more(20);

    // An hour to and fro, at both ends.
    for (proxys_off, agents_off) in [("-10m", "+70m"), ("-70m", "+70m"), ("+50m", "-50m"), ("-10m", "+10m")] {
        proxys.set(proxys_off);
        agents.set(agents_off);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            assert_eq!(mesh.proxy.replicas("demo"), 2, "{proxys_off} {agents_off}");
            std::thread::sleep(Duration::from_millis(100));
        }
        by_fresh_load();
    }

    // What it says next comes after what it said before, though its clock says otherwise.
    agents.set("-50m");
    ahead.process.signal(Signal::TERM);
    assert_eq!(ahead.process.wait(PATIENCE).code(), Some(0));
    mesh.proxy.wait_for_replicas("demo", 1);
    ahead.restart(&arguments(0));
    mesh.proxy.wait_for_replicas("demo", 2);
    assert_apart(&right, &ahead, 50);
    by_fresh_load();
    load.wait_for_more(20);
    load.finish().assert_all_whole();
}

//! Engines that nobody names, seen from the rest of the mesh.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::{DemoEngine, Llama, free_address},
    node::{Home, LOOPBACK, Mesh},
    process::Process,
    sandbox::Sandbox,
    wait_for,
};
use std::{
    process::Output,
    time::{Duration, Instant},
};

const FAST: [&str; 2] = ["--tokens-per-second", "0"];

/// A small server that lists `models` and answers anything.
fn lister(sandbox: &Sandbox, port: u16, models: &[String]) -> Process {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/agent/tests/data/engine.py");
    let mut command = sandbox.command("python3");
    command.args([script, "--owner", "library", "--port", &port.to_string(), "--models", &models.join(",")]);
    sandbox.start("lister", command)
}

#[test]
fn an_agent_takes_in_what_comes_up_and_lets_go_of_what_goes() {
    let sandbox = Sandbox::new();
    let address = free_address();
    let mesh = Mesh::new(&sandbox, &[]);
    let port = address.port().to_string();
    let agent = mesh.agent("a", &["--discover", &port]);
    assert_eq!(agent.status()["engines"].as_array().unwrap().len(), 0, "it runs without an engine");
    let chat = mesh.proxy.home.run(&["chat"]);
    let error = String::from_utf8_lossy(&chat.stderr).into_owned();
    assert!(chat.status.code() == Some(4) && error.contains("no model is served now"), "{error}");

    let mut engine = DemoEngine::start_at(&sandbox, "engine", address, &FAST);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    engine.process.kill();
    mesh.proxy.wait_for_replicas("demo", 0);
    let _engine = DemoEngine::start_at(&sandbox, "engine-again", address, &FAST);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello again", 4).unwrap().content();
}

/// The demo engine shows the mesh to a newcomer, until there is something real.
#[test]
fn up_serves_the_demo_until_a_real_engine_comes_up() {
    let sandbox = Sandbox::new();
    let address = free_address();
    let port = address.port().to_string();
    let args = [&["up", "--http", "127.0.0.1:0", "--discover", &port], &LOOPBACK[..]].concat();
    let node = Home::new(&sandbox, "home").start(&args);
    node.wait_for_replicas("demo", 1);
    let _engine = DemoEngine::start_at(&sandbox, "engine", address, &["--model", "real"]);
    node.wait_for_replicas("real", 1);
    node.wait_for_replicas("demo", 0);
    node.endpoint().chat("real", "hello", 4).unwrap().content();
    let said = node.home.ask(&["doctor"]);
    assert!(said.contains("demo engine has made room") && !said.contains("when it is back"), "{said}");
}

/// As many as an Ollama of long standing has: each is found by a proxy elsewhere, and a pull and a removal are known there
/// within moments.
#[test]
fn three_hundred_models_are_served_to_another_machine() {
    let sandbox = Sandbox::new();
    let models: Vec<String> = (0..300).map(|n| format!("namespace-of-somebody/model-{n:03}:q4_K_M")).collect();
    let port = free_address().port();
    let _engine = lister(&sandbox, port, &models);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--discover", &port.to_string()]);
    let listed = || {
        let models = mesh.endpoint.get("/v1/models").unwrap().json();
        models["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    wait_for("all of them", PATIENCE, || (listed().len() == 300).then_some(()));
    for model in [&models[0], &models[299]] {
        assert_eq!(mesh.endpoint.chat(model, "hello", 4).unwrap().status, 200);
    }
    let engine = crate::harness::http::Endpoint::open(([127, 0, 0, 1], port).into());
    let mut now = models.clone();
    now.push("freshly-pulled:7b".to_owned());
    let removed = now.remove(5);
    engine.post("/v1/x", &serde_json::json!({ "models": now })).unwrap();
    let start = Instant::now();
    wait_for("the change", PATIENCE, || {
        let listed = listed();
        (listed.contains(&now[299]) && !listed.contains(&removed)).then_some(())
    });
    // Two seconds are promised; the rest is for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(4), "known after {:?}", start.elapsed());
    assert_eq!(agent.status()["engines"][0]["models"].as_array().unwrap().len(), 300);
}

/// A real engine that is ended and comes back at the same place with another model.
#[test]
fn another_model_at_the_same_place() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    let mesh = Mesh::new(&sandbox, &[]);
    let (mut first, url) = llama.start(&sandbox, "first-model", &[]);
    let _agent = mesh.agent("a", &["--engine", &url]);
    mesh.proxy.wait_for_replicas("first-model", 1);
    mesh.endpoint.chat("first-model", "hello", 4).unwrap().content();
    first.kill();
    let port = url.rsplit(':').next().unwrap();
    let _second = llama.start_at(&sandbox, "second-model", port.parse().unwrap(), &[]);
    mesh.proxy.wait_for_replicas("second-model", 1);
    assert_eq!(mesh.proxy.replicas("first-model"), 0);
    // llama-server would answer to any name.
    assert_ne!(mesh.endpoint.chat("first-model", "hello", 4).unwrap().status, 200);
    mesh.endpoint.chat("second-model", "hello", 4).unwrap().content();
}

#[test]
fn doctor_explains_what_is_not_found_and_what_is_not_ready() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let nowhere = format!("http://{}", free_address());
    let crashing = ["--config", "doctor.toml"];
    let file = sandbox.folder().join("doctor.toml");
    let text = format!(
        "[[engines]]\nurl = '{nowhere}'\nmodels = ['bird']\n[[engines]]\nlaunch = 'demo'\nargs = ['--no-such-flag']\n"
    );
    std::fs::write(&file, text).unwrap();
    let agent = mesh.agent("a", &[crashing[0], file.to_str().unwrap()]);
    let said = || {
        let output = agent.home.run(&["doctor"]);
        assert_eq!(output.status.code(), Some(1), "something is broken");
        String::from_utf8(output.stdout).unwrap()
    };
    let expected = [
        format!("nothing listens at {nowhere}"),
        "its process ends again and again".to_owned(),
        "unexpected argument '--no-such-flag'".to_owned(),
        "dunlin logs PEER/1".to_owned(),
    ];
    wait_for("all of it", PATIENCE, || {
        let said = said();
        expected.iter().all(|part| said.contains(part.as_str())).then_some(())
    });
    wait_for("the other node to name this one", PATIENCE, || {
        let said = mesh.proxy.home.ask(&["doctor"]);
        said.contains("bird: 0 of 1 replicas ready; starting on ").then_some(())
    });
}

/// Of a model, of one replica, of the run before the crash; from a member with the right and from none without.
#[test]
fn logs_from_any_member_with_the_right() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    // More than the 24 tokens of the agent's own test of the engine, fewer than any answer has.
    let launch = ["--launch", "demo", "--", "--die-after", "28", "--die-exits"];
    let agent = mesh.agent("a", &launch);
    mesh.proxy.wait_for_replicas("demo", 1);
    let home = &mesh.proxy.home;
    assert!(home.ask(&["logs", "demo"]).contains("demo engine on"));
    let replica = format!("{}/0", agent.peer_id());
    assert!(home.ask(&["logs", &replica, "--since", "1h", "--tail", "1000"]).contains("engine started"));
    assert_eq!(home.ask(&["logs", &replica, "--tail", "1"]).lines().count(), 1);
    assert_eq!(home.run(&["logs", &format!("{}/7", agent.peer_id())]).status.code(), Some(4));
    let none_before = home.run(&["logs", "demo", "--previous"]);
    assert!(String::from_utf8_lossy(&none_before.stderr).contains("no run before"), "{none_before:?}");

    let _ = mesh.endpoint.chat("demo", "crash, please", 80);
    wait_for("the restart", PATIENCE, || (agent.status()["engines"][0]["restarts"].as_u64()? > 0).then_some(()));
    let previous = home.ask(&["logs", "demo", "--previous"]);
    assert!(previous.contains("engine ended: exit status: 1"), "{previous}");
    assert_eq!(previous.matches("engine started").count(), 1, "{previous}");

    let other = mesh.agent("b", &["--launch", "demo", "--model", "other"]);
    mesh.proxy.wait_for_replicas("other", 1);
    // It may not have heard of the replica yet.
    let ask = || Some(other.home.run(&["logs", &replica]));
    let heard = |refused: &Output| !String::from_utf8_lossy(&refused.stderr).contains("not found");
    let refused = wait_for("the other agent to find the replica", PATIENCE, || ask().filter(heard));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no role that may call this"), "{refused:?}");
}

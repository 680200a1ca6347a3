//! Real llama.cpp behind the mesh, in front of it the official SDKs.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::{DemoEngine, Llama, tools_template},
    http::Endpoint,
    node::{LOOPBACK, Mesh},
    sandbox::Sandbox,
    wait_for,
};
use std::process::Output;

#[track_caller]
fn assert_all_ok(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all ok"), "{}\n{said}\n{error}", output.status);
}

/// Requests that the engine has in work, by its own metrics.
fn in_work(engine: &Endpoint) -> f64 {
    let metrics = engine.get("/metrics").unwrap().text();
    let line = metrics.lines().find(|line| line.starts_with("llamacpp:requests_processing ")).unwrap().to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn official_sdks_work_unchanged() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    let template = tools_template();
    let (_chat, chat) = llama.start(&sandbox, "tinykjv", &["--jinja", "--chat-template-file", &template]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _attached = mesh.agent("attached", &["--engine", &chat]);
    // The other is launched by its agent.
    let home = mesh.member("launched", &["--role", "agent"]).with_environment(llama.environment());
    let arguments = Llama::arguments("tinykjv-embed", &["--embedding", "--pooling", "mean"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let launched = home.start(&[&["agent", "--launch", "llamacpp"], &LOOPBACK[..], &["--"], &arguments].concat());
    mesh.proxy.wait_for_replicas("tinykjv", 1);
    mesh.proxy.wait_for_replicas("tinykjv-embed", 1);

    assert_all_ok(&clients.python(&sandbox, &mesh.endpoint, "sdk.py"));
    assert_all_ok(&clients.node(&sandbox, &mesh.endpoint, "sdk.cjs"));

    // Both scripts hung up on long answers.
    let engine = Endpoint::open(chat.strip_prefix("http://").unwrap().parse().unwrap());
    wait_for("llama-server to stop what was cancelled", PATIENCE, || (in_work(&engine) == 0.0).then_some(()));

    // Its output can be read from another machine.
    let logs = mesh.proxy.home.ask(&["logs", "tinykjv-embed"]);
    assert!(logs.contains("model"), "{logs}");
    assert!(!launched.process.output().contains("In the beginning"), "prompts are not logged");
    assert!(!mesh.proxy.process.output().contains("In the beginning"), "prompts are not logged");
}

#[test]
fn the_examples_work_and_say_how_they_are_called() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let replica = format!("{}/0", agent.peer_id());
    for (example, args, wanted) in [
        ("chat.py", &["demo", "Why", "do dunlins flock?"][..], replica.as_str()),
        ("chat.mjs", &["demo", "Why", "do dunlins flock?"], &replica),
        ("chat.sh", &["demo", "Why", "do \"dunlins\" flock?"], &replica),
        ("embeddings.py", &["demo"], "mudflats"),
    ] {
        let output = clients.example(&sandbox, &mesh.endpoint, example, args);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains(wanted), "{example}: {output:?}");
        if example == "embeddings.py" {
            assert!(said.lines().next().is_some_and(|nearest| nearest.contains(wanted)), "{said}");
        }
        let without = clients.example(&sandbox, &mesh.endpoint, example, &[]);
        let error = String::from_utf8_lossy(&without.stderr).into_owned();
        assert_eq!(without.status.code(), Some(2), "{example}: {without:?}");
        assert!(error.starts_with("usage: ") && error.lines().count() == 1, "{example}: {error}");
    }
}

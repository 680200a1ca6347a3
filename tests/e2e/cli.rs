//! The command line as scripts use it.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::Endpoint,
    node::{Home, Mesh},
    sandbox::Sandbox,
    wait_for,
};

#[test]
fn every_listing_is_json_on_demand() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let home = &mesh.proxy.home;
    for listing in [&["status"][..], &["models"], &["keys", "list"], &["mesh", "show"]] {
        let value = home.list(listing);
        assert!(value.is_array() || value.is_object(), "{listing:?}: {value}");
    }
    let peers = home.list(&["peers"]);
    let ids: Vec<&str> = peers.as_array().unwrap().iter().filter_map(|peer| peer["peer"].as_str()).collect();
    assert!(ids.contains(&agent.peer_id().as_str()), "{peers}");
    assert_eq!(agent.status()["engines"][0]["runtime"], "demo");
    // The same for people.
    for listing in ["status", "models", "peers"] {
        assert!(!home.ask(&[listing]).is_empty());
    }
}

#[test]
fn a_revoked_key_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let home = &mesh.proxy.home;
    let key = home.ask(&["keys", "create", "--name", "short-lived"]);
    assert_eq!(key.split_whitespace().count(), 1, "the key alone: {key}");
    let endpoint = Endpoint { key: Some(key.clone()), ..mesh.endpoint.clone() };
    assert_eq!(endpoint.get("/v1/models").unwrap().status, 200);

    let listed = home.list(&["keys", "list"]);
    let entry = listed.as_array().unwrap().iter().find(|entry| entry["name"] == "short-lived").unwrap().clone();
    let id = entry["id"].as_str().unwrap();
    let secret = key.rsplit('-').next().unwrap();
    assert!(!listed.to_string().contains(secret), "secrets are shown once");
    home.ask(&["keys", "revoke", id]);
    assert_eq!(endpoint.get("/v1/models").unwrap().status, 401);
    assert_eq!(mesh.endpoint.get("/v1/models").unwrap().status, 200, "the other key still counts");
    assert_eq!(home.run(&["keys", "revoke", "nonsense"]).status.code(), Some(4));

    let log = mesh.proxy.process.output();
    assert!(!log.contains(secret), "keys are not logged");
}

#[test]
fn chat_works_against_any_endpoint() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let home = Home::new(&sandbox, "nobody");
    let url = engine.url();
    let answer = home.ask(&["chat", "--endpoint", &url, "demo", "Why do dunlins flock?"]);
    assert!(!answer.trim().is_empty());
    let missing = home.run(&["chat", "--endpoint", &url, "no-such-model", "Hello"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-model"), "{missing:?}");
}

#[test]
fn what_an_engine_wrote_can_be_read_and_followed_from_another_machine() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.named_agent("workshop", &["--launch", "demo"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    // By model, by name of the machine, by its peer id.
    for target in ["demo", "workshop", &agent.peer_id()] {
        let logs = mesh.proxy.home.ask(&["logs", target]);
        assert!(logs.contains("demo engine"), "{target}: {logs}");
    }
    let follow = sandbox.start("follow", mesh.proxy.home.command(&["logs", "demo", "-f"]));
    wait_for("followed output", PATIENCE, || follow.output().contains("demo engine").then_some(()));
    assert_eq!(mesh.proxy.home.run(&["logs", "no-such-model"]).status.code(), Some(4));
}

#[test]
fn an_agent_shows_its_engines_to_prometheus_where_it_is_told_to() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--metrics-http", "127.0.0.1:0", "--launch", "demo"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    let said = agent.process.output();
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
    let page = Endpoint::open(address).get("/metrics").unwrap().text();
    for line in [
        r#"dunlin_agent_engine_up{engine="0"} 1"#,
        r#"dunlin_agent_requests_total{engine="0",outcome="answered"} 1"#,
        r#"dunlin_agent_restarts_total{engine="0"} 0"#,
    ] {
        assert!(page.lines().any(|known| known == line), "{line} in {page}");
    }
}

#[test]
fn looking_makes_nothing() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "nobody");
    assert_eq!(home.list(&["keys", "list"]), serde_json::json!([]));
    assert_eq!(home.list(&["keys"]), serde_json::json!([]));
    assert_eq!(home.run(&["keys", "revoke", "abc"]).status.code(), Some(4));
    assert!(!sandbox.folder().join("nobody").exists());
}

#[test]
fn a_taken_port_is_answered_with_what_to_do() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
    let home = Home::new(&sandbox, "home");
    let output = home.run(&["up", "--no-mdns", "--http", "127.0.0.1:0", "--launch", "demo", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&address) && said.contains("choose another with --listen"), "{said}");
}

#[test]
fn a_configuration_file_with_a_typing_error_is_refused_with_its_place() {
    let sandbox = Sandbox::new();
    let file = sandbox.folder().join("dunlin.toml");
    std::fs::write(&file, "[endpoint]\nhttp = '127.0.0.1:0'\nhtpt = 1\n").unwrap();
    let home = Home::new(&sandbox, "home");
    let output = home.run(&["up", "--config", &file.to_string_lossy()]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("htpt") && error.contains("line 3"), "{error}");
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_working_node() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let output = mesh.proxy.home.run(&["doctor"]);
    assert!(output.status.success(), "{output:?}");
    let nobody = Home::new(&sandbox, "nobody").run(&["doctor"]);
    let said = String::from_utf8_lossy(&nobody.stdout).into_owned();
    assert!(said.contains("dunlin up"), "it says what to do: {said}");
}

//! Several processes that were admitted by invitation, and those that were not.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::Endpoint,
    load::{Load, Plan},
    node::{Home, LOOPBACK, Mesh},
    sandbox::Sandbox,
    wait_for,
};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn three_processes_joined_by_invitation_answer() {
    let sandbox = Sandbox::new();
    let engines = [DemoEngine::start(&sandbox, "engine-a", &[]), DemoEngine::start(&sandbox, "engine-b", &[])];
    let mesh = Mesh::new(&sandbox, &[]);
    let agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
    mesh.proxy.wait_for_replicas("demo", 2);

    let through_the_mesh = mesh.endpoint.chat("demo", "Hello", 24).unwrap();
    let replica = through_the_mesh.header("x-dunlin-replica").unwrap().to_owned();
    assert!(agents.iter().any(|agent| replica.starts_with(&agent.peer_id())), "{replica}");
    assert!(through_the_mesh.header("x-dunlin-load").is_none(), "the mesh's own headers stay in the mesh");
    assert_eq!(through_the_mesh.content(), engines[0].direct().chat("demo", "Hello", 24).unwrap().content());

    let stranger = Endpoint { key: None, ..mesh.endpoint.clone() };
    assert_eq!(stranger.chat("demo", "Hello", 4).unwrap().status, 401);
    let missing = mesh.endpoint.chat("no-such-model", "Hello", 4).unwrap();
    assert_eq!((missing.status, missing.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
}

/// A proxy that knows only the member that invited it finds an agent that the same member invited, and dials it by the
/// addresses in its record: a peer that is there is never "not found".
#[test]
fn members_that_never_met_find_each_other() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    let home = mesh.member("second-proxy", &["--role", "proxy", "--keys"]);
    let second = home.start(&[&["proxy", "--http", "127.0.0.1:0"], &LOOPBACK[..]].concat());
    let endpoint = second.endpoint();
    let start = Instant::now();
    // The first request may come before anything is known: it waits for a look-up, not for gossip.
    wait_for("an answer through the second proxy", PATIENCE, || {
        let answer = endpoint.chat("demo", "Hello", 4).unwrap();
        (answer.status == 200).then_some(())
    });
    assert!(start.elapsed() < Duration::from_secs(20), "found after {:?}", start.elapsed());
}

/// Whoever may serve some models cannot offer others.
#[test]
fn an_agent_offers_only_what_its_certificate_allows() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--model", "forbidden"]);
    let allowed = DemoEngine::start(&sandbox, "engine-b", &["--model", "allowed/one"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let home = mesh.member("a", &["--role", "agent", "--model", "allowed/*"]);
    let (one, two) = (engine.url(), allowed.url());
    let agent = home.start(&[&["agent", "--engine", &one, "--engine", &two], &LOOPBACK[..]].concat());
    mesh.proxy.wait_for_replicas("allowed/one", 1);
    assert_eq!(mesh.proxy.replicas("forbidden"), 0);
    assert_eq!(mesh.endpoint.chat("forbidden", "Hello", 4).unwrap().status, 404);
    mesh.endpoint.chat("allowed/one", "Hello", 4).unwrap().content();
    assert!(agent.process.output().contains("certificate"), "the agent says why it offers less than it has");
}

/// An engine that lists a model and then fails for it costs nobody an answer, and soon nobody asks it.
#[test]
fn a_liar_is_failed_over_and_ejected() {
    let sandbox = Sandbox::new();
    let honest = DemoEngine::start(&sandbox, "honest", &["--tokens-per-second", "0"]);
    let liar = DemoEngine::start(&sandbox, "liar", &[]);
    let fault = json!({"error_rate": 1.0, "error_status": 503});
    assert_eq!(liar.direct().post("/demo/faults", &fault).unwrap().status, 200);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agents = [mesh.agent_of("a", &honest), mesh.agent_of("b", &liar)];
    mesh.proxy.wait_for_replicas("demo", 2);
    let load = Load::start(&mesh.endpoint, &Plan { clients: 2, model: "demo".into(), tokens: 8, stream: true });
    load.wait_for_more(40);
    let report = load.finish();
    report.assert_all_whole();
    assert_eq!(report.by_replica().len(), 1, "{:?}", report.by_replica());
}

#[test]
fn revoked_members_are_out_within_seconds() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.proxy.home.ask(&["revoke", &agent.peer_id()]);
    let again = mesh.proxy.home.run(&["revoke", &agent.peer_id()]);
    assert!(again.status.success() && String::from_utf8_lossy(&again.stderr).contains("revoked already"), "{again:?}");
    let start = Instant::now();
    mesh.proxy.wait_for_replicas("demo", 0);
    assert!(start.elapsed() < Duration::from_secs(10), "out after {:?}", start.elapsed());
    assert_ne!(mesh.endpoint.chat("demo", "Hello", 4).unwrap().status, 200);
    let peers = mesh.proxy.home.list(&["peers"]);
    let of_agent = peers.as_array().unwrap().iter().find(|known| known["peer"] == agent.peer_id()).unwrap();
    assert_eq!((&of_agent["reachability"], &of_agent["replicas"]), (&json!("revoked"), &json!([])));
}

/// A token that went to the wrong place is taken back by the name that the list gives it.
#[test]
fn an_invitation_can_be_taken_back() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let token = mesh.proxy.home.ask(&["invite", "--uses", "3"]);
    Home::new(&sandbox, "first").join(&token);
    let listed = mesh.proxy.home.list(&["invite", "list"]);
    let one = &listed[0];
    assert_eq!(
        (one["used"].as_u64(), one["uses"].as_u64(), one["withdrawn"].as_bool()),
        (Some(1), Some(3), Some(false))
    );
    let id = one["id"].as_str().unwrap();
    assert!(!token.contains(id));
    assert_eq!(mesh.proxy.home.ask(&["invite", "withdraw", id]), format!("withdrawn {id}"));
    assert!(mesh.proxy.home.ask(&["invite", "list"]).contains("withdrawn"));
    let again = mesh.proxy.home.run(&["invite", "withdraw", id]);
    assert!(
        !again.status.success() && String::from_utf8_lossy(&again.stderr).contains("dunlin invite list"),
        "{again:?}"
    );
    let late = Home::new(&sandbox, "second").run(&["join", &token]);
    let said = String::from_utf8_lossy(&late.stderr);
    assert!(!late.status.success() && said.contains("withdrawn"), "{said}");
}

#[test]
fn tokens_are_printed_alone_and_used_once() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let token = mesh.proxy.home.ask(&["invite"]);
    assert_eq!(token.split_whitespace().count(), 1, "{token}");
    Home::new(&sandbox, "first").join(&token);
    let second = Home::new(&sandbox, "second").run(&["join", &token]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(error.contains("used up"), "{error}");
    let nonsense = Home::new(&sandbox, "third").run(&["join", "not-a-token"]);
    assert!(!nonsense.status.success());
}

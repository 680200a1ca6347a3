//! What engines say of their load, and what they don't: late, missing or wrong numbers make an answer slower at most.

use crate::harness::{
    clients::Clients,
    engine::{DemoEngine, Llama},
    http::Endpoint,
    load::{Load, Plan, Report},
    node::{Mesh, Node},
    odd::OddEngine,
    sandbox::Sandbox,
};
use serde_json::json;
use std::time::Duration;

fn plan(clients: usize, tokens: u32) -> Plan {
    Plan { clients, model: "demo".into(), tokens, stream: true }
}

/// Asks one question after another, as a single client does.
fn one_by_one(endpoint: &Endpoint, plan: Plan, questions: usize) -> Report {
    let load = Load::start(endpoint, &Plan { clients: 1, ..plan });
    load.wait_for_more(questions);
    load.finish()
}

fn share_of(report: &Report, agent: &Node<'_>) -> f64 {
    let id = agent.peer_id();
    let of_agent: usize = report.by_replica().iter().filter(|(name, _)| name.starts_with(&id)).map(|(_, n)| n).sum();
    #[allow(clippy::cast_precision_loss)]
    let share = of_agent as f64 / report.outcomes.len() as f64;
    share
}

/// An engine that was idle when its metrics were last read, and answers no reads since, does not win every pick.
#[test]
fn an_engine_whose_metrics_hang_does_not_win_every_pick() {
    let sandbox = Sandbox::new();
    let args = ["--tokens-per-second", "100", "--slots", "8"];
    let engines = [DemoEngine::start(&sandbox, "mute", &args), DemoEngine::start(&sandbox, "open", &args)];
    let mesh = Mesh::new(&sandbox, &[]);
    let agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
    mesh.proxy.wait_for_replicas("demo", 2);
    one_by_one(&mesh.endpoint, plan(1, 4), 4).assert_all_whole();

    let fault = engines[0].direct().post("/demo/faults", &json!({"metrics_delay_ms": 600_000})).unwrap();
    assert_eq!(fault.status, 200, "{}", fault.text());
    // Other people's work, which only the metrics would show: a little here, three times what it can do at once there.
    let elsewhere = Load::start(&engines[1].direct(), &plan(2, 50));
    let hidden = Load::start(&engines[0].direct(), &plan(24, 50));
    // Longer than anything last read may be believed.
    std::thread::sleep(Duration::from_secs(4));

    let report = one_by_one(&mesh.endpoint, plan(1, 4), 20);
    report.assert_all_whole();
    let share = share_of(&report, &agents[0]);
    assert!(share < 0.8, "{share} of the picks went by numbers that are long out of date: {:?}", report.by_replica());
    hidden.finish();
    elsewhere.finish();
}

/// C20: one model with a name that none may have drops no other, and metrics that are missing, or are no numbers, end
/// nobody's reports.
#[test]
fn what_an_engine_says_wrongly_costs_only_itself() {
    const MODELS: &str = r#"{"object":"list","data":[
        {"id":"bad\u0000name"},{"id":7},{"object":"model"},{"id":"good","max_model_len":"many"}]}"#;
    const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} NaN\nvllm:num_requests_waiting\nnonsense\n";
    let sandbox = Sandbox::new();
    let engine = OddEngine::start(MODELS, METRICS);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--engine", &engine.url(), "--runtime", "vllm"]);
    mesh.proxy.wait_for_replicas("good", 1);
    assert_eq!(agent.status()["engines"][0]["models"], json!(["good"]));
    // Far longer than a report counts: they go on, and the agent's own numbers are in them.
    let mut fresh = 0;
    for _ in 0..25 {
        let answer = mesh.endpoint.chat("good", "hello", 4).unwrap();
        assert_eq!(answer.content(), "yes");
        fresh = if answer.header("x-dunlin-route") == Some("fresh") { fresh + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(fresh >= 15, "reports ended: {fresh} answers in a row by a fresh one");
}

/// The only replica is a little over what one would call full: it is asked all the same, at once.
#[test]
fn the_only_replica_is_asked_though_it_is_busy() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "50", "--slots", "4"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    // Four requests run and one waits, all the time.
    let others = Load::start(&engine.direct(), &plan(5, 15));
    others.wait_for_more(10);
    let report = one_by_one(&mesh.endpoint, plan(1, 4), 6);
    report.assert_all_whole();
    let slowest = report.slowest_first_byte();
    assert!(slowest < Duration::from_secs(5), "{slowest:?} to the first byte");
    others.finish();
}

/// An engine without metrics, one that is slow to give them, and one that tells all: each gets its share.
#[test]
fn engines_without_metrics_are_used_and_balanced() {
    let sandbox = Sandbox::new();
    let args = ["--tokens-per-second", "100", "--slots", "8"];
    let start = |name: &str, more: &[&str]| DemoEngine::start(&sandbox, name, &[&args, more].concat());
    let engines =
        [start("none", &["--no-metrics"]), start("slow", &["--metrics-delay-ms", "3000"]), start("full", &[])];
    let mesh = Mesh::new(&sandbox, &[]);
    let agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1]), mesh.agent_of("c", &engines[2])];
    mesh.proxy.wait_for_replicas("demo", 3);
    let load = Load::start(&mesh.endpoint, &plan(9, 20));
    load.wait_for_more(90);
    let report = load.finish();
    report.assert_all_whole();
    for agent in &agents {
        let share = share_of(&report, agent);
        assert!(share > 0.05, "{share} for one of three equal engines: {:?}", report.by_replica());
    }
}

/// Two engines that are otherwise equal: the one on the hardware that its operator prefers gets what comes one by one.
#[test]
fn the_preferred_flavor_is_taken_at_equal_load() {
    let sandbox = Sandbox::new();
    let args = ["--tokens-per-second", "100", "--slots", "8"];
    let engines = [DemoEngine::start(&sandbox, "spare", &args), DemoEngine::start(&sandbox, "best", &args)];
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = |name, engine: &DemoEngine, rank| mesh.agent(name, &["--engine", &engine.url(), "--flavor-rank", rank]);
    let agents = [agent("a", &engines[0], "1"), agent("b", &engines[1], "0")];
    mesh.proxy.wait_for_replicas("demo", 2);
    // Both are measured: an unmeasured one counts as fast.
    let warm = Load::start(&mesh.endpoint, &plan(10, 20));
    warm.wait_for_more(60);
    warm.finish().assert_all_whole();
    let report = one_by_one(&mesh.endpoint, plan(1, 20), 20);
    report.assert_all_whole();
    let share = share_of(&report, &agents[1]);
    // Measured speeds vary on a busy machine, and what is measurably slower is not as good as equal.
    assert!(share > 0.6, "only {share} went to the preferred one: {:?}", report.by_replica());
}

/// Real llama.cpp never reports more running requests than it has slots, and no KV cache: what waits counts.
#[test]
fn a_crowded_llamacpp_is_avoided() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    // Two names for one model, so that each server can be asked alone, past the mesh.
    let (_crowded, crowded) = llama.start(&sandbox, "crowded,tinykjv", &[]);
    let (_idle, idle) = llama.start(&sandbox, "idle,tinykjv", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agents = [mesh.agent("a", &["--engine", &crowded]), mesh.agent("b", &["--engine", &idle])];
    mesh.proxy.wait_for_replicas("tinykjv", 2);
    let direct = Endpoint::open(crowded.strip_prefix("http://").unwrap().parse().unwrap());
    let long = Plan { clients: 8, model: "crowded".into(), tokens: 900, stream: true };
    let others = Load::start(&direct, &long);
    others.wait_for_more(4);
    let report = one_by_one(&mesh.endpoint, Plan { model: "tinykjv".into(), ..plan(1, 4) }, 20);
    report.assert_all_whole();
    let share = share_of(&report, &agents[1]);
    assert!(share >= 0.7, "only {share} went to the idle one: {:?}", report.by_replica());
    others.finish();
}

//! The examples for Prometheus and Grafana, held against real pages.

use crate::harness::{PATIENCE, engine::DemoEngine, http::Endpoint, node::Mesh, sandbox::Sandbox, wait_for};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    thread,
};

/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// Series of pages, each with the labels that it was seen with.
type Series = BTreeMap<String, BTreeSet<String>>;

/// Reads a page: what it declares, and what it counts.
fn read(page: &str, series: &mut Series) {
    for line in page.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            for suffix in suffixes {
                series.entry(format!("{name}{suffix}")).or_default();
            }
        } else if let Some((name, labels)) = line.split_once('{') {
            let labels = labels.split("=\"").filter_map(|part| part.rsplit(['"', ',', '{']).next());
            let labels = labels.filter(|label| !label.is_empty() && !label.starts_with('}')).map(str::to_owned);
            series.get_mut(name).unwrap_or_else(|| panic!("{name} is not declared")).extend(labels);
        }
    }
}

/// The series that an expression names, each with the labels of its matchers.
fn named(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("dunlin_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let matchers = after.strip_prefix('{').and_then(|after| after.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = matchers.split(',').filter_map(|matcher| matcher.split(['=', '!']).next());
        let labels = labels.map(|label| label.trim().to_owned()).filter(|label| !label.is_empty());
        found.push((name.to_owned(), labels.collect()));
        rest = after;
    }
    found
}

/// The labels by which an expression groups.
fn groups(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1).filter_map(|after| after.split(')').next());
    lists.flat_map(|list| list.split(',')).map(|label| label.trim().to_owned()).collect()
}

/// All texts under the keys that hold expressions.
fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if ["expr", "query", "definition"].contains(&key.as_str()) => {
                        found.push(text.to_owned())
                    }
                    _ => expressions(value, found),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn rules_and_dashboards_name_series_that_exist() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--metrics-http", "127.0.0.1:0", "--launch", "demo"]);
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let _other = mesh.agent_of("b", &engine);
    mesh.proxy.wait_for_replicas("demo", 2);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    // A series with labels is there once something was counted in it.
    let faults = json!({"die_after_tokens": 1, "death": "close", "times": 1});
    assert_eq!(engine.direct().post("/demo/faults", &faults).unwrap().status, 200);
    wait_for("a try of the engine that breaks one answer off", PATIENCE, || {
        // More at once than one engine has slots.
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| mesh.endpoint.chat("demo", "hello", 4).unwrap().content());
            }
        });
        let page = Endpoint::open(mesh.endpoint.address).get("/metrics").unwrap().text();
        page.contains("dunlin_proxy_retries_total").then_some(())
    });
    assert_eq!(Endpoint::open(mesh.endpoint.address).get("/v1/models").unwrap().status, 401);
    let said = agent.process.output();
    let of_agent = said.split("metrics   http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let mut series = Series::new();
    for address in [mesh.endpoint.address, of_agent.parse().unwrap()] {
        // Without a key, as the example asks.
        read(&Endpoint::open(address).get("/metrics").unwrap().text(), &mut series);
    }
    assert!(series["dunlin_proxy_requests_total"].contains("route"), "{series:?}");

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/deploy");
    let text = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let rules: serde_json::Value = serde_saphyr::from_str(&text("prometheus/alerts.yml")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text("grafana/dunlin.json")).unwrap();
    let mut asked = Vec::new();
    expressions(&rules, &mut asked);
    expressions(&board, &mut asked);
    let mut used = BTreeSet::new();
    for expression in &asked {
        let named = named(expression);
        for (name, labels) in &named {
            let known = series.get(name).unwrap_or_else(|| panic!("{name} is no series, in {expression}"));
            for label in labels.iter().filter(|label| !OF_PROMETHEUS.contains(&label.as_str())) {
                assert!(known.contains(label), "{name} has no label {label}, in {expression}");
            }
            used.insert(name.clone());
        }
        let of_all: BTreeSet<_> = named.iter().filter_map(|(name, _)| series.get(name)).flatten().collect();
        for label in groups(expression).iter().filter(|label| !OF_PROMETHEUS.contains(&label.as_str())) {
            assert!(of_all.contains(label), "grouped by {label}, in {expression}");
        }
    }
    assert!(used.len() >= 15, "only {used:?}");
}

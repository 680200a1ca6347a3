//! `dunlin status`: this machine's node, and what `up`, `agent` and `proxy` add to it on the control socket.

use super::{connect, service::Process};
use crate::{args::Output, output};
use anyhow::Result;
use axum::{Json, Router, routing::get};
use dunlin_agent::Status as Engines;
use dunlin_node::control::Status;
use serde::Serialize;
use std::path::Path;

/// Control routes of the process beside those of its node.
pub(crate) fn routes(process: Process, engines: Option<Engines>) -> Router {
    let listed = move || async move { Json(engines.map(|engines| engines.engines()).unwrap_or_default()) };
    Router::new().route("/process", get(move || async move { Json(process) })).route("/engines", get(listed))
}

/// All of it as one document.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    node: Status,
    #[serde(flatten)]
    process: Process,
    engines: serde_json::Value,
}

pub(crate) async fn run(home: &Path, output: Output) -> Result<()> {
    let mut client = connect(home).await?;
    let shown = Shown {
        node: client.get("/status").await?,
        process: client.get("/process").await?,
        engines: client.get("/engines").await?,
    };
    output::show(output, &shown, human)
}

fn human(shown: &Shown) -> String {
    let Shown { node, process, engines } = shown;
    let roles: Vec<_> = node.roles.iter().map(|role| role.as_str()).collect();
    let mut lines = vec![format!("mesh      {}", node.mesh), format!("peer      {}", node.peer)];
    if let Some(advice) = revoked(node) {
        lines.push(format!("REVOKED   {advice}"));
    }
    if let Some(name) = &node.name {
        lines.push(format!("name      {name}"));
    }
    lines.push(format!("roles     {}{}", roles.join(", "), if node.issuer { ", issues invitations" } else { "" }));
    if let Some(delegation) = &node.delegation {
        lines.push(format!("may give  {}", super::mesh::bounds(delegation)));
    }
    lines.push(format!("valid     {}", output::more(u64::try_from(node.expires_in_s).unwrap_or(0))));
    lines.extend(node.listen.iter().map(|address| format!("listening {address}")));
    if let Some(endpoint) = &process.endpoint {
        lines.push(format!("endpoint  {endpoint}/v1{}", if process.no_auth { " (no key)" } else { "" }));
    }
    let connected = output::counted(node.connected, "peer");
    lines.push(format!("knows     {connected} connected, {}", output::counted(node.models, "model")));
    for other in &node.other_meshes {
        lines.push(format!("neighbour {} is in another mesh (met {})", other.peer, output::ago(other.age_s)));
    }
    for engine in engines.as_array().into_iter().flatten() {
        lines.push(engine_line(engine));
    }
    lines.join("\n")
}

/// What to do where the membership was revoked.
pub(super) fn revoked(node: &Status) -> Option<String> {
    if !node.revoked {
        return None;
    }
    let says = node.revoked_says.as_ref().map(|peer| format!(", as member {peer} says")).unwrap_or_default();
    Some(format!(
        "this machine's membership was revoked{says}; ask for a new invitation, stop this process, then: dunlin join TOKEN"
    ))
}

fn engine_line(engine: &serde_json::Value) -> String {
    let text = |key: &str| engine[key].as_str().unwrap_or("-").to_owned();
    let models: Vec<_> = engine["models"].as_array().into_iter().flatten().filter_map(|model| model.as_str()).collect();
    let reason = engine["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    let serves = if is_lost(engine) { "served" } else { "serves" };
    let models = if models.is_empty() { String::new() } else { format!(", {serves} {}", models.join(", ")) };
    let busy = format!("{}/{} slots", engine["in_flight"], engine["slots"]);
    let reason = fetching(engine).unwrap_or(reason);
    format!(
        "engine {}  {} {} is {}{reason}{models}, {busy}",
        engine["index"],
        text("runtime"),
        text("url"),
        standing(engine)
    )
}

/// How far its weights have come, while they do.
fn fetching(engine: &serde_json::Value) -> Option<String> {
    let news = &engine["fetching"];
    if news.is_null() || news["ended"] == true {
        return None;
    }
    let bytes = |key: &str| output::bytes(news[key].as_u64().unwrap_or(0));
    let problem = news["problem"].as_str().map(|problem| format!("; {problem}")).unwrap_or_default();
    Some(format!(": its weights are being fetched, {} of {}{problem}", bytes("bytes_done"), bytes("bytes")))
}

/// Where an engine of this node stands, for people.
pub(super) fn standing(engine: &serde_json::Value) -> &str {
    if is_lost(engine) { "not answering" } else { engine["state"].as_str().unwrap_or("-") }
}

/// Whether an engine that somebody else runs served once and has yet to come back: to the mesh it is one that starts.
fn is_lost(engine: &serde_json::Value) -> bool {
    engine["state"] == "starting" && engine["has_served"] == true && engine["process"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_engine_that_was_lost_does_not_start() {
        let engine = |has_served: bool, process: serde_json::Value| {
            engine_line(&json!({
                "index": 0, "runtime": "vllm", "url": "http://127.0.0.1:1", "state": "starting", "reason": "refused",
                "models": ["m"], "has_served": has_served, "process": process, "in_flight": 0, "slots": 4,
            }))
        };
        let line = engine(true, json!(null));
        assert!(line.contains("is not answering: refused, served m,"), "{line}");
        for line in [engine(false, json!(null)), engine(true, json!({"state": "restarting"}))] {
            assert!(line.contains("is starting: refused, serves m,"), "{line}");
        }
    }
}

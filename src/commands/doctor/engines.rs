//! The engines' part of `dunlin doctor`: those of the running node, those that answer on this machine, and those that run
//! where nobody looks.

use super::{Findings, processes};
use crate::{commands::status::standing, output};
use anyhow::Result;
use dunlin_agent::{
    Found,
    engine::{
        Client, EngineUrl,
        discover::{answers, discover_on},
        explain::explain,
    },
    usual_ports,
};
use dunlin_node::control;
use dunlin_protocol::runtime::Catalogue;
use serde_json::Value;
use std::collections::BTreeSet;

/// Lines of an engine's last words that are shown.
const LAST_WORDS: usize = 3;

/// The engines of the running node.
pub(super) async fn own(client: &mut control::Client, findings: &mut Findings) -> Result<Vec<EngineUrl>> {
    let engines: Value = client.get("/engines").await?;
    let mut urls = Vec::new();
    for engine in engines.as_array().into_iter().flatten() {
        let text = |key: &str| engine[key].as_str();
        urls.extend(text("url").and_then(|url| url.parse().ok()));
        let name = format!("{} {}", text("runtime").unwrap_or("-"), text("url").unwrap_or("-"));
        match text("state") {
            Some("ready") => findings.ok("engine", format!("{name} serves")),
            Some("gone") if engine["stand_in"] == true => {
                findings.ok("engine", "the built-in demo engine has made room for a real one".to_owned());
            }
            Some("gone") => {
                findings.ok("engine", format!("{name} was found and has gone; it is taken in again when it is back"))
            }
            _ => {
                let (found, advice) = not_ready(engine);
                findings.fail("engine", format!("{name} is {}: {found}", standing(engine)), &advice);
            }
        }
    }
    Ok(urls)
}

/// Why an engine isn't ready, and what to do about it.
fn not_ready(engine: &Value) -> (String, String) {
    let reason = engine["reason"].as_str().unwrap_or("it is starting");
    let logs = format!("`dunlin logs PEER/{}` (PEER from `dunlin status`)", engine["index"]);
    let process = &engine["process"];
    match process["state"].as_str() {
        Some(state @ ("restarting" | "crash_loop")) => {
            let exit = process["exit"].as_str().unwrap_or("it ended");
            let times = process["failures"].as_u64().unwrap_or(1);
            let found =
                format!("its process ends again and again ({exit}, {times} times in a row){}", last_words(engine));
            let advice = match state {
                "crash_loop" => format!("{logs} shows why; it is still tried once a minute"),
                _ => format!("{logs} shows why; it is started again by itself"),
            };
            (found, advice)
        }
        Some(_) if reason.contains("cannot connect") => {
            let found = "its process runs and does not listen yet".to_owned();
            (
                found,
                format!(
                    "wait: loading takes minutes for a large model, and an image is fetched first; {logs} shows how far it is"
                ),
            )
        }
        Some(_) => (reason.to_owned(), format!("wait while it loads; {logs} shows what it is doing")),
        None => (reason.to_owned(), attached(engine, reason)),
    }
}

fn attached(engine: &Value, reason: &str) -> String {
    let url = engine["url"].as_str().unwrap_or("its address");
    if reason.contains("cannot connect") {
        return format!(
            "nothing listens at {url}: start the engine, or see that it listens there and not inside a container or on \
             another address"
        );
    }
    if reason.contains("lists no model") {
        return match engine["runtime"].as_str() {
            Some("ollama") => "ollama pull MODEL".to_owned(),
            _ => "load a model into it, or name the one that it serves with --model NAME".to_owned(),
        };
    }
    if reason.contains("requests fail") {
        return "restart it: it says that it is well, and fails every request; its own output says why".to_owned();
    }
    if reason.contains("503") {
        return "wait: it says that it is loading".to_owned();
    }
    if reason.contains("401") || reason.contains("403") {
        return "start it without a key of its own: the mesh's endpoints ask for keys".to_owned();
    }
    format!("see that it is well: curl {url}/v1/models")
}

fn last_words(engine: &Value) -> String {
    let lines = engine["last_output"].as_array().map_or(&[][..], Vec::as_slice);
    let own = |line: &&str| !line.starts_with("[dunlin]");
    let lines: Vec<_> = lines.iter().filter_map(Value::as_str).filter(own).collect();
    let end = &lines[lines.len().saturating_sub(LAST_WORDS)..];
    if end.is_empty() { String::new() } else { format!("; its last words: {}", end.join(" / ")) }
}

/// What `up` and `agent` find by themselves on this machine, and what they don't, and why. `own` are engines that the
/// running node has.
pub(super) async fn local(own: &[EngineUrl], findings: &mut Findings) -> Result<()> {
    let catalogue = Catalogue::built_in()?;
    let ports = usual_ports(&catalogue);
    let found = discover_on(ports.iter().copied(), &catalogue).await;
    for Found { url, runtime, models } in &found {
        let found = format!("{url} ({runtime}) lists {}", output::counted(models.len(), "model"));
        match (models.is_empty(), runtime.as_str()) {
            (false, _) => findings.ok("local", found),
            (true, "ollama") => findings.warn("local", found, "ollama pull MODEL"),
            (true, _) => findings.warn("local", found, "load a model into it, or name one with --model"),
        }
    }
    let known: BTreeSet<u16> =
        found.iter().map(|found| &found.url).chain(own).filter_map(EngineUrl::local_port).collect();
    let strangers = strangers(&ports, &known, findings).await;
    let unseen = elsewhere(&catalogue, &known, &strangers, findings);
    if found.is_empty() && strangers.is_empty() && unseen == 0 {
        let looked: Vec<_> = ports.iter().map(ToString::to_string).collect();
        findings.ok("local", format!("no engine on the usual local ports ({})", looked.join(", ")));
    }
    Ok(())
}

/// What answers at a usual port and was not taken for an engine.
async fn strangers(ports: &BTreeSet<u16>, known: &BTreeSet<u16>, findings: &mut Findings) -> BTreeSet<u16> {
    let client = Client::new();
    let mut strangers = BTreeSet::new();
    for port in ports.difference(known) {
        let Some(url) = answers(*port).await else { continue };
        strangers.insert(*port);
        let explanation = explain(&client, &url).await;
        let found = format!("{url} is not taken for an engine: {}", explanation.seen);
        match explanation.advice {
            Some(advice) => findings.warn("local", found, &advice),
            None => findings.ok("local", found),
        }
    }
    strangers
}

/// Engines that run as processes here and listen where nobody looks. Returns how many.
fn elsewhere(
    catalogue: &Catalogue,
    known: &BTreeSet<u16>,
    strangers: &BTreeSet<u16>,
    findings: &mut Findings,
) -> usize {
    let mut count = 0;
    for (runtime, processes) in processes::by_runtime(processes::engines(catalogue)) {
        let listens: BTreeSet<_> = processes.iter().flat_map(|process| process.listens.iter().copied()).collect();
        if listens.iter().any(|address| known.contains(&address.port()) || strangers.contains(&address.port())) {
            continue;
        }
        count += 1;
        let pids: Vec<_> = processes.iter().map(|process| process.pid.to_string()).collect();
        let who = format!("{runtime} runs as process {}", pids.join(", "));
        match listens.first() {
            None => findings.warn(
                "local",
                format!("{who} and listens nowhere that this user can see"),
                "it is loading, or runs inside a container or for another user: publish its port, then --engine URL",
            ),
            Some(address) => {
                let host =
                    if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
                let host = if address.is_ipv6() && !address.ip().is_unspecified() { format!("[{host}]") } else { host };
                let port = address.port();
                let advice = format!("dunlin agent --engine http://{host}:{port}, or --discover {port}");
                findings.warn("local", format!("{who} and listens on {address}, where nobody looks"), &advice);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_obstacle_has_its_own_advice() {
        let of = |engine: Value| {
            let (found, advice) = not_ready(&engine);
            format!("{found} -> {advice}")
        };
        let attached = |runtime: &str, reason: &str| {
            of(json!({"index": 0, "runtime": runtime, "url": "http://127.0.0.1:1", "reason": reason, "process": null}))
        };
        for (said, wanted) in [
            (
                attached("vllm", "cannot connect to the engine: Connection refused"),
                "nothing listens at http://127.0.0.1:1",
            ),
            (attached("ollama", "the engine lists no model; load one"), "ollama pull"),
            (attached("openai", "the engine lists no model; load one"), "--model NAME"),
            (attached("vllm", "requests fail, though the engine says that it is well"), "restart it"),
            (attached("llamacpp", "the engine answered 503 Service Unavailable"), "wait"),
            (attached("vllm", "the engine answered 401 Unauthorized"), "without a key"),
        ] {
            assert!(said.contains(wanted), "{said}");
        }
        let process = json!({"state": "crash_loop", "exit": "exit status: 1", "failures": 7});
        let output = ["usage: ...", "error: out of memory", "[dunlin] engine ended: exit status: 1"];
        let said = of(
            json!({"index": 2, "reason": "the engine's process has ended", "process": process, "last_output": output}),
        );
        assert!(said.contains("7 times in a row") && said.contains("error: out of memory"), "{said}");
        assert!(said.contains("PEER/2") && !said.contains("[dunlin]"), "{said}");
        let loading =
            json!({"index": 0, "reason": "cannot connect to the engine: refused", "process": {"state": "running"}});
        assert!(of(loading).contains("does not listen yet"));
    }
}

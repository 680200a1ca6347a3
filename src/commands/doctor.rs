//! `dunlin doctor`: look for what is wrong and say what to do. Exit code 1 when something is broken.

mod engines;
mod models;
mod processes;

use super::service::Process;
use crate::{
    args::Output,
    output,
    settings::{HTTP_PORT, MESH_PORT},
};
use anyhow::{Result, bail};
use dunlin_agent::engine::EngineUrl;
use dunlin_node::{
    PeerInfo, clock,
    control::{Client, ClientError, ModelInfo, Status},
    mesh,
    state::StateDir,
};
use dunlin_proxy::keys::Key;
use serde::Serialize;
use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// A certificate that has not renewed itself by then is in trouble, seconds.
const EXPIRES_SOON: i64 = 5 * 86_400;

/// A delegation that was not renewed by then deserves a word: people renew it. Seconds.
const DELEGATION_ENDS_SOON: u64 = 30 * 86_400;

/// Neighbours of other meshes that are named.
const FOREIGNERS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    found: String,
    /// What to do about it.
    advice: Option<String>,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, what: &'static str, found: impl Into<String>) {
        self.0.push(Finding { verdict: Verdict::Ok, what, found: found.into(), advice: None });
    }
    fn warn(&mut self, what: &'static str, found: impl Into<String>, advice: &str) {
        let advice = Some(advice.to_owned());
        self.0.push(Finding { verdict: Verdict::Warn, what, found: found.into(), advice });
    }
    fn fail(&mut self, what: &'static str, found: impl Into<String>, advice: &str) {
        let advice = Some(advice.to_owned());
        self.0.push(Finding { verdict: Verdict::Fail, what, found: found.into(), advice });
    }
}

pub(crate) async fn run(home: &Path, output: Output) -> Result<()> {
    let mut findings = Findings::default();
    directory(home, &mut findings);
    let mut own = Vec::new();
    match Client::connect(home).await {
        Ok(client) => own = running(client, &mut findings).await?,
        Err(ClientError::NotRunning(_)) => stopped(home, &mut findings),
        Err(error) => findings.fail("node", error.to_string(), "run doctor as the user that runs the node"),
    }
    engines::local(&own, &mut findings).await?;
    let broken = findings.0.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    output::show(output, &findings.0, |findings| human(findings))?;
    if broken > 0 {
        bail!("{} found", output::counted(broken, "problem"));
    }
    Ok(())
}

fn human(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        text.push_str(&format!("{mark}  {:<12} {}\n", finding.what, finding.found));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("      {:<12} -> {advice}\n", ""));
        }
    }
    text
}

fn directory(home: &Path, findings: &mut Findings) {
    match std::fs::metadata(home) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            findings.warn("state", format!("{} does not exist", home.display()), "dunlin up, or dunlin join TOKEN");
        }
        Err(error) => findings.fail("state", format!("{}: {error}", home.display()), "choose another with --home DIR"),
        Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => findings.warn(
            "state",
            format!("{} is open to other users (mode {:o})", home.display(), metadata.permissions().mode() & 0o777),
            "chmod 700 it",
        ),
        Ok(_) => findings.ok("state", home.display().to_string()),
    }
}

/// Returns the node's own engines.
async fn running(mut client: Client, findings: &mut Findings) -> Result<Vec<EngineUrl>> {
    let status: Status = client.get("/status").await?;
    findings.ok("node", format!("runs as {}, version {}", status.peer, status.version));
    if let Some(advice) = super::status::revoked(&status) {
        let (found, what_to_do) = advice.split_once("; ").unwrap_or((&advice, "dunlin join TOKEN"));
        findings.fail("membership", found, what_to_do);
        // Nothing else works without it.
        return Ok(Vec::new());
    }
    if let Some(delegation) = &status.delegation {
        let left = delegation.not_after.saturating_sub(clock::unix_s());
        match left < DELEGATION_ENDS_SOON {
            true => findings.warn(
                "delegation",
                format!("ends in {}, and every membership that this machine gave with it", output::span(left)),
                "delegate to it again where the mesh key lies",
            ),
            false => findings.ok("delegation", format!("this machine may issue for {}", output::more(left))),
        }
    }
    let left = u64::try_from(status.expires_in_s).unwrap_or(0);
    match status.expires_in_s {
        ..=0 => findings.fail("certificate", "has expired", "join again with a new invitation"),
        1..EXPIRES_SOON => findings.warn(
            "certificate",
            format!("ends in {} and was not renewed", output::span(left)),
            "see that a machine that issues invitations is reachable",
        ),
        _ => findings.ok("certificate", format!("valid for {}", output::more(left))),
    }
    let peers: Vec<PeerInfo> = client.get("/peers").await?;
    let connected = peers.iter().filter(|peer| peer.reachability == "connected").count();
    let relayed = peers.iter().filter(|peer| peer.reachability == "relayed").count();
    match (connected + relayed, relayed) {
        (0, _) if status.issuer => findings.ok("peers", "none yet; `dunlin invite` admits another machine"),
        (0, _) => findings.warn(
            "peers",
            "no other member is reached",
            "see that the machine that invited this one runs, and that its mesh port (4480 TCP or UDP) is open",
        ),
        (all, 0) => findings.ok("peers", format!("{all} connected")),
        (all, relayed) => findings.warn(
            "peers",
            format!("{all} connected, {relayed} of them through a relay"),
            "open the mesh port of one side, or name its outside address with --external",
        ),
    }
    foreign(&status, findings);
    for peer in peers.iter().filter(|peer| peer.duplicate) {
        let found = format!("two processes run as {}", peer.peer);
        findings.fail("peers", found, "stop one of them, or give it a state directory of its own");
    }
    let own = engines::own(&mut client, findings).await?;
    let models: Vec<ModelInfo> = client.get("/models").await?;
    match models.iter().filter(|model| model.ready > 0).count() {
        0 => findings.warn("models", "the mesh serves none", "see the engines; `dunlin peers` shows who should serve"),
        ready => findings.ok("models", format!("{} ready", output::counted(ready, "model"))),
    }
    models::short(&models, &peers, findings);
    let process: Process = client.get("/process").await?;
    if let Some(endpoint) = process.endpoint {
        let keys: Vec<Key> = client.get("/keys").await?;
        match !process.no_auth && super::keys::none_counts(&keys) {
            true => {
                let found = format!("{endpoint}/v1 has no key, so that it answers nobody");
                findings.warn("endpoint", found, "dunlin keys create");
            }
            false => findings.ok("endpoint", format!("{endpoint}/v1")),
        }
    }
    Ok(own)
}

/// A neighbour of another mesh is in nobody's way, unless both were to be one.
fn foreign(status: &Status, findings: &mut Findings) {
    for other in status.other_meshes.iter().take(FOREIGNERS) {
        findings.warn(
            "neighbour",
            format!(
                "{} belongs to another mesh, so neither lets the other in (met {})",
                other.peer,
                output::ago(other.age_s)
            ),
            "nothing, if there are to be two meshes; else run `dunlin invite` there, stop this node, and bring this \
             machine over: dunlin --home NEW_DIR join TOKEN && dunlin --home NEW_DIR up",
        );
    }
}

fn stopped(home: &Path, findings: &mut Findings) {
    findings.warn("node", "none is running with this state directory", "dunlin up");
    if home.exists() {
        match StateDir::open(home)
            .map_err(anyhow::Error::from)
            .and_then(|state| Ok(mesh::load(&state, clock::unix_s())?))
        {
            Ok(mesh) => {
                let own = mesh.members.own();
                findings.ok("certificate", format!("{} of mesh {}, roles {}", own.peer, own.mesh, own.roles));
            }
            Err(error) => match error.downcast_ref::<mesh::Error>() {
                Some(mesh::Error::Revoked) => findings.fail(
                    "membership",
                    "this machine's membership was revoked",
                    "ask for a new invitation, then: dunlin join TOKEN",
                ),
                Some(mesh::Error::Expired) => {
                    findings.fail("certificate", "has expired", "ask for a new invitation, then: dunlin join TOKEN");
                }
                Some(mesh::Error::NotAMember) => not_a_member(home, findings),
                _ => findings.fail("certificate", error.to_string(), "see what it names"),
            },
        }
    }
    let free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, MESH_PORT)).is_ok()
        && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, MESH_PORT)).is_ok();
    if !free {
        let found = format!("port {MESH_PORT} is taken by another program");
        findings.warn("mesh port", found, "choose another: --listen /ip4/0.0.0.0/tcp/PORT");
    }
    if TcpListener::bind((Ipv4Addr::LOCALHOST, HTTP_PORT)).is_err() {
        let found = format!("port {HTTP_PORT} is taken by another program");
        findings.warn("endpoint", found, "choose another: --http 127.0.0.1:PORT");
    }
}

/// Of a machine that no mesh has: whether it was to join one.
fn not_a_member(home: &Path, findings: &mut Findings) {
    match StateDir::open(home).and_then(|state| state.failed_join()) {
        Ok(Some(failed)) => {
            let mesh = failed.mesh.map(|mesh| format!(" mesh {mesh}")).unwrap_or_default();
            let ago = output::ago(clock::unix_s().saturating_sub(failed.at));
            findings.fail(
                "certificate",
                format!("none: `dunlin join`{mesh} failed {ago}: {}", failed.cause),
                "dunlin join TOKEN, with a new token where it has expired; or a mesh of its own: dunlin mesh create",
            );
        }
        _ => findings.warn(
            "certificate",
            mesh::Error::NotAMember.to_string(),
            "dunlin up makes a mesh; dunlin join enters one",
        ),
    }
}

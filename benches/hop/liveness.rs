//! How soon the mesh sees that an agent came, went, or fell silent.

use crate::{
    Bench,
    child::Child,
    load,
    mesh::{Engine, Mesh},
};
use anyhow::{Context as _, Result};
use dunlin_node::PeerInfo;
use std::time::{Duration, Instant};

struct Samples(Vec<Duration>);

impl Samples {
    fn row(&self, name: &str, target: &str) {
        let list: Vec<String> = self.0.iter().map(|time| format!("{:.0}", time.as_secs_f64() * 1000.0)).collect();
        let worst = self.0.iter().max().map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0);
        println!("| {name} | {worst:.0} | {} | {target} |", list.join(", "));
    }
}

/// Starts and ends agents of their own, beside the one that the other measurements use.
pub fn run(bench: &mut Bench) -> Result<()> {
    let (mut served, mut out, mut suspect) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..bench.rounds {
        let model = format!("late-{number}");
        let engine = Engine::start(&model, 0)?;
        let mut agent = bench.mesh.agent(&[&engine])?;
        served.push(first_request(&bench.mesh, &model)?);
        suspect.push(silence(&bench.mesh, &agent, &model)?);
        out.push(death(&bench.mesh, &mut agent, &model)?);
    }
    println!("\n## Coming and going, milliseconds\n");
    println!("| | worst | each | target |\n|---|---|---|---|");
    Samples(served).row("agent ready -> first request served", "1000");
    Samples(out).row("kill -9 of an agent -> out", "50");
    Samples(suspect).row("SIGSTOP of an agent -> suspect", "3000");
    Ok(())
}

fn serving<'a>(peers: &'a [PeerInfo], model: &str) -> Option<&'a PeerInfo> {
    peers
        .iter()
        .find(|peer| peer.replicas.iter().any(|replica| replica.models.iter().any(|served| served.as_str() == model)))
}

/// From the moment at which the agent itself says that it is ready.
fn first_request(mesh: &Mesh, model: &str) -> Result<Duration> {
    let home = mesh.last_agent_home();
    let started = Instant::now();
    mesh.until_at(&home, started, |peers| serving(peers, model).is_some())?;
    let ready = Instant::now();
    load::first_answer(mesh.at, &load::request(model, false, 1, Some(&mesh.key)), ready)
}

/// The peer that serves `model`, once the proxy is connected to it.
fn peer_of(mesh: &Mesh, model: &str) -> Result<String> {
    mesh.until(Instant::now(), |peers| serving(peers, model).is_some_and(|peer| peer.reachability == "connected"))?;
    let peers = mesh.peers()?;
    let peer = serving(&peers, model).context("the agent is not among the proxy's peers any more")?;
    Ok(peer.peer.clone())
}

fn silence(mesh: &Mesh, agent: &Child, model: &str) -> Result<Duration> {
    let id = peer_of(mesh, model)?;
    let since = Instant::now();
    agent.stop()?;
    let noticed = mesh.until(since, |peers| reachability(peers, &id) != "connected");
    agent.go_on()?;
    mesh.until(Instant::now(), |peers| reachability(peers, &id) == "connected")?;
    noticed
}

fn death(mesh: &Mesh, agent: &mut Child, model: &str) -> Result<Duration> {
    let id = peer_of(mesh, model)?;
    let since = Instant::now();
    agent.kill()?;
    mesh.until(since, |peers| reachability(peers, &id) != "connected")
}

fn reachability<'a>(peers: &'a [PeerInfo], id: &str) -> &'a str {
    peers.iter().find(|peer| peer.peer == id).map_or("gone", |peer| peer.reachability.as_str())
}

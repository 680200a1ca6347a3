//! What the mesh hop costs, beside two floors: the engine asked directly, and a plain reverse proxy.
//!
//! `cargo bench --bench hop` starts the real executables as processes, joined by an invitation on loopback, and prints
//! Markdown. In the environment: `DUNLIN_BENCH_QUICK=1` for a run of about a minute whose numbers are rough,
//! `DUNLIN_BENCH_ONLY=throughput,stalled,memory,liveness` for some parts, `DUNLIN_BENCH_VERBOSE=1` for the processes'
//! own output.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "hop/child.rs"]
mod child;
#[path = "hop/floor.rs"]
mod floor;
#[path = "hop/folder.rs"]
mod folder;
#[path = "hop/liveness.rs"]
mod liveness;
#[path = "hop/load.rs"]
mod load;
#[path = "hop/mesh.rs"]
mod mesh;
#[path = "hop/open.rs"]
mod open;
#[path = "hop/rounds.rs"]
mod rounds;
#[path = "hop/throughput.rs"]
mod throughput;

use anyhow::{Context as _, Result};
use child::Child;
use mesh::{Engine, Mesh};
use std::{net::SocketAddr, process::Command, time::Duration};

/// Everything that runs.
pub struct Bench {
    pub engine: Engine,
    /// Streams slowly; behind the same agent.
    _slow: Engine,
    pub floor: Child,
    pub floor_at: SocketAddr,
    pub mesh: Mesh,
    pub agent: Child,
    /// Length of one round.
    pub round: Duration,
    pub rounds: usize,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "floor") {
        let address = |index: usize| -> Result<SocketAddr> { Ok(args.get(index).context("no address")?.parse()?) };
        return floor::run(address(1)?, address(2)?);
    }
    let only = std::env::var("DUNLIN_BENCH_ONLY").unwrap_or_else(|_| "throughput,stalled,memory,liveness".into());
    let wanted = |part: &str| only.split(',').any(|name| name == part);
    let mut bench = Bench::start(std::env::var_os("DUNLIN_BENCH_QUICK").is_some())?;
    println!("# Mesh hop\n\n{}", machine());
    println!(
        "\n{} rounds of {} s for each number, engine, floor and mesh in turn; ratios are medians over the rounds.",
        bench.rounds,
        bench.round.as_secs_f64()
    );
    // Memory first: what is idle shall not have worked yet.
    if wanted("memory") {
        open::memory(&bench)?;
    }
    if wanted("throughput") {
        throughput::run(&bench)?;
    }
    if wanted("stalled") {
        throughput::stalled(&bench)?;
    }
    if wanted("liveness") {
        liveness::run(&mut bench)?;
    }
    Ok(())
}

impl Bench {
    fn start(quick: bool) -> Result<Self> {
        let engine = Engine::start(mesh::FAST, 0)?;
        let slow = Engine::start(mesh::SLOW, 5)?;
        let floor_at = child::free_address()?;
        let this = std::env::current_exe()?;
        let arguments = ["floor".to_owned(), floor_at.to_string(), engine.at.to_string()];
        let mut floor = Child::start("floor", Command::new(this).args(arguments))?;
        floor.listens(floor_at)?;
        let mut mesh = Mesh::start()?;
        let agent = mesh.agent(&[&engine, &slow])?;
        mesh.serves(mesh::FAST)?;
        mesh.serves(mesh::SLOW)?;
        let (round, rounds) = if quick { (Duration::from_secs(1), 1) } else { (Duration::from_secs(2), 5) };
        Ok(Self { engine, _slow: slow, floor, floor_at, mesh, agent, round, rounds })
    }
}

/// Processors, kernel, and how busy the machine was at the start.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or_else(|| "unknown processor".to_owned(), |name| name.trim_start_matches([':', '\t', ' ']).to_owned());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("unknown");
    format!(
        "{cores} cores ({model}), Linux {}, load average at the start {load}.",
        read("/proc/sys/kernel/osrelease").trim()
    )
}

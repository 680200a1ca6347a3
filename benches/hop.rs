//! What the mesh hop costs, beside two floors: the engine asked directly, and a plain reverse proxy.
//!
//! `cargo bench --bench hop` starts the real executables, joined by an invitation, and prints Markdown. Set
//! `DUNLIN_BENCH_QUICK=1` for a run of about a minute whose numbers are rough.
#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, reason = "a bench speaks through standard output")]

#[path = "hop/child.rs"]
mod child;
#[path = "hop/floor.rs"]
mod floor;
#[path = "hop/load.rs"]
mod load;

use anyhow::{Context as _, Result};
use std::{process::Command, time::Duration};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address =
        |index: usize| -> Result<std::net::SocketAddr> { Ok(args.get(index).context("no address")?.parse()?) };
    match args.first().map(String::as_str) {
        Some("floor") => return floor::run(address(1)?, address(2)?),
        Some("engine") => return engine(address(1)?),
        _ => {}
    }
    let this = std::env::current_exe()?;
    let at = child::free_address()?;
    let mut engine = child::Child::start("engine", Command::new(&this).args(["engine", &at.to_string()]))?;
    engine.listens(at)?;
    let floor_at = child::free_address()?;
    let mut floor =
        child::Child::start("floor", Command::new(&this).args(["floor", &floor_at.to_string(), &at.to_string()]))?;
    floor.listens(floor_at)?;
    for kind in [load::Kind::Unary, load::Kind::Stream] {
        for clients in [1, 16, 64, 256] {
            for (name, target) in [("engine", at), ("floor", floor_at)] {
                let before = (engine.cpu_s()?, floor.cpu_s()?);
                let outcome = load::run(target, &kind.request("demo", None), clients, Duration::from_secs(2))?;
                let cpu = (engine.cpu_s()? - before.0, floor.cpu_s()? - before.1);
                println!(
                    "{kind:?} {clients:4} {name:7} {:9.0} req/s {:9.0} ev/s p50 {:.2} p99 {:.2} ms, cpu engine {:.2} floor {:.2}, errors {} {:?}",
                    outcome.per_second(),
                    outcome.events_per_second(),
                    outcome.first_ms(0.5),
                    outcome.first_ms(0.99),
                    cpu.0,
                    cpu.1,
                    outcome.errors,
                    outcome.error
                );
            }
        }
    }
    Ok(())
}

fn engine(at: std::net::SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = dunlin_agent::demo::Config { listen: at, ..dunlin_agent::demo::Config::unlimited() };
        dunlin_agent::demo::Engine::bind(config)?.run(tokio_util::sync::CancellationToken::new()).await;
        Ok(())
    })
}

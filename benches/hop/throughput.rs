//! Requests and chunks per second, time to first chunk, processor time: engine, floor and mesh in turn, so that what
//! else the machine does strikes all alike.

use crate::{
    Bench,
    load::Kind,
    mesh::FAST,
    rounds::{Sum, median},
};
use anyhow::{Context as _, Result};
use std::net::SocketAddr;

/// Clients at once.
const CLIENTS: [usize; 4] = [1, 16, 64, 256];

/// Prints both tables.
pub fn run(bench: &Bench) -> Result<()> {
    for kind in [Kind::Unary, Kind::Stream] {
        let (what, unit) = match kind {
            Kind::Unary => ("Answers of 1 KB", "requests/s"),
            Kind::Stream => ("Streams of 64 chunks", "chunks/s"),
        };
        println!("\n## {what}\n");
        println!(
            "| clients | engine {unit} | floor {unit} | mesh {unit} | **mesh / floor** | floor first p50 / p99 ms | \
             mesh first p50 / p99 ms | **p99 mesh / floor** | floor CPU s per 10k | mesh CPU s per 10k | **CPU mesh / floor** | failed |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
        for clients in CLIENTS {
            row(bench, kind, clients)?;
        }
    }
    Ok(())
}

fn row(bench: &Bench, kind: Kind, clients: usize) -> Result<()> {
    let mut engine = Sum::default();
    let mut floor = Sum::default();
    let mut mesh = Sum::default();
    let mut ratios = Vec::new();
    for _ in 0..bench.rounds {
        round(bench, kind, clients, bench.engine.at, &mut engine, || Ok(0.0))?;
        round(bench, kind, clients, bench.floor_at, &mut floor, || bench.floor.cpu_s())?;
        round(bench, kind, clients, bench.mesh.at, &mut mesh, || Ok(bench.mesh.proxy.cpu_s()? + bench.agent.cpu_s()?))?;
        let last = |sum: &Sum| sum.rates.last().copied().context("no round");
        ratios.push(last(&mesh)? / last(&floor)?);
    }
    let failed = floor.outcome.errors + mesh.outcome.errors;
    println!(
        "| {clients} | {:.0} | {:.0} | {:.0} | **{:.2}** | {:.2} / {:.2} | {:.2} / {:.2} | **{:.2}** | {:.2} | {:.2} | **{:.2}** | {failed} |",
        engine.rate(),
        floor.rate(),
        mesh.rate(),
        median(&ratios),
        floor.outcome.first_ms(0.5),
        floor.outcome.first_ms(0.99),
        mesh.outcome.first_ms(0.5),
        mesh.outcome.first_ms(0.99),
        mesh.outcome.first_ms(0.99) / floor.outcome.first_ms(0.99),
        floor.cpu_s_per(10_000.0),
        mesh.cpu_s_per(10_000.0),
        mesh.cpu_s_per(10_000.0) / floor.cpu_s_per(10_000.0),
    );
    for (name, sum) in [("floor", floor), ("mesh", mesh)] {
        sum.outcome.tell_failures(&format!("{name}, {kind:?}, {clients} clients"));
    }
    Ok(())
}

fn round(
    bench: &Bench,
    kind: Kind,
    clients: usize,
    target: SocketAddr,
    sum: &mut Sum,
    cpu: impl Fn() -> Result<f64>,
) -> Result<()> {
    let request = kind.request(FAST, Some(&bench.mesh.key));
    sum.round(target, &request, kind, clients, bench.round, cpu)
}

/// How much clients that never read slow the others, in answers per second at 64 clients.
pub fn stalled(bench: &Bench) -> Result<()> {
    const STALLED: usize = 40;
    println!("\n## {STALLED} clients that never read, beside 64 that do\n");
    println!(
        "| | alone requests/s | beside them requests/s | slower by | p99 alone ms | p99 beside ms |\n|---|---|---|---|---|---|"
    );
    for (name, target) in [("floor", bench.floor_at), ("mesh", bench.mesh.at)] {
        let (mut alone, mut beside) = (Sum::default(), Sum::default());
        for _ in 0..bench.rounds {
            round(bench, Kind::Unary, 64, target, &mut alone, || Ok(0.0))?;
            let held = crate::open::Streams::stalled(target, STALLED, &bench.mesh.key)?;
            round(bench, Kind::Unary, 64, target, &mut beside, || Ok(0.0))?;
            drop(held);
        }
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} % | {:.2} | {:.2} |",
            alone.rate(),
            beside.rate(),
            (1.0 - beside.rate() / alone.rate()) * 100.0,
            alone.outcome.first_ms(0.99),
            beside.outcome.first_ms(0.99),
        );
    }
    Ok(())
}

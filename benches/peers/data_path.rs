//! What passing bytes on costs: one engine without timers behind each, 64 clients, one balancer after the other in each
//! round.

use crate::{
    Extent,
    balancer::{Backend, Balancer, Kind, MODEL},
    load::Kind as Answer,
    mesh::Engine,
    rounds::Sum,
};
use anyhow::Result;

/// Clients at once.
const CLIENTS: usize = 64;
/// Slots that nobody fills.
const SLOTS: u32 = 60_000;

/// Measures both kinds of answers and prints the tables.
pub fn run(kinds: &[Kind], extent: &Extent) -> Result<()> {
    let mut running = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.takes_one_engine()) {
        let backend = [Backend { engine: Engine::with_slots(MODEL, 0, SLOTS)?, slots: SLOTS }];
        running.push((kind.start(&backend)?, backend));
    }
    for (answer, what, unit) in
        [(Answer::Unary, "Answers of 1 KB", "requests/s"), (Answer::Stream, "Streams of 64 chunks", "chunks/s")]
    {
        let mut sums: Vec<Sum> = running.iter().map(|_| Sum::default()).collect();
        for _ in 0..extent.rounds {
            for ((balancer, _), sum) in running.iter().zip(&mut sums) {
                round(balancer, answer, extent, sum)?;
            }
        }
        println!("\n## {what}, {CLIENTS} clients\n");
        println!(
            "| | {unit} | **dunlin's / its** | first p50 / p99 ms | CPU us per request | **dunlin's / its** | failed |"
        );
        println!("|---|---|---|---|---|---|---|");
        let (rate, cpu) = sums.last().map_or((f64::NAN, f64::NAN), |ours| (ours.rate(), ours.cpu_s_per(1e6)));
        for ((balancer, _), sum) in running.iter().zip(&sums) {
            println!(
                "| {} | {:.0} | {:.2} | {:.2} / {:.2} | {:.0} | {:.2} | {} |",
                balancer.name,
                sum.rate(),
                rate / sum.rate(),
                sum.outcome.first_ms(0.5),
                sum.outcome.first_ms(0.99),
                sum.cpu_s_per(1e6),
                cpu / sum.cpu_s_per(1e6),
                sum.outcome.errors
            );
            sum.outcome.tell_failures(&balancer.name);
        }
    }
    Ok(())
}

fn round(balancer: &Balancer, answer: Answer, extent: &Extent, sum: &mut Sum) -> Result<()> {
    let request = answer.request(MODEL, balancer.key.as_deref());
    sum.round(balancer.at, &request, answer, CLIENTS, extent.round, || balancer.cpu_s())
}

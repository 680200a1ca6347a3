//! What passing bytes on costs: one engine without timers behind each, 64 clients, one balancer after the other in each
//! round.

use crate::{
    Extent,
    balancer::{Backend, Balancer, Kind, MODEL},
    load::{self, Kind as Answer, Outcome},
    mesh::Engine,
};
use anyhow::Result;

/// Clients at once.
const CLIENTS: usize = 64;
/// Slots that nobody fills.
const SLOTS: u32 = 60_000;

#[derive(Default)]
struct Sum {
    outcome: Outcome,
    cpu_s: f64,
    rates: Vec<f64>,
}

impl Sum {
    fn rate(&self) -> f64 {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
    fn cpu_us(&self) -> f64 {
        self.cpu_s / self.outcome.all_requests as f64 * 1e6
    }
}

/// Measures both kinds of answers and prints the tables.
pub fn run(kinds: &[Kind], extent: &Extent) -> Result<()> {
    let mut running = Vec::new();
    for kind in kinds {
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
        let (rate, cpu) = sums.last().map_or((f64::NAN, f64::NAN), |ours| (ours.rate(), ours.cpu_us()));
        for ((balancer, _), sum) in running.iter().zip(&sums) {
            println!(
                "| {} | {:.0} | {:.2} | {:.2} / {:.2} | {:.0} | {:.2} | {} |",
                balancer.name,
                sum.rate(),
                rate / sum.rate(),
                sum.outcome.first_ms(0.5),
                sum.outcome.first_ms(0.99),
                sum.cpu_us(),
                cpu / sum.cpu_us(),
                sum.outcome.errors
            );
            if let Some(error) = &sum.outcome.error {
                eprintln!("{}: {error}", balancer.name);
            }
        }
    }
    Ok(())
}

fn round(balancer: &Balancer, answer: Answer, extent: &Extent, sum: &mut Sum) -> Result<()> {
    let request = answer.request(MODEL, balancer.key.as_deref());
    let before = balancer.cpu_s()?;
    let outcome = load::run(balancer.at, &request, CLIENTS, extent.round)?;
    sum.cpu_s += balancer.cpu_s()? - before;
    sum.rates.push(match answer {
        Answer::Unary => outcome.per_second(),
        Answer::Stream => outcome.events_per_second(),
    });
    sum.outcome.add(outcome);
    Ok(())
}

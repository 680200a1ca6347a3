//! The choice of the engine: requests that come by chance, engines that differ, and the time to the first token.
//!
//! All balancers run at once, each with engines of its own and the same arrivals, so that what else the machine does
//! strikes all alike. The engines' pace is set by timers: together they use a small part of the machine.

use crate::{
    Extent,
    balancer::{Backend, Balancer, Kind, MODEL},
    load::{self, Connection, Outcome},
    mesh::Engine,
};
use anyhow::Result;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::task::JoinSet;

/// Tokens of each answer.
pub const TOKENS: u32 = 60;
/// Requests a second.
const RATE: f64 = 20.0;
/// Longest that one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slots and tokens a second of an engine.
type Speed = (u32, u32);

/// Different in slots and pace.
pub const UNEQUAL: [Speed; 3] = [(8, 100), (8, 50), (4, 100)];
/// Equal but for one that has become slow.
pub const ONE_SLOW: [Speed; 3] = [(8, 100), (8, 100), (8, 25)];

/// Measures all kinds and prints the table.
pub fn run(kinds: &[Kind], speeds: &[Speed], extent: &Extent) -> Result<()> {
    let mut seen: Vec<Outcome> = kinds.iter().map(|_| Outcome::default()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for seed in 0..extent.seeds {
        // Fresh for each seed: none lives on what it has learned.
        let mut engines = Vec::new();
        let mut balancers = Vec::new();
        for kind in kinds {
            let backends = start(speeds)?;
            balancers.push(Arc::new(kind.start(&backends)?));
            engines.push(backends);
        }
        let arrivals: Arc<[Duration]> = arrivals(seed, extent.requests).into();
        runtime.block_on(async {
            let running =
                balancers.iter().map(|balancer| tokio::spawn(offer(balancer.clone(), arrivals.clone(), seed)));
            for (task, seen) in running.collect::<Vec<_>>().into_iter().zip(&mut seen) {
                seen.add(task.await?);
            }
            anyhow::Ok(())
        })?;
    }
    let ours = seen.last().map(|seen| (mean_ms(seen), seen.first_ms(0.99)));
    let (mean, p99) = ours.unwrap_or((f64::NAN, f64::NAN));
    println!(
        "Poisson arrivals, {RATE} requests/s, {} requests to each, {} seeds. Milliseconds to the first token.\n",
        extent.requests * extent.seeds as usize,
        extent.seeds
    );
    println!(
        "| | mean | p50 | p99 | **dunlin's mean / its** | **dunlin's p99 / its** | failed |\n|---|---|---|---|---|---|---|"
    );
    for (kind, seen) in kinds.iter().zip(&seen) {
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {} |",
            kind.name,
            mean_ms(seen),
            seen.first_ms(0.5),
            seen.first_ms(0.99),
            mean / mean_ms(seen),
            p99 / seen.first_ms(0.99),
            seen.errors
        );
        if let Some(error) = &seen.error {
            eprintln!("{}: {error}", kind.name);
        }
    }
    Ok(())
}

/// The mean time to the first token, milliseconds.
fn mean_ms(seen: &Outcome) -> f64 {
    seen.first_us.iter().map(|&us| f64::from(us)).sum::<f64>() / seen.first_us.len() as f64 / 1000.0
}

fn start(speeds: &[Speed]) -> Result<Vec<Backend>> {
    let start = |&(slots, pace): &Speed| Ok(Backend { engine: Engine::with_slots(MODEL, pace, slots)?, slots });
    speeds.iter().map(start).collect()
}

/// When requests come, from the start.
fn arrivals(seed: u64, count: usize) -> Vec<Duration> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut at = Duration::ZERO;
    let mut next = || {
        // Inverse of the exponential distribution's function.
        at += Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / RATE);
        at
    };
    (0..count).map(|_| next()).collect()
}

/// Sends each request when it is due, whatever became of the others.
async fn offer(balancer: Arc<Balancer>, arrivals: Arc<[Duration]>, seed: u64) -> Outcome {
    let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
    let mut answers = JoinSet::new();
    let start = tokio::time::Instant::now();
    for (number, &at) in arrivals.iter().enumerate() {
        tokio::time::sleep_until(start + at).await;
        // No two alike: nobody gains from having seen a prompt before.
        let question = format!("{seed}-{number}: why do dunlins flock?");
        let request = load::asking(&question, MODEL, true, TOKENS, balancer.key.as_deref());
        let (target, idle) = (balancer.at, idle.clone());
        answers.spawn(async move {
            let taken = || idle.lock().unwrap_or_else(PoisonError::into_inner);
            let mut connection = taken().pop();
            let asked = load::ask(target, &mut connection, &request, TOKENS);
            let one = tokio::time::timeout(PATIENCE, asked).await.map_err(anyhow::Error::from).flatten();
            taken().extend(connection);
            one
        });
    }
    let mut seen = Outcome::default();
    while let Some(answer) = answers.join_next().await {
        match answer.map_err(anyhow::Error::from).flatten() {
            Ok(one) => seen.answered(&one),
            Err(error) => seen.failed(error.to_string()),
        }
    }
    seen
}

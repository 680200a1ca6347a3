//! The choice of the engine: requests that come by chance, engines that differ, and the time to the first token.
//!
//! All balancers run at once, each with engines of its own and the same arrivals, so that what else the machine does
//! strikes all alike. The engines' pace is set by timers: together they use a small part of the machine. Beside them
//! stand two queues for the same arrivals, reckoned: what is above the ideal one is what a choice, a hop or the machine
//! costs, and what lies between the two is all that better choices can be worth beside a balancer that queues by itself.

mod ideal;

use crate::{
    Extent,
    balancer::{Backend, Balancer, Kind, MODEL},
    load::{self, Connection, Outcome},
    mesh::Engine,
};
use anyhow::{Context as _, Result};
use ideal::Choice;
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

/// Tokens of each answer.
pub const TOKENS: u32 = 60;
/// Requests a second at which engines fill up.
pub const BUSY: f64 = 20.0;
/// The same where each finds all of them idle: what is left is the way there and back.
pub const LIGHT: f64 = 2.0;
/// A first token later than this was waited for: no way there and back takes so long, on a machine that does little else.
const WAITED_MS: f64 = 50.0;
/// Longest page of an engine.
const PAGE_BYTES: u64 = 1 << 20;
/// Longest that one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Slots and tokens a second of an engine.
type Speed = (u32, u32);

/// Different in slots and pace.
pub const UNEQUAL: [Speed; 3] = [(8, 100), (8, 50), (4, 100)];
/// Equal but for one that has become slow.
pub const ONE_SLOW: [Speed; 3] = [(8, 100), (8, 100), (8, 25)];

/// Measures all kinds at `rate` requests a second and prints the table.
pub fn run(kinds: &[Kind], speeds: &[Speed], rate: f64, extent: &Extent) -> Result<()> {
    let mut seen: Vec<Outcome> = kinds.iter().map(|_| Outcome::default()).collect();
    let mut taken = vec![vec![0; speeds.len()]; kinds.len()];
    let mut reckoned = [("the ideal queue", Choice::Fastest), ("one queue that knows no pace", Choice::Fewest)]
        .map(|one| (one, Vec::new()));
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
        let arrivals: Arc<[Duration]> = arrivals(seed, rate, extent.requests).into();
        for ((_, choice), waits) in &mut reckoned {
            let new = ideal::waits(speeds, &arrivals, *choice);
            waits.extend(new.into_iter().map(|wait| wait.as_secs_f64() * 1e3));
        }
        runtime.block_on(async {
            // What each has been asked before by the balancer itself.
            for (taken, engines) in taken.iter_mut().zip(&engines) {
                for (taken, backend) in taken.iter_mut().zip(engines) {
                    *taken -= finished(&backend.engine).await?;
                }
            }
            let running =
                balancers.iter().map(|balancer| tokio::spawn(offer(balancer.clone(), arrivals.clone(), seed)));
            for (task, seen) in running.collect::<Vec<_>>().into_iter().zip(&mut seen) {
                seen.add(task.await?);
            }
            for (taken, engines) in taken.iter_mut().zip(&engines) {
                for (taken, backend) in taken.iter_mut().zip(engines) {
                    *taken += finished(&backend.engine).await?;
                }
            }
            anyhow::Ok(())
        })?;
    }
    let ours = seen.last().map(|seen| (mean_ms(seen), seen.first_ms(0.99)));
    let (mean, p99) = ours.unwrap_or((f64::NAN, f64::NAN));
    println!(
        "Poisson arrivals, {rate} requests/s, {} requests to each, {} seeds. Milliseconds to the first token.\n",
        extent.requests * extent.seeds as usize,
        extent.seeds
    );
    println!(
        "| | mean | p50 | p99 | later than {WAITED_MS} ms | **dunlin's mean / its** | **dunlin's p99 / its** | to each engine | failed |\n\
         |---|---|---|---|---|---|---|---|---|"
    );
    for ((name, _), waits) in &mut reckoned {
        waits.sort_by(f64::total_cmp);
        let its_mean = waits.iter().sum::<f64>() / waits.len() as f64;
        let its_p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or(f64::NAN);
        println!(
            "| {name}, reckoned | {its_mean:.1} | 0 | {its_p99:.0} | {:.1} % | {:.2} | {:.2} | | |",
            share_later(waits.iter().copied()),
            mean / its_mean,
            p99 / its_p99,
        );
    }
    for ((kind, seen), taken) in kinds.iter().zip(&seen).zip(&taken) {
        println!(
            "| {} | {:.1} | {:.1} | {:.0} | {:.1} % | {:.2} | {:.2} | {} | {} |",
            kind.name,
            mean_ms(seen),
            seen.first_ms(0.5),
            seen.first_ms(0.99),
            share_later(seen.first_us.iter().map(|&us| f64::from(us) / 1e3)),
            mean / mean_ms(seen),
            p99 / seen.first_ms(0.99),
            shares(taken),
            seen.errors
        );
        seen.tell_failures(&kind.name);
    }
    Ok(())
}

/// The mean time to the first token, milliseconds.
fn mean_ms(seen: &Outcome) -> f64 {
    seen.first_us.iter().map(|&us| f64::from(us)).sum::<f64>() / seen.first_us.len() as f64 / 1000.0
}

/// Percent of them later than [`WAITED_MS`].
fn share_later(ms: impl ExactSizeIterator<Item = f64>) -> f64 {
    let all = ms.len() as f64;
    ms.filter(|&ms| ms > WAITED_MS).count() as f64 / all * 100.0
}

/// How the requests were shared out, percent.
fn shares(taken: &[i64]) -> String {
    let all = taken.iter().sum::<i64>().max(1) as f64;
    let shares: Vec<_> = taken.iter().map(|&one| format!("{:.0}", one as f64 / all * 100.0)).collect();
    shares.join(" / ")
}

/// Answers that an engine has given so far, by its own count.
async fn finished(engine: &Engine) -> Result<i64> {
    let page = page(engine.at, "/metrics").await?;
    let counts = page.lines().filter(|line| line.starts_with("vllm:request_success_total"));
    let counts: Option<Vec<f64>> = counts.map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    Ok(counts.context("the engine counts no answers")?.iter().sum::<f64>() as i64)
}

/// A small page, whole.
async fn page(target: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(target).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.take(PAGE_BYTES).read_to_string(&mut page).await?;
    Ok(page)
}

fn start(speeds: &[Speed]) -> Result<Vec<Backend>> {
    let start = |&(slots, pace): &Speed| Ok(Backend { engine: Engine::with_slots(MODEL, pace, slots)?, slots });
    speeds.iter().map(start).collect()
}

/// When requests come, from the start.
fn arrivals(seed: u64, rate: f64, count: usize) -> Vec<Duration> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut at = Duration::ZERO;
    let mut next = || {
        // Inverse of the exponential distribution's function.
        at += Duration::from_secs_f64(-(1.0 - rng.random::<f64>()).ln() / rate);
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

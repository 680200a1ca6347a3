//! Routing policies compared in a simulated mesh: `cargo bench --bench routelab [-- --proxies 1,16 --only NAME]`.
//!
//! Prints mean and p99 of the time to first token for each policy, scenario and number of proxies, pooled over seeds, and
//! how ours stands to the best of the others and to the ideal queue.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a benchmark: it prints, and ends at the first thing that is not as it should be"
)]

#[path = "lab.rs"]
mod lab;

use dunlin_proxy::prompt::Prompt;
use lab::{
    run::{Policy, run},
    scenario,
    summary::Summary,
};
use std::{hint::black_box, time::Instant};

const PROXIES: [usize; 3] = [1, 4, 16];
const SEEDS: u64 = 5;
const REQUESTS: usize = 6_000;

fn main() {
    cost();
    let only = option("--only");
    let proxies: Vec<usize> = match option("--proxies") {
        Some(list) => list.split(',').map(|n| n.parse().expect("--proxies takes numbers with commas")).collect(),
        None => PROXIES.to_vec(),
    };
    let seeds = option("--seeds").map_or(SEEDS, |n| n.parse().expect("--seeds takes a number"));
    let names: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
    println!("Time to first token, ms: mean / p99, {REQUESTS} requests x {seeds} seeds\n");
    println!("| scenario | proxies | {} | to best | to ideal |", names.join(" | "));
    println!("|{}", "---|".repeat(names.len() + 4));
    for scenario in scenario::all(REQUESTS) {
        if only.as_deref().is_some_and(|only| !scenario.name.contains(only)) {
            continue;
        }
        for &count in &proxies {
            let results: Vec<Summary> =
                Policy::ALL.iter().map(|&policy| pooled(&scenario, policy, count, seeds)).collect();
            println!("| {} | {count} | {}", scenario.name, row(&results));
            if scenario.prompts.shared > 0 {
                let rates: Vec<_> = results.iter().map(|one| format!("{:.0} %", one.hit_rate() * 100.0)).collect();
                println!("| – prompts found in prefix caches | {count} | {} | | |", rates.join(" | "));
            }
        }
    }
}

/// What a request of 4 KiB costs the proxy's hot path, by this machine's clock.
fn cost() {
    const TIMES: u32 = 20_000;
    let text = vec![b'x'; 4096];
    let started = Instant::now();
    for n in 0..TIMES {
        black_box(Prompt::of(n % 64, [black_box(&text[..])]));
    }
    let outline = started.elapsed() / TIMES;
    let mut hot = lab::proxy::Hot::new(&scenario::all(1)[0]);
    let started = Instant::now();
    for n in 0..TIMES {
        black_box(hot.choose(n % 64, black_box(&text)));
    }
    let choice = started.elapsed() / TIMES;
    println!("A prompt of 4 KiB: outline {outline:?}; outline, choice of 4 replicas and end {choice:?}\n");
}

fn pooled(scenario: &scenario::Scenario, policy: Policy, proxies: usize, seeds: u64) -> Summary {
    let mut whole = Summary::default();
    for seed in 1..=seeds {
        whole.merge(run(scenario, policy, proxies, seed));
    }
    assert_eq!(whole.count(), REQUESTS * seeds as usize, "each request is answered once");
    whole
}

fn row(results: &[Summary]) -> String {
    let of = |policy: Policy| &results[Policy::ALL.iter().position(|known| *known == policy).expect("all were run")];
    let (ours, ideal) = (of(Policy::Ours), of(Policy::Ideal));
    let others = || Policy::ALL.iter().filter(|policy| !matches!(policy, Policy::Ours | Policy::Ideal)).map(|p| of(*p));
    let best = |value: fn(&Summary) -> f64| others().map(value).fold(f64::INFINITY, f64::min);
    let pair = |mean: f64, p99: f64| format!("{mean:.2} / {p99:.2}");
    let cells = results.iter().map(|one| format!("{:.0} / {:.0}", one.mean(), one.p99())).collect::<Vec<_>>();
    format!(
        "{} | {} | {} |",
        cells.join(" | "),
        pair(ours.mean() / best(Summary::mean), ours.p99() / best(Summary::p99)),
        pair(ours.mean() / ideal.mean(), ours.p99() / ideal.p99()),
    )
}

fn option(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.nth(1)
}

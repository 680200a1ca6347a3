//! The ranking of routing policies in the simulated mesh of `benches/routelab`, with fixed seeds and fewer requests: the
//! same numbers on every machine.

#![allow(clippy::panic, reason = "a test")]

#[allow(dead_code, unreachable_pub, clippy::expect_used, reason = "made for the benchmark, which uses all of it")]
#[path = "../benches/routelab/lab.rs"]
mod lab;

use lab::{
    run::{Policy, run},
    scenario::{self, Scenario},
    summary::Summary,
};

const REQUESTS: usize = 1_000;
/// One seed alone has a p99 of its ten slowest requests.
const SEEDS: [u64; 3] = [1, 2, 3];

fn scenario(name: &str) -> Scenario {
    let found = scenario::all(REQUESTS).into_iter().find(|scenario| scenario.name == name);
    found.unwrap_or_else(|| panic!("{name} is not in scenario.rs"))
}

fn pooled(scenario: &Scenario, policy: Policy, proxies: usize) -> Summary {
    let mut whole = Summary::default();
    for seed in SEEDS {
        whole.merge(run(scenario, policy, proxies, seed));
    }
    assert_eq!(whole.count(), REQUESTS * SEEDS.len(), "each request is answered once");
    whole
}

/// Ours has the lowest mean and p99 time to first token, or within 5 % of it, and is within `of_ideal` of the ideal queue.
fn wins(name: &str, proxies: usize, of_ideal: f64) {
    let scenario = scenario(name);
    let ours = pooled(&scenario, Policy::Ours, proxies);
    for policy in Policy::ALL {
        let other = pooled(&scenario, policy, proxies);
        let bound = if policy == Policy::Ideal { of_ideal } else { 1.05 };
        let (mean, p99) = (ours.mean() / other.mean(), ours.p99() / other.p99());
        assert!(mean <= bound && p99 <= bound, "{name}, {proxies} proxies: {mean:.2} / {p99:.2} of {}", policy.name());
    }
}

#[test]
fn unequal_engines() {
    wins("unequal", 1, 1.3);
    wins("unequal", 16, 1.6);
}

#[test]
fn an_engine_that_turns_slow() {
    wins("one turns 4x slower", 4, 1.6);
}

#[test]
fn bursts_between_reports() {
    wins("bursts between reports", 1, 1.3);
    wins("bursts between reports", 16, 1.6);
}

#[test]
fn shared_prefixes() {
    wins("shared prefixes", 1, 1.3);
    let rate = |policy, proxies| pooled(&scenario("shared prefixes"), policy, proxies).hit_rate();
    assert!(rate(Policy::Ours, 1) >= 0.9 * rate(Policy::Ideal, 1));
    let (ours, round_robin) = (rate(Policy::Ours, 16), rate(Policy::RoundRobin, 16));
    assert!(ours >= 1.2 * round_robin, "{ours} {round_robin}");
}

#[test]
fn adapters() {
    wins("adapters", 4, 1.6);
}

#[test]
fn stale_reports() {
    wins("stale reports", 1, 1.3);
    wins("stale reports", 16, 1.6);
}

#[test]
fn a_run_is_the_same_every_time() {
    let scenario = scenario("unequal");
    let once = run(&scenario, Policy::Ours, 4, 7);
    let again = run(&scenario, Policy::Ours, 4, 7);
    assert_eq!((once.mean(), once.p99(), once.refused), (again.mean(), again.p99(), again.refused));
}

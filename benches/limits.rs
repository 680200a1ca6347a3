//! What a key costs each request: found, compared, its limits taken on a warm lease, and given back.
//!
//! `cargo bench --bench limits`. Prints processor time of the thread, not time of the clock.

use dunlin_node::{clock, mesh, state::StateDir};
use dunlin_protocol::id::Roles;
use dunlin_proxy::{
    keys::{Keys, Limits, NewKey},
    warm_lease,
};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

/// Keys of the mesh, asked for in turns: enough to miss the processor's nearest caches. Each is signed and stored, which takes
/// longer than the measurement.
const KEYS: usize = 500;
const REQUESTS: usize = 400_000;
const ROUNDS: usize = 7;

fn processor_ns() -> i128 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("dunlin-bench-limits-{}", std::process::id()));
    let state = StateDir::open(folder.join("home"))?;
    mesh::create(&state, Roles::NONE, None, clock::unix_s())?;
    let keys = Keys::open(&folder.join("keys.db"))?;
    keys.belong_to_state(mesh::load(&state, clock::unix_s())?)?;
    let made: Vec<String> = (0..KEYS)
        .map(|_| {
            let limit = Some(u32::MAX);
            let limits = Limits {
                requests_per_minute: limit,
                tokens_per_minute: limit,
                concurrent_requests: limit,
                ..Limits::default()
            };
            keys.make(NewKey { limits, ..NewKey::default() }).map(|(created, _)| created.key)
        })
        .collect::<Result<_, _>>()?;
    let mut ask = warm_lease(keys);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = processor_ns();
        for n in 0..REQUESTS {
            let passed = ask(black_box(&made[n * 7919 % made.len()]));
            assert!(passed, "the limits are out of reach");
        }
        rounds.push((processor_ns() - start) as f64 / REQUESTS as f64);
    }
    rounds.sort_by(f64::total_cmp);
    println!(
        "auth and limits: {:.0} ns of processor a request (median of {ROUNDS}; {} keys)",
        rounds[ROUNDS / 2],
        made.len()
    );
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

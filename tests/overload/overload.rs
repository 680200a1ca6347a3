//! Several times as much is asked as the mesh can answer. What it can, it does; the rest is refused at once with when to
//! come back; whoever asks for no more than its share is not refused; and nothing grows.
//!
//! ```sh
//! DUNLIN_OVERLOAD_SECONDS=600 DUNLIN_OVERLOAD_TIMES=5 cargo test --test e2e -- --nocapture overload
//! ```

pub(crate) mod asker;
pub(crate) mod memory;

use crate::harness::{
    engine::DemoEngine,
    node::{Mesh, Node},
    sandbox::Sandbox,
    skipped,
};
use asker::Asker;
use memory::Memory;
use std::time::{Duration, Instant};

/// Two engines of so many slots, an answer taking 0.4 s: 20 a second at best.
const SLOTS: &str = "4";
const BEST: f64 = 20.0;
/// A machine on which a smaller part of that comes out is too busy to say anything about the mesh.
const CALM: f64 = 0.8;
const ENGINE: [&str; 4] = ["--tokens-per-second", "50", "--slots", SLOTS];
const TOKENS: u32 = 20;
/// Clients that ask one question after another, twice as many as there are slots: what comes of them is the peak.
const CLOSED: usize = 16;
/// How long that is measured; the same before it doesn't count.
const PEAK: Duration = Duration::from_secs(4);
const SECONDS: u64 = 12;
const TIMES: u64 = 5;
/// What the modest client asks for, of the peak: less than its share of two.
const MODEST: f64 = 0.25;
/// What a process may grow over the second half of the time.
const GROWTH: f64 = 0.1;
const GROWTH_KIB: u64 = 16 << 10;

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

#[test]
fn overload() {
    let time = Duration::from_secs(from_environment("DUNLIN_OVERLOAD_SECONDS", SECONDS));
    let times = from_environment("DUNLIN_OVERLOAD_TIMES", TIMES);
    asker::open_many_files();
    let sandbox = Sandbox::new();
    let engines = ["a", "b"].map(|name| DemoEngine::start(&sandbox, &format!("engine-{name}"), &ENGINE));
    let mesh = Mesh::new(&sandbox, &[]);
    let agents: Vec<Node<'_>> =
        engines.iter().enumerate().map(|(n, it)| mesh.agent_of(&format!("agent-{n}"), it)).collect();
    mesh.proxy.wait_for_replicas("demo", 2);
    let greedy = Asker::new(&mesh.endpoint, TOKENS);
    let mut modest = mesh.endpoint.clone();
    modest.key = Some(mesh.proxy.home.ask(&["keys", "create"]));
    let modest = Asker::new(&modest, TOKENS);

    greedy.closed(CLOSED, PEAK / 2);
    let measured = || per_second(greedy.closed(CLOSED, PEAK).whole, PEAK);
    let peak = measured();
    println!("peak {peak:.1}/s with {CLOSED} clients; now {times} times that for {time:?}");

    let processes = std::iter::once(("proxy", &mesh.proxy)).chain(agents.iter().map(|agent| ("agent", agent)));
    let memory = Memory::watch(processes.map(|(name, node)| (name, node.process.id())).collect(), time);
    let start = Instant::now();
    let (refused, modest) = std::thread::scope(|scope| {
        let others = scope.spawn(|| greedy.open(peak * (times as f64 - MODEST), time));
        let modest = modest.open(peak * MODEST, time);
        (others.join().unwrap(), modest)
    });
    let goodput = per_second(refused.whole + modest.whole, start.elapsed());
    let grown = memory.finish();
    let after = measured();
    println!("greedy: {refused}\nmodest: {modest}\npeak afterwards {after:.1}/s");
    println!("goodput {goodput:.1}/s, {:.1} % of the peak", 100.0 * goodput / peak);
    for process in &grown {
        println!("{process}");
    }
    if peak.min(after) < CALM * BEST {
        skipped(&format!("{peak:.1} and {after:.1} of {BEST} answers a second came without overload"));
    } else {
        assert!(goodput >= 0.9 * peak, "{goodput:.1} of {peak:.1} a second");
        assert!(refused.refused > 0, "that was no overload: {refused}");
    }
    for counts in [&refused, &modest] {
        assert!(counts.other == 0, "{counts}: {:#?}", counts.shown);
    }
    assert!(refused.late <= refused.refused / 100, "refused late: {refused}");
    assert!(modest.refused == 0 && modest.whole > 0, "{modest}");
    for process in grown {
        let most = process.middle_kib + GROWTH_KIB.max((process.middle_kib as f64 * GROWTH) as u64);
        assert!(process.end_kib <= most, "{process}");
    }
}

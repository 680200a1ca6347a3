//! Replicas are killed, stopped, filled, cut off, drained and added at random while clients ask, and every character of
//! every answer is checked.
//!
//! ```sh
//! DUNLIN_CHAOS_SECONDS=600 DUNLIN_CHAOS_SEED=7 cargo test --test e2e -- --nocapture chaos
//! ```
//!
//! `DUNLIN_CHAOS_REQUESTS` goes on with scripts of so many seconds until so many requests have been answered,
//! `DUNLIN_CHAOS_CLIENTS` says how many ask at once, and `DUNLIN_TEST_EXECUTABLE` may name a release's executable.

mod clients;
mod counts;
mod ground;
mod script;

use crate::harness::{http::Endpoint, node::Node, sandbox::Sandbox};
use clients::Clients;
use ground::{Ground, Replica};
use script::{Step, kinds, script};
use std::time::{Duration, Instant};

const REPLICAS: usize = 4;
const CLIENTS: usize = 8;
const TOKENS: u32 = 40;
/// Shorter than in production, so that faults that last seconds are long.
const PROXY: [&str; 4] = ["--first-byte-timeout", "3", "--inter-token-timeout", "2"];
/// A stream that has been silent for so long is late: shorter gaps are those of streams whose end was seen.
const LATE: Duration = Duration::from_millis(250);
/// Answers take half a second, so most faults meet some in their middle; few tokens, since they are what costs.
const ENGINE: [&str; 4] = ["--tokens-per-second", "80", "--slots", "16"];
const SLOTS: usize = 16;
const SECONDS: u64 = 60;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Carries the script out, each fault's end included, and says what it does.
fn play<'a>(steps: &[Step], replicas: &mut [Replica<'a>], ground: &Ground<'a>, begun: Instant) {
    let mut moments: Vec<(Duration, bool, Step)> =
        steps.iter().flat_map(|step| [(step.at, true, *step), (step.at + step.lasts, false, *step)]).collect();
    moments.sort_by_key(|(at, ..)| *at);
    let start = Instant::now();
    // To begin and to end a fault takes time, by which all that follows is later: the script's pauses hold.
    let mut late = Duration::ZERO;
    for (at, begins, step) in moments {
        let due = at + late;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        late += start.elapsed().saturating_sub(due);
        let Step { replica, fault, .. } = step;
        let verb = if begins { "begin" } else { "end" };
        println!("{:8.2?} {verb} {fault:?} of {replica}", begun.elapsed());
        match begins {
            true => replicas[replica].begin(fault, ground),
            false => replicas[replica].end(fault, ground),
        }
    }
}

#[test]
fn chaos() {
    let seconds = from_environment("DUNLIN_CHAOS_SECONDS").unwrap_or(SECONDS);
    let requests = from_environment("DUNLIN_CHAOS_REQUESTS").map_or(0, |n| usize::try_from(n).unwrap());
    let seed = from_environment("DUNLIN_CHAOS_SEED").unwrap_or_else(rand::random);
    let clients = from_environment("DUNLIN_CHAOS_CLIENTS").map_or(CLIENTS, |n| usize::try_from(n).unwrap());
    println!("seed {seed}, {seconds} s, {clients} clients");
    let sandbox = Sandbox::new();
    let ground = Ground::new(&sandbox, 1 + REPLICAS + 1);
    let (proxy, endpoint) = proxy(&ground);
    let mut replicas: Vec<_> = (0..=REPLICAS).map(|number| Replica::new(&ground, &proxy, number)).collect();
    replicas[..REPLICAS].iter_mut().for_each(|replica| replica.start(&ground));
    let all_are_well = || proxy.wait_for_exact("demo", REPLICAS as u64);
    all_are_well();

    let reference = ground.engine("reference", 0, None, &["--tokens-per-second", "0"]);
    let load = ground.on(0, || Clients::start(&endpoint, &reference.direct(), clients, TOKENS));
    let (mut steps, begun) = (Vec::new(), Instant::now());
    for round in 0.. {
        let more = script(seed.wrapping_add(round), REPLICAS, ground.has_network(), Duration::from_secs(seconds));
        play(&more, &mut replicas, &ground, begun);
        steps.extend(more);
        all_are_well();
        if load.count() >= requests {
            break;
        }
        println!("{:8.2?} {} requests so far", begun.elapsed(), load.count());
    }
    let counts = load.finish();
    let streams = ground.on(0, || tries_and_losses(&endpoint));
    println!(
        "{} faults in {:.0?}: {:?}\n{counts}\n{}",
        steps.len(),
        begun.elapsed(),
        kinds(&steps),
        streams.join("\n")
    );
    assert!(counts.is_right(), "seed {seed}, {seconds} s\n{}", counts.shown.join("\n"));
    assert!(counts.requests() >= requests);
    assert!(steps.len() < 10 || counts.continued() > 0, "none went on: {streams:?}");
}

/// A proxy that also issues, and its endpoint.
fn proxy<'a>(ground: &Ground<'a>) -> (Node<'a>, Endpoint) {
    let home = ground.home("proxy", 0);
    home.ask(&["mesh", "create", "--name", "proxy"]);
    let listen = ground.listen(0);
    let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
    let proxy = home.start(&[&["proxy", "--http", "127.0.0.1:0"], &listen[..], &PROXY].concat());
    let endpoint = proxy.endpoint();
    (proxy, endpoint)
}

/// What the proxy counted of requests that were asked again, and of streams that lost their replica.
fn tries_and_losses(endpoint: &Endpoint) -> Vec<String> {
    let page = endpoint.get("/metrics").unwrap().text();
    let counts = ["dunlin_proxy_lost_streams_total", "dunlin_proxy_retries_total", "dunlin_proxy_ejections_total"];
    page.lines().filter(|line| counts.iter().any(|count| line.starts_with(count))).map(str::to_owned).collect()
}

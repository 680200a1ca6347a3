//! Dunlin beside other ways to put several engines behind one endpoint: the same engines, the same clients, one run.
//!
//! `examples/bench/peers.sh` installs what can be installed and calls this. Prints Markdown. In the environment:
//! `DUNLIN_PEERS_PATH` folders in which the others are looked for, before `PATH`; `DUNLIN_PEERS_ONLY=routing,slow,light,path`
//! for some parts; `DUNLIN_PEERS_KINDS=dunlin,haproxy` for those whose names begin so; `DUNLIN_PEERS_OTHER=FILE:FILE` further
//! Dunlin executables to measure beside this build's; `DUNLIN_BENCH_QUICK=1` for rough numbers within minutes;
//! `DUNLIN_BENCH_VERBOSE=1` for the processes' own output.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "peers/balancer.rs"]
mod balancer;
#[path = "hop/child.rs"]
#[allow(dead_code, reason = "shared with the hop's benchmark")]
mod child;
#[path = "peers/data_path.rs"]
mod data_path;
#[path = "hop/folder.rs"]
mod folder;
#[path = "hop/load.rs"]
#[allow(dead_code, reason = "shared with the hop's benchmark")]
mod load;
#[path = "hop/mesh.rs"]
#[allow(dead_code, reason = "shared with the hop's benchmark")]
mod mesh;
#[path = "hop/rounds.rs"]
#[allow(dead_code, reason = "shared with the hop's benchmark")]
mod rounds;
#[path = "peers/routing.rs"]
mod routing;

use anyhow::Result;
use std::time::Duration;

/// How much is measured.
pub struct Extent {
    /// Requests of one seed.
    pub requests: usize,
    /// The same where few come.
    pub light: usize,
    pub seeds: u64,
    pub rounds: usize,
    pub round: Duration,
}

fn main() -> Result<()> {
    let quick = std::env::var_os("DUNLIN_BENCH_QUICK").is_some();
    let extent = if quick {
        Extent { requests: 400, light: 40, seeds: 1, rounds: 1, round: Duration::from_secs(1) }
    } else {
        Extent { requests: 2000, light: 100, seeds: 3, rounds: 5, round: Duration::from_secs(2) }
    };
    let only = std::env::var("DUNLIN_PEERS_ONLY").unwrap_or_else(|_| "routing,slow,light,path".into());
    let wanted = |part: &str| only.split(',').any(|name| name == part);
    let mut kinds = balancer::installed();
    if let Ok(names) = std::env::var("DUNLIN_PEERS_KINDS") {
        kinds.retain(|kind| names.split(',').any(|name| kind.name.starts_with(name)));
    }
    let names: Vec<_> = kinds.iter().map(|kind| kind.name.as_str()).collect();
    println!("# Dunlin beside others\n\nMeasured: {}.", names.join(", "));
    if wanted("routing") {
        println!("\n## Three unequal engines\n");
        println!("8 slots at 10 ms a token, 8 at 20, 4 at 10; answers of {} tokens.\n", routing::TOKENS);
        routing::run(&kinds, &routing::UNEQUAL, routing::BUSY, &extent)?;
    }
    if wanted("slow") {
        println!("\n## One of three engines four times slower\n");
        println!("8 slots at 10 ms a token, 8 at 10, 8 at 40; answers of {} tokens.\n", routing::TOKENS);
        routing::run(&kinds, &routing::ONE_SLOW, routing::BUSY, &extent)?;
    }
    if wanted("light") {
        println!("\n## The way there and back\n");
        println!("The three unequal engines, mostly idle.\n");
        routing::run(&kinds, &routing::UNEQUAL, routing::LIGHT, &Extent { requests: extent.light, ..extent })?;
    }
    if wanted("path") {
        data_path::run(&kinds, &extent)?;
    }
    Ok(())
}

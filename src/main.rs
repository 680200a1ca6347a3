//! `dunlin`: self-hosted node, endpoint, and bootstrap command line of a peer-to-peer inference mesh.

mod args;
mod commands;
mod complete;
mod exit;
mod http;
mod logging;
mod output;
mod settings;
mod signals;
mod sse;

#[cfg(test)]
mod documented;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use std::process::ExitCode;

/// glibc's allocator takes 10 to 15 % more processor time for a request on the hop, and keeps what a burst of stalled
/// streams once needed (docs/benchmarks.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Ends the process where a shell asks.
    CompleteEnv::with_factory(args::Args::command).var(complete::VARIABLE).complete();
    let args = args::Args::parse();
    let service = args.command.service();
    let is_service = service.is_some();
    let threads = service.map_or(Ok(1), |(threads, config)| settings::worker_threads(threads, config));
    let ended = logging::start(is_service).map_err(anyhow::Error::from).and_then(|log| {
        let ended = runtime(threads?)?.block_on(commands::run(args));
        // What was logged comes before the error that ends it.
        drop(log);
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(output::Unwritten::is_unread) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// One thread carries a node unless told otherwise: waking tasks across threads costs a stream 25 to 40 % of its CPU
/// time (docs/benchmarks.md), and what a node does between two packets is short.
fn runtime(threads: usize) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    Ok(builder.enable_all().build()?)
}

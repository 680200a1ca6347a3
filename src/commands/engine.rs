//! `dunlin engine -- CMD`: an engine in a container of its own, for the agent in another of the same pod.

use crate::args::PodEngineArgs;
use anyhow::{Context, Result};
use dunlin_agent::{pod, shim};
use std::path::PathBuf;

pub(crate) async fn run(args: PodEngineArgs) -> Result<()> {
    let socket = match args.socket {
        Some(socket) => socket,
        None => {
            beside_this_executable().context("can't tell where this executable is; name the socket with --socket")?
        }
    };
    shim::run(shim::Config { socket, command: args.command, alone_after: args.alone_after }).await?;
    Ok(())
}

/// Where the agent left both.
pub(super) fn beside_this_executable() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(pod::SOCKET))
}

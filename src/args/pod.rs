//! Flags of what runs in the containers of a pod.

use super::values::seconds;
use clap::Args as ClapArgs;
use std::{path::PathBuf, time::Duration};

/// The first process of an engine's container.
#[derive(ClapArgs)]
pub(crate) struct EngineArgs {
    /// The agent's socket [default: agent.sock beside this executable]
    #[arg(long, env = "DUNLIN_SOCKET", value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// How long to wait for an agent that isn't there before the engine is started without its word, seconds
    #[arg(long, env = "DUNLIN_ALONE_AFTER", value_name = "SECONDS", default_value = "10", value_parser = seconds, hide_short_help = true)]
    pub(crate) alone_after: Duration,
    /// The engine's program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

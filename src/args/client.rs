//! Commands that ask a running node and end: listings, `top`, `chat`, `logs`.

use super::values::{duration, look_interval};
use crate::complete;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use dunlin_protocol::id::ModelId;
use std::time::Duration;

/// What every listing takes.
#[derive(ClapArgs)]
pub(crate) struct ListingArgs {
    /// How the listing is printed
    #[arg(long, env = "DUNLIN_OUTPUT", value_enum, default_value_t = Output::Human)]
    pub(crate) output: Output,
}

/// For a person or for a program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Tables.
    Human,
    /// One JSON document.
    Json,
}

#[derive(Subcommand)]
pub(crate) enum AdaptersCommand {
    /// List the adapters of the mesh's engines, loaded or not
    #[command(after_help = "Example:\n  dunlin adapters list --output json")]
    List(ListingArgs),
    /// Have the engines that may load an adapter load it
    #[command(after_help = "Example:\n  dunlin adapters load sql --on workshop")]
    Load {
        /// As clients name it
        adapter: ModelId,
        /// Only at this member: peer id or name, as `dunlin peers` shows them
        #[arg(long, value_name = "PEER", add = ArgValueCandidates::new(complete::members))]
        on: Option<String>,
    },
    /// Have them drop it
    #[command(after_help = "Example:\n  dunlin adapters unload sql")]
    Unload {
        /// As clients name it
        adapter: ModelId,
        /// Only at this member: peer id or name, as `dunlin peers` shows them
        #[arg(long, value_name = "PEER", add = ArgValueCandidates::new(complete::members))]
        on: Option<String>,
    },
}

#[derive(ClapArgs)]
pub(crate) struct TopArgs {
    /// Time between two looks, seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = look_interval)]
    pub(crate) interval: Duration,
}

#[derive(ClapArgs)]
pub(crate) struct ChatArgs {
    /// Model id [default: the only one there is]
    #[arg(add = ArgValueCandidates::new(complete::models))]
    pub(crate) model: Option<String>,
    /// What to ask; without it, the chat is interactive
    pub(crate) prompt: Vec<String>,
    /// Another endpoint instead of the mesh
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Key for --endpoint
    #[arg(long, env = "DUNLIN_KEY", hide_env_values = true)]
    pub(crate) key: Option<String>,
    /// Longest answer, tokens
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
}

#[derive(ClapArgs)]
pub(crate) struct LogsArgs {
    /// A model id, or a peer's id or name as `dunlin peers` shows them; with /INDEX one replica of that peer
    #[arg(add = ArgValueCandidates::new(complete::log_targets))]
    pub(crate) target: String,
    /// Go on as more is written
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Lines from the end, for each engine [default: 200, or all with --since or --previous]
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u32>,
    /// Only what was written within this time: 90s, 30m, 24h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// What the engine wrote before it was last started: why it crashed
    #[arg(short, long, conflicts_with = "follow")]
    pub(crate) previous: bool,
}

//! The endpoint's keys.

use super::ListingArgs;
use crate::complete;
use clap::{Args as ClapArgs, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use dunlin_protocol::id::Name;

/// Alone it lists, as the most harmless thing that can be meant.
#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: Option<KeysCommand>,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key and print it (the key alone, on standard output); it is not shown again
    #[command(after_help = "Example:\n  KEY=$(dunlin keys create --name editor)")]
    Create {
        /// What the key is for
        #[arg(long, default_value = "key")]
        name: Name,
    },
    /// List the keys, never their secrets
    #[command(after_help = "Examples:\n  dunlin keys list\n  dunlin keys list --output json")]
    List(ListingArgs),
    /// Refuse a key from now on
    #[command(after_help = "Example:\n  dunlin keys revoke ID")]
    Revoke {
        /// The id that `dunlin keys list` shows
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        id: String,
    },
}

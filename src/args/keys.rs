//! Keys, their tenants, and what models cost.

use super::{ListingArgs, values::duration};
use crate::complete;
use clap::{ArgGroup, Args as ClapArgs, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use dunlin_protocol::{id::Name, pattern::Pattern};
use std::{str::FromStr, time::Duration};

/// A value that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OrNone<T>(pub(crate) Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        text.parse().map(|value| Self(Some(value))).map_err(|_| "a number, or none".to_owned())
    }
}

/// A time from now, or none.
fn expiry(text: &str) -> Result<OrNone<Duration>, String> {
    if text == "none" { Ok(OrNone(None)) } else { duration(text).map(|time| OrNone(Some(time))) }
}

/// An amount of money.
fn amount(text: &str) -> Result<f64, String> {
    // JSON has neither infinity nor NaN: they would arrive as none at all.
    text.parse().ok().filter(|amount| (0.0..=1e12).contains(amount)).ok_or_else(|| "an amount, 0 or more".to_owned())
}

fn budget(text: &str) -> Result<OrNone<f64>, String> {
    if text == "none" { Ok(OrNone(None)) } else { amount(text).map(|amount| OrNone(Some(amount))) }
}

/// What a key may use, over all endpoints of the mesh together.
#[derive(ClapArgs, Default)]
pub(crate) struct LimitArgs {
    /// Requests in any 60 seconds; none: no limit
    #[arg(long, value_name = "N")]
    pub(crate) requests_per_minute: Option<OrNone<u32>>,
    /// Tokens of prompts and answers in any 60 seconds; none: no limit
    #[arg(long, value_name = "N")]
    pub(crate) tokens_per_minute: Option<OrNone<u32>>,
    /// Requests at the same time; none: no limit
    #[arg(long, value_name = "N")]
    pub(crate) concurrent_requests: Option<OrNone<u32>>,
    /// Tokens in a calendar month, UTC; none: no budget
    #[arg(long, value_name = "N")]
    pub(crate) monthly_tokens: Option<OrNone<u64>>,
    /// Cost in a calendar month, UTC, in the money of `dunlin prices`; none: no budget
    #[arg(long, value_name = "AMOUNT", value_parser = budget)]
    pub(crate) monthly_cost: Option<OrNone<f64>>,
    /// Who waits behind whom when all replicas are busy: higher goes first, 0 is usual
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) priority: Option<i8>,
    /// Word for people and programs, repeatable
    #[arg(long = "tag", value_name = "WORD", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// When the key ends: 30m, 24h, 90d from now; none: never
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    pub(crate) expires: Option<OrNone<Duration>>,
}

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
    #[command(after_help = "\
Examples:
  KEY=$(dunlin keys create --name editor)
  dunlin keys create --name ci --tenant search --model 'Qwen/*' --requests-per-minute 60 --expires 90d
  dunlin keys create --name ops --admin")]
    Create {
        /// What the key is for
        #[arg(long, default_value = "key")]
        name: Name,
        /// Whose key it is: a tenant that was made [default: default]
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Models that it may ask for, repeatable; `*` matches anything [default: all]
        #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
        models: Vec<Pattern>,
        #[command(flatten)]
        limits: Box<LimitArgs>,
        /// Make a key of the admin API, which opens nothing else
        #[arg(long)]
        admin: bool,
    },
    /// List the keys, never their secrets
    #[command(after_help = "Examples:\n  dunlin keys list\n  dunlin keys list --output json")]
    List(ListingArgs),
    /// Change a key; what is not named stays
    #[command(after_help = "\
Examples:
  dunlin keys set ID --requests-per-minute 120 --priority 5
  dunlin keys set ID --tokens-per-minute none --model any")]
    Set {
        /// The id that `dunlin keys list` shows
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        id: String,
        /// What the key is for
        #[arg(long)]
        name: Option<Name>,
        /// Models that it may ask for, repeatable; `any` alone: all
        #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
        models: Vec<Pattern>,
        #[command(flatten)]
        limits: Box<LimitArgs>,
    },
    /// Refuse a key from now on, on every endpoint; answers that are under way finish
    #[command(after_help = "Examples:\n  dunlin keys revoke ID\n  dunlin keys revoke ID --now")]
    Revoke {
        /// The id that `dunlin keys list` shows
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        id: String,
        /// End its answers that are under way too
        #[arg(long)]
        now: bool,
    },
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TenantsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TenantsCommand>,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
}

#[derive(Subcommand)]
pub(crate) enum TenantsCommand {
    /// Make a tenant, to which keys can belong
    #[command(after_help = "Example:\n  dunlin tenants create search --note 'the search team' --model 'Qwen/*'")]
    Create {
        /// Letters, digits and -_.
        name: String,
        /// For people
        #[arg(long, default_value = "")]
        note: String,
        /// Models that its keys may ask for at most, repeatable [default: all]
        #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
        models: Vec<Pattern>,
    },
    /// List the tenants
    #[command(after_help = "Examples:\n  dunlin tenants list\n  dunlin tenants list --output json")]
    List(ListingArgs),
    /// Change a tenant; what is not named stays
    #[command(after_help = "Example:\n  dunlin tenants set search --model any")]
    Set {
        /// Its name
        name: String,
        /// For people
        #[arg(long)]
        note: Option<String>,
        /// Models that its keys may ask for at most, repeatable; `any` alone: all
        #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
        models: Vec<Pattern>,
    },
    /// Refuse a tenant's keys until it is resumed
    #[command(after_help = "Example:\n  dunlin tenants suspend search")]
    Suspend {
        /// Its name
        name: String,
    },
    /// Take the keys of a suspended tenant again
    #[command(after_help = "Example:\n  dunlin tenants resume search")]
    Resume {
        /// Its name
        name: String,
    },
    /// Remove a tenant for ever
    #[command(after_help = "Examples:\n  dunlin tenants remove search\n  dunlin tenants remove search --keys")]
    Remove {
        /// Its name
        name: String,
        /// Revoke its keys with it
        #[arg(long)]
        keys: bool,
    },
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PricesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PricesCommand>,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
}

#[derive(Subcommand)]
pub(crate) enum PricesCommand {
    /// Say what models cost from now on, for a million tokens
    #[command(group = ArgGroup::new("amounts").args(["prompt", "completion", "cached"]).required(true).multiple(true))]
    #[command(after_help = "Example:\n  dunlin prices set 'Qwen/*' --prompt 0.2 --completion 0.6 --cached 0.02")]
    Set {
        /// Models; of several patterns that match one, the longest counts
        models: Pattern,
        /// A million tokens of prompts
        #[arg(long, value_name = "AMOUNT", default_value_t = 0.0, value_parser = amount)]
        prompt: f64,
        /// A million tokens of answers
        #[arg(long, value_name = "AMOUNT", default_value_t = 0.0, value_parser = amount)]
        completion: f64,
        /// A million tokens of prompts that came from a cache [default: as prompts]
        #[arg(long, value_name = "AMOUNT", value_parser = amount)]
        cached: Option<f64>,
    },
    /// List what models cost
    #[command(after_help = "Example:\n  dunlin prices list")]
    List(ListingArgs),
    /// Take a price away
    #[command(after_help = "Example:\n  dunlin prices remove 'Qwen/*'")]
    Remove {
        /// The pattern that `dunlin prices list` shows
        models: Pattern,
    },
}

/// How usage is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsageOutput {
    /// A table
    Human,
    /// One JSON document
    Json,
    /// Comma-separated values, RFC 4180
    Csv,
}

/// Length of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpanArg {
    /// Each hour
    Hour,
    /// Each day, UTC
    Day,
    /// Each month, UTC
    Month,
    /// The whole time
    Total,
}

#[derive(ClapArgs)]
pub(crate) struct UsageArgs {
    /// From so long ago on: 90m, 24h, 30d [default: the beginning of this month, UTC]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Sum by
    #[arg(long, value_enum, default_value_t = SpanArg::Total)]
    pub(crate) by: SpanArg,
    /// One key only, by its id
    #[arg(long, value_name = "ID", add = ArgValueCandidates::new(complete::keys))]
    pub(crate) key: Option<String>,
    /// One tenant only
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// One model only
    #[arg(long, value_name = "MODEL", add = ArgValueCandidates::new(complete::models))]
    pub(crate) model: Option<String>,
    /// How it is printed
    #[arg(long, env = "DUNLIN_OUTPUT", value_enum, default_value_t = UsageOutput::Human)]
    pub(crate) output: UsageOutput,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON knows neither infinity nor NaN: a budget of these would be none at all.
    #[test]
    fn amounts_are_numbers() {
        for wrong in ["NaN", "inf", "-inf", "-1", "1e13", "", "1,5"] {
            assert!(amount(wrong).is_err() && budget(wrong).is_err(), "{wrong}");
        }
        assert_eq!((amount("0.5"), budget("none"), budget("7")), (Ok(0.5), Ok(OrNone(None)), Ok(OrNone(Some(7.0)))));
    }
}

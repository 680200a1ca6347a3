//! The simulated engine by itself.

use super::{ThreadArgs, values::socket_address};
use clap::Args as ClapArgs;
use dunlin_protocol::id::ModelId;
use std::net::SocketAddr;

#[derive(ClapArgs)]
pub(crate) struct DemoEngineArgs {
    /// Address of its HTTP server
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8000", value_parser = socket_address)]
    pub(crate) http: SocketAddr,
    /// Model name, repeatable
    #[arg(long = "model", value_name = "MODEL", default_value = "demo", value_delimiter = ',')]
    pub(crate) models: Vec<ModelId>,
    /// What its text depends on beside the prompt: engines with the same root give the same answers [default: model]
    #[arg(long, value_name = "TEXT")]
    pub(crate) root: Option<String>,
    /// LoRA adapter of the first model, repeatable
    #[arg(long = "adapter", value_name = "MODEL", value_delimiter = ',')]
    pub(crate) adapters: Vec<ModelId>,
    /// Requests worked on at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) slots: u16,
    /// Time to first token of an empty prompt, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) ttft_ms: u64,
    /// Prefill time of each prompt token, microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub(crate) prefill_us: u64,
    /// Speed of each stream; 0 = as fast as it can
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    pub(crate) tokens_per_second: f64,
    /// KV cache, tokens
    #[arg(long, value_name = "N", default_value_t = 131_072)]
    pub(crate) kv_tokens: u32,
    /// Longest context, tokens
    #[arg(long, value_name = "N", default_value_t = 8_192)]
    pub(crate) context: u32,
    /// Keep no prefix cache
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Fault: accept requests and never answer
    #[arg(long)]
    pub(crate) hang: bool,
    /// Fault: break each answer off after so many tokens
    #[arg(long, value_name = "N")]
    pub(crate) die_after: Option<u32>,
    /// Fault: end the whole process where --die-after would break off
    #[arg(long, requires = "die_after")]
    pub(crate) die_exits: bool,
    /// Fault: share of requests answered with 500, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) error_rate: f64,
    /// Fault: delay of /metrics, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) metrics_delay_ms: u64,
    /// Fault: /metrics answers 404
    #[arg(long)]
    pub(crate) no_metrics: bool,
    /// Fill /metrics up to so many bytes; vLLM serves about 66000
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub(crate) metrics_bytes: usize,
    /// Show the last request at GET /demo/last
    #[arg(long, hide_short_help = true)]
    pub(crate) record: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
}

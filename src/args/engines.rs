//! Flags about engines.

use super::values::{adapter, seconds, seconds_or_never, socket_address};
use clap::{Args as ClapArgs, ValueEnum};
use dunlin_protocol::id::{ModelId, RuntimeName};
use serde::Deserialize;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// What runs containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tool {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

/// Which engines an agent answers for.
#[derive(ClapArgs, Default)]
pub(crate) struct EngineArgs {
    /// A running engine, repeatable
    #[arg(long, env = "DUNLIN_ENGINE", value_name = "URL", value_delimiter = ',')]
    pub(crate) engine: Vec<String>,
    /// What the engines are, where it can't be told from their answers: vllm, sglang, llamacpp, ollama, tgi,
    /// tensorrt-llm, parakeet, whisper, openai, demo, or one of a runtime file
    #[arg(long, env = "DUNLIN_RUNTIME", value_name = "NAME")]
    pub(crate) runtime: Option<RuntimeName>,
    /// A model that the engine serves though it doesn't list it; a launched vllm, sglang, tgi or tensorrt-llm loads it.
    /// Repeatable
    #[arg(long = "model", env = "DUNLIN_MODEL", value_name = "MODEL", value_delimiter = ',')]
    pub(crate) models: Vec<ModelId>,
    /// A LoRA adapter that the engine may be told to load: a folder of its host, or a hub's name; repeatable
    #[arg(long = "adapter", value_name = "NAME=SOURCE", value_parser = adapter, hide_short_help = true)]
    pub(crate) adapters: Vec<(ModelId, String)>,
    /// Requests that each engine works on at once [default: what the engine says, else its runtime's]
    #[arg(long, env = "DUNLIN_SLOTS", value_name = "N")]
    pub(crate) slots: Option<u16>,
    /// How many kinds of hardware you would rather have a request run on: 0, the best, to 255. Proxies prefer the lowest
    /// among replicas that are as good as equal
    #[arg(long, env = "DUNLIN_FLAVOR_RANK", value_name = "N", hide_short_help = true)]
    pub(crate) flavor_rank: Option<u8>,
    /// Start the engine as a child process; what follows `--` is passed to it
    #[arg(long, value_name = "RUNTIME")]
    pub(crate) launch: Option<RuntimeName>,
    /// Also serve Prometheus metrics of the engines there, at /metrics [default: nowhere]
    #[arg(long, env = "DUNLIN_METRICS_HTTP", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(crate) metrics_http: Option<SocketAddr>,
    /// The engine of --engine has a container of its own in this pod, where `dunlin engine` runs it: leave the executable
    /// and the socket for that in this folder, which both containers see
    #[arg(long, env = "DUNLIN_SIDECAR", value_name = "DIR", hide_short_help = true)]
    pub(crate) sidecar: Option<PathBuf>,
    /// Answer GET /ready there, and nothing else: 200 while an engine serves, else 503 [default: nowhere]
    #[arg(long, env = "DUNLIN_READY_HTTP", value_name = "ADDR:PORT", value_parser = socket_address, hide_short_help = true)]
    pub(crate) ready_http: Option<SocketAddr>,
    /// Longest that requests in flight may take once the agent is to end, or its engine's container, seconds [default: 60]
    #[arg(long, env = "DUNLIN_DRAIN_TIMEOUT", value_name = "SECONDS", value_parser = seconds, hide_short_help = true)]
    pub(crate) drain_timeout: Option<Duration>,
    /// Restart the launched engine when it was ready and nothing has come from it for so long, seconds; 0: never
    /// [default: 300]
    #[arg(long, env = "DUNLIN_HANG_TIMEOUT", value_name = "SECONDS", value_parser = seconds_or_never, hide_short_help = true)]
    pub(crate) hang_timeout: Option<Duration>,
    /// Restart the launched engine when it is not ready so long after its start, seconds; 0: never [default: 3600]
    #[arg(long, env = "DUNLIN_START_TIMEOUT", value_name = "SECONDS", value_parser = seconds_or_never, hide_short_help = true)]
    pub(crate) start_timeout: Option<Duration>,
    /// Start it in a container, through this command line; the image is the runtime's (--set launch.image=IMAGE)
    #[arg(long, value_name = "TOOL", value_enum, requires = "launch")]
    pub(crate) container: Option<Tool>,
    /// GPUs of the container: all, none, a number, or device=ID,... [default: all where there are NVIDIA GPUs]
    #[arg(long, value_name = "GPUS", requires = "container")]
    pub(crate) gpus: Option<String>,
    /// One more option of `docker run` or `podman run`, repeatable: --container-arg=--volume=/models:/models
    #[arg(long, value_name = "OPTION", requires = "container", allow_hyphen_values = true)]
    pub(crate) container_arg: Vec<String>,
    /// Look for engines at these local ports, repeatable [default: the usual ones, without --engine and --launch]
    #[arg(long, env = "DUNLIN_DISCOVER", value_name = "PORT", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) discover: Vec<u16>,
    /// Change a field of the engine's runtime, or of another's with its name in front, repeatable:
    /// --set slots.default=16, --set vllm.launch.image=IMAGE (docs/engines.md has the fields)
    #[arg(long, value_name = "[RUNTIME.]FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// A TOML file with a runtime of your own, or with fields that go over those of a built-in one, repeatable
    #[arg(long, env = "DUNLIN_RUNTIME_FILE", value_name = "FILE", value_delimiter = ',')]
    pub(crate) runtime_file: Vec<PathBuf>,
    /// Arguments of the launched engine
    #[arg(last = true, requires = "launch", value_name = "ARGS")]
    pub(crate) launch_args: Vec<String>,
}

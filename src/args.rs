//! The command line as clap reads it. Dumb on purpose: nothing here is checked beyond its syntax, and nothing else
//! reads flags or environment. [`crate::settings`] joins it with the configuration file.

mod engines;
pub(crate) mod values;

pub(crate) use engines::{EngineArgs, Tool};

use crate::complete;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use clap_complete::{aot::Shell, engine::ArgValueCandidates};
use dunlin_protocol::{
    id::{ModelId, Name, Role},
    pattern::Pattern,
};
use libp2p::Multiaddr;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use values::{duration, look_interval, multiaddr, role, seconds, socket_address, worker_threads};

const EXAMPLES: &str = "\
Examples:
  dunlin up                                  everything on this machine, with the engines found on it
  dunlin invite                              a token that lets one more machine join
  dunlin join TOKEN && dunlin up             on that machine
  dunlin chat qwen3 'Why do dunlins flock?'  ask through the mesh
  curl http://127.0.0.1:8480/v1/chat/completions -H 'Authorization: Bearer KEY' ...

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no node is running here, 4 not found.
Most flags can also be set in the environment (DUNLIN_HOME, DUNLIN_HTTP, ...), and most in the file named by --config.";

/// A peer-to-peer mesh for self-hosted inference.
#[derive(Parser)]
#[command(name = "dunlin", version, about, after_help = EXAMPLES, max_term_width = 110, subcommand_required = true)]
pub(crate) struct Args {
    /// State directory: keys, certificates, known peers [default: ~/.local/share/dunlin, or $XDG_DATA_HOME/dunlin]
    #[arg(long, global = true, env = "DUNLIN_HOME", value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every listing takes.
#[derive(ClapArgs)]
pub(crate) struct ListingArgs {
    /// How the listing is printed
    #[arg(long, env = "DUNLIN_OUTPUT", value_enum, default_value_t = Output::Human)]
    pub(crate) output: Output,
}

#[derive(ClapArgs)]
pub(crate) struct TopArgs {
    /// Time between two looks, seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = look_interval)]
    pub(crate) interval: Duration,
}

/// What every process that goes on takes.
#[derive(ClapArgs, Default)]
pub(crate) struct ThreadArgs {
    /// Threads of the process [default: 1]
    #[arg(long, env = "DUNLIN_WORKER_THREADS", value_parser = worker_threads, hide_short_help = true)]
    pub(crate) worker_threads: Option<usize>,
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
pub(crate) enum Command {
    /// Run everything on this machine: join the mesh (or make one), offer its engines, open the endpoint
    #[command(after_help = "\
Without --engine or --launch, engines on the usual local ports are taken (vLLM 8000, llama.cpp 8080, Ollama 11434,
SGLang 30000, ...), also those that come up later; until there is one, the built-in demo engine is, and `up` says so.

Examples:
  dunlin up
  dunlin up --engine http://127.0.0.1:8000
  dunlin up --launch llamacpp -- -m model.gguf --alias my-model -ngl 99

A second node of the same mesh on this machine: without `join` it would make a mesh of its own.
  dunlin --home /tmp/second join TOKEN
  dunlin --home /tmp/second up --http 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0")]
    Up(UpArgs),
    /// Make a mesh, show the one of this machine, say who may admit others
    Mesh {
        #[command(subcommand)]
        command: MeshCommand,
    },
    /// Print a token that admits one more machine (the token alone, on standard output)
    #[command(after_help = "\
Examples:
  dunlin invite
  dunlin invite --role agent --model 'Qwen/*' --ttl 1h
  TOKEN=$(dunlin invite --uses 20)
  dunlin invite list
  dunlin invite withdraw ID")]
    Invite(InviteArgs),
    /// Redeem an invitation and store the certificate
    #[command(after_help = "Example:\n  dunlin join dunlin1abc...   then: dunlin up")]
    Join {
        /// The token that `dunlin invite` printed
        token: String,
        /// What other members see in `dunlin peers`
        #[arg(long, env = "DUNLIN_NAME")]
        name: Option<Name>,
    },
    /// End a membership everywhere; that of a machine which may issue ends those that it gave
    #[command(after_help = "Examples:\n  dunlin revoke workshop\n  dunlin revoke 12D3KooW...")]
    Revoke {
        /// Peer id or name, as `dunlin peers` shows them
        #[arg(add = ArgValueCandidates::new(complete::members))]
        peer: String,
    },
    /// Run beside engines, without an endpoint
    #[command(after_help = "\
Examples:
  dunlin agent --engine http://127.0.0.1:8000
  dunlin agent                              what is on the usual local ports, or comes up there
  dunlin agent --engine http://127.0.0.1:9000 --runtime whisper --model my-whisper
  dunlin agent --launch llamacpp -- -m model.gguf --alias my-model
  dunlin agent --launch vllm --container docker --model Qwen/Qwen3-8B
  dunlin agent --launch vllm --model Qwen/Qwen3-8B --set slots.default=128")]
    Agent(AgentArgs),
    /// Run an endpoint, without engines
    #[command(after_help = "Example:\n  dunlin proxy --http 0.0.0.0:8480")]
    Proxy(ProxyArgs),
    /// Relay connections between members that cannot reach each other
    #[command(after_help = "\
Needs a certificate with the role relay, and an address that all others reach.

Example:
  dunlin relay --external /ip4/203.0.113.7/tcp/4480")]
    Relay(RelayArgs),
    /// Run the simulated engine by itself: vLLM's API with settable speed and faults
    #[command(after_help = "Example:\n  dunlin demo-engine --http 127.0.0.1:8000 --tokens-per-second 50 --slots 4")]
    DemoEngine(DemoEngineArgs),
    /// List the members that this node knows
    #[command(after_help = "Examples:\n  dunlin peers\n  dunlin peers --output json | jq -r '.[].peer'")]
    Peers(ListingArgs),
    /// List the models that the mesh serves
    #[command(after_help = "Examples:\n  dunlin models\n  dunlin models --output json | jq '.[].exact'")]
    Models(ListingArgs),
    /// Show this machine's node
    #[command(after_help = "\
Examples:
  dunlin status
  dunlin status --output json | jq -r .endpoint      its base URL, without /v1")]
    Status(ListingArgs),
    /// Watch the mesh at work: replicas, models and peers, load, latencies, routes
    #[command(after_help = "\
Needs a terminal. Keys: q quit, tab or 1-3 another table, left and right choose the column to sort by, r reverses, up and
down scroll. Rates and latencies are of the last 10 seconds; TTFT and AGE (of the load report) come from the agents, P50 and
P95 are times to the first byte as this node's endpoint saw them. RUN, SLOTS, WAIT and TOK/S of a model are those of its
replicas, whichever of their models they work on.

Example:
  dunlin top --interval 5")]
    Top(TopArgs),
    /// Talk to a model
    #[command(after_help = "\
Examples:
  dunlin chat                              the only model, interactively
  dunlin chat my-model 'Tell me a joke'
  dunlin chat --endpoint http://10.0.0.5:8480 --key KEY my-model")]
    Chat(ChatArgs),
    /// Print what an engine wrote, wherever it runs
    #[command(after_help = "\
Examples:
  dunlin logs my-model                   every replica of it, wherever it runs
  dunlin logs 12D3KooW.../0 -f           one replica, as it writes
  dunlin logs my-model --since 10m
  dunlin logs my-model --previous        the run before the crash")]
    Logs(LogsArgs),
    /// List the endpoint's keys, make and revoke them
    #[command(after_help = "\
Examples:
  dunlin keys                        the keys that there are
  KEY=$(dunlin keys create --name editor)
  dunlin keys revoke ID")]
    Keys(KeysArgs),
    /// Look for what is wrong and say what to do
    #[command(after_help = "\
Exit code 1 where something is broken.

Examples:
  dunlin doctor
  dunlin doctor --output json")]
    Doctor(ListingArgs),
    /// Print a script that completes command lines in a shell, names of models and members included
    #[command(after_help = "\
Examples:
  echo 'source <(dunlin completions bash)' >> ~/.bashrc
  echo 'source <(dunlin completions zsh)' >> ~/.zshrc      after compinit
  dunlin completions fish > ~/.config/fish/completions/dunlin.fish")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

impl Command {
    /// Of a command that goes on until it is told to stop: its threads, and its configuration file.
    pub(crate) fn service(&self) -> Option<(&ThreadArgs, Option<&Path>)> {
        let node = match self {
            Self::Up(args) => &args.node,
            Self::Agent(args) => &args.node,
            Self::Proxy(args) => &args.node,
            Self::Relay(args) => &args.node,
            Self::DemoEngine(args) => return Some((&args.threads, None)),
            _ => return None,
        };
        Some((&node.threads, node.config.as_deref()))
    }
}

#[derive(Subcommand)]
pub(crate) enum MeshCommand {
    /// Make the mesh key and this machine's certificate
    #[command(
        after_help = "Examples:\n  dunlin mesh create\n  dunlin mesh create --name desk --role agent,proxy,relay"
    )]
    Create {
        /// What other members see in `dunlin peers`
        #[arg(long, env = "DUNLIN_NAME")]
        name: Option<Name>,
        /// Role of this machine, repeatable [default: agent and proxy]
        #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
        roles: Vec<Role>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Change what this machine may do, where the mesh key lies; used from its next start on
    #[command(after_help = "Example:\n  dunlin mesh roles agent,proxy,relay")]
    Roles {
        /// All roles that it is to have, e.g. agent,proxy,relay
        #[arg(value_name = "ROLE", value_delimiter = ',', required = true, value_parser = role())]
        roles: Vec<Role>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show the mesh id, this machine's certificate, and who may issue others
    #[command(after_help = "Examples:\n  dunlin mesh show\n  dunlin mesh show --output json")]
    Show(ListingArgs),
    /// Let another machine invite, renew and revoke, within bounds; where the mesh key lies, both nodes running
    #[command(after_help = "\
The memberships that it gives end when its right does: with `undelegate`, `revoke`, or at the end of --ttl.
A machine keeps what it once got: to give it less, run `dunlin mesh undelegate` first.
To go on inviting on this machine without the mesh key, name this machine itself, then: dunlin mesh key export --remove --file FILE.

Examples:
  dunlin mesh delegate 12D3KooW...
  dunlin mesh delegate 12D3KooW... --role agent --model 'Qwen/*' --life 7d --ttl 90d")]
    Delegate(DelegateArgs),
    /// Take that right back, and with it every membership that the machine gave; it stays a member itself
    #[command(after_help = "Example:\n  dunlin mesh undelegate 12D3KooW...")]
    Undelegate {
        /// Peer id or name, as `dunlin peers` shows them
        #[arg(add = ArgValueCandidates::new(complete::members))]
        peer: String,
    },
    /// Take the mesh key away from this machine, or bring it to one; no node running
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Print the mesh key (the key alone, on standard output): whoever has it decides over the whole mesh
    #[command(after_help = "\
Examples:
  dunlin mesh key export --file /media/usb/mesh.key
  dunlin mesh key export --remove --file /media/usb/mesh.key   the file is the only copy then")]
    Export {
        /// Write it to a new file that only its owner may read, instead of printing it
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Remove it from this machine; needs --file or a terminal, and a machine that `mesh delegate` named for a day or more
        #[arg(long)]
        remove: bool,
    },
    /// Bring the mesh key to this machine, which issues from then on
    #[command(after_help = "\
Without FILE the key is read from standard input. On a machine of no mesh it makes a member of it.

Example:
  dunlin mesh key import /media/usb/mesh.key")]
    Import {
        /// What `export` wrote
        file: Option<PathBuf>,
        #[command(flatten)]
        listing: ListingArgs,
    },
}

#[derive(ClapArgs)]
pub(crate) struct DelegateArgs {
    /// Peer id or name, as `dunlin peers` shows them
    #[arg(add = ArgValueCandidates::new(complete::members))]
    pub(crate) peer: String,
    /// Role that it may give, repeatable [default: agent and proxy]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) roles: Vec<Role>,
    /// Models that those it admits may serve, repeatable; `*` matches anything [default: all]
    #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) models: Vec<Pattern>,
    /// Longest life of a certificate that it gives
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    pub(crate) life: Duration,
    /// How long it may issue
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration)]
    pub(crate) ttl: Duration,
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

/// What every node takes.
#[derive(ClapArgs, Default)]
pub(crate) struct NodeArgs {
    /// Configuration file (TOML); flags and environment go before it
    #[arg(long, env = "DUNLIN_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address for other members, repeatable [default: port 4480, TCP and UDP, IPv4 and IPv6]
    #[arg(long, env = "DUNLIN_LISTEN", value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) listen: Vec<Multiaddr>,
    /// Address under which other members reach this node, where it can't know it itself, repeatable
    #[arg(long, env = "DUNLIN_EXTERNAL", value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) external: Vec<Multiaddr>,
    /// Member to connect to at start (with /p2p/PEER), repeatable; the one that invited this machine is known anyway
    #[arg(long, env = "DUNLIN_PEER", value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) peer: Vec<Multiaddr>,
    /// What other members see in `dunlin peers`
    #[arg(long, env = "DUNLIN_NAME")]
    pub(crate) name: Option<Name>,
    /// Don't look for members on the local network
    #[arg(long, env = "DUNLIN_NO_MDNS")]
    pub(crate) no_mdns: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
}

/// The endpoint.
#[derive(ClapArgs, Default)]
pub(crate) struct EndpointArgs {
    /// Address of the OpenAI-compatible endpoint [default: 127.0.0.1:8480]
    #[arg(long, env = "DUNLIN_HTTP", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(crate) http: Option<SocketAddr>,
    /// Ask for no key; only requests whose Host and Origin are this machine are taken then
    #[arg(long, env = "DUNLIN_NO_AUTH")]
    pub(crate) no_auth: bool,
    /// Longest wait for a replica's first byte before another is asked, seconds [default: 120]
    #[arg(long, env = "DUNLIN_FIRST_BYTE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) first_byte_timeout: Option<Duration>,
    /// Longest silence in the middle of a stream before its replica counts as lost, seconds [default: 30]
    #[arg(long, env = "DUNLIN_INTER_TOKEN_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) inter_token_timeout: Option<Duration>,
}

#[derive(ClapArgs)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) engines: EngineArgs,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(ClapArgs)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) engines: EngineArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(ClapArgs)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Subcommand)]
pub(crate) enum InviteCommand {
    /// List the invitations that this machine made, never their tokens
    #[command(after_help = "Examples:\n  dunlin invite list\n  dunlin invite list --output json")]
    List(ListingArgs),
    /// Let nobody use an invitation any more; whoever has used it stays a member until `dunlin revoke`
    #[command(after_help = "Example:\n  dunlin invite withdraw ID")]
    Withdraw {
        /// The id that `dunlin invite list` shows
        id: String,
    },
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct InviteArgs {
    #[command(subcommand)]
    pub(crate) command: Option<InviteCommand>,
    /// Role of the new member, repeatable [default: agent and proxy]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) roles: Vec<Role>,
    /// Models that the new member may serve, repeatable; `*` matches anything [default: all]
    #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) models: Vec<Pattern>,
    /// How long the token is good for: 30m, 24h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// How many machines may use it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) uses: u32,
    /// Make the token without a running node, for a node that will listen here, repeatable
    #[arg(long, value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) address: Vec<Multiaddr>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn arguments_of_a_launched_engine_are_passed_on() {
        let args = Args::parse_from(["dunlin", "agent", "--launch", "llamacpp", "--", "-m", "x.gguf", "--alias", "y"]);
        let Command::Agent(agent) = args.command else { panic!("agent") };
        assert_eq!(agent.engines.launch_args, ["-m", "x.gguf", "--alias", "y"]);
        assert!(Args::try_parse_from(["dunlin", "agent", "--", "-m"]).is_err(), "without --launch they mean nothing");
    }

    /// What a command does not heed is neither shown in its help nor taken.
    #[test]
    fn flags_stand_where_they_do_something() {
        let takes = |args: &[&str]| Args::try_parse_from([&["dunlin"], args].concat()).is_ok();
        for listing in
            [&["peers"][..], &["models"], &["status"], &["doctor"], &["keys"], &["keys", "list"], &["mesh", "show"]]
        {
            assert!(takes(&[listing, &["--output", "json"]].concat()), "{listing:?}");
            assert!(!takes(&[listing, &["--worker-threads", "2"]].concat()), "{listing:?}");
        }
        for service in ["up", "agent", "proxy", "relay", "demo-engine"] {
            assert!(takes(&[service, "--worker-threads", "2"]), "{service}");
            assert!(!takes(&[service, "--output", "json"]), "{service}");
        }
    }

    #[test]
    fn an_engine_that_could_work_on_nothing_is_refused() {
        let slots = |count| Args::try_parse_from(["dunlin", "demo-engine", "--slots", count]).is_ok();
        assert!(slots("1") && slots("65535") && !slots("0"));
    }

    #[test]
    fn roles_that_nobody_plays_yet_are_not_offered() {
        let error = Args::try_parse_from(["dunlin", "invite", "--role", "orchestrator"]).err().unwrap().to_string();
        assert!(error.contains("agent, proxy, relay"), "{error}");
        let args = Args::parse_from(["dunlin", "invite", "--role", "agent,relay"]);
        let Command::Invite(invite) = args.command else { panic!("invite") };
        assert_eq!(invite.roles, [Role::Agent, Role::Relay]);
    }
}

//! The command line as clap reads it. Dumb on purpose: nothing here is checked beyond its syntax, and nothing else
//! reads flags or environment. [`crate::settings`] joins it with the configuration file.

mod client;
mod demo;
mod engines;
mod jobs;
mod keys;
mod kubernetes;
mod membership;
mod pod;
mod service;
pub(crate) mod values;

pub(crate) use client::{AdaptersCommand, ChatArgs, ListingArgs, LogsArgs, Output, TopArgs};
pub(crate) use demo::DemoEngineArgs;
pub(crate) use engines::{EngineArgs, Tool};
pub(crate) use jobs::{
    AddModelArgs, ApplyArgs, DeployArgs, JobArgs, ModelsArgs, ModelsCommand, RolloutArgs, RolloutVerb, ScaleArgs,
};
pub(crate) use keys::{
    KeysArgs, KeysCommand, LimitArgs, OrNone, PricesArgs, PricesCommand, SpanArg, TenantsArgs, TenantsCommand,
    UsageArgs, UsageOutput,
};
pub(crate) use kubernetes::{CrdsArgs, OrchestratorArgs};
pub(crate) use membership::{DelegateArgs, InviteArgs, InviteCommand, KeyCommand, MeshCommand, SecretArgs};
pub(crate) use pod::{DoorArgs, EngineArgs as PodEngineArgs, FetchArgs, PodJoinArgs};
pub(crate) use service::{AgentArgs, EndpointArgs, NodeArgs, ProxyArgs, RelayArgs, ThreadArgs, UpArgs};

use crate::complete;
use clap::{Parser, Subcommand};
use clap_complete::{aot::Shell, engine::ArgValueCandidates};
use dunlin_protocol::{id::Name, jobs::JobName};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  dunlin up                                  everything on this machine, with the engines found on it
  dunlin invite                              a token that lets one more machine join
  dunlin join TOKEN && dunlin up             on that machine
  dunlin chat qwen3 'Why do dunlins flock?'  ask through the mesh
  curl http://127.0.0.1:8480/v1/chat/completions -H 'Authorization: Bearer KEY' ...

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no node is running here, 4 not found, 130 interrupted.
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
    Up(Box<UpArgs>),
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
    /// Keep the replicas of every Playground of a Kubernetes cluster running
    #[command(after_help = "\
Runs in the cluster, by the chart in k8s/chart; docs/kubernetes.md says how. Outside of it, KUBECONFIG names the cluster.

Example:
  dunlin orchestrator --namespace team-a")]
    Orchestrator(OrchestratorArgs),
    /// Run a model on a cluster of the mesh: a job
    #[command(after_help = "\
The node of this machine asks the orchestrators of the mesh, as an operator (`dunlin invite --role operator`). A job of the same
name is changed as far as flags say something. With several clusters, --cluster says which.

Examples:
  dunlin deploy Qwen/Qwen3-8B --replicas 3 --wait
  dunlin deploy Qwen/Qwen3-8B --flavor h100,a100 --namespace team-a --cluster eu-1
  dunlin deploy -f playground.yaml")]
    Deploy(DeployArgs),
    /// List the jobs of the mesh's clusters
    #[command(after_help = "Examples:\n  dunlin jobs\n  dunlin jobs --output json | jq -r '.[].id'")]
    Jobs(ListingArgs),
    /// Show a job and its replicas
    #[command(after_help = "Example:\n  dunlin job eu-1/team-a/qwen3-8b")]
    Job(JobArgs),
    /// Say how many replicas a job shall have
    #[command(after_help = "Example:\n  dunlin scale eu-1/team-a/qwen3-8b 5")]
    Scale(ScaleArgs),
    /// End a job; its replicas finish their requests
    #[command(after_help = "Example:\n  dunlin delete eu-1/team-a/qwen3-8b")]
    Delete {
        /// CLUSTER/NAMESPACE/NAME, as `dunlin jobs` shows it
        job: JobName,
    },
    /// Replace a job's replicas, go back, or hold that up
    #[command(after_help = "\
Examples:
  dunlin rollout status eu-1/team-a/qwen3-8b
  dunlin rollout undo eu-1/team-a/qwen3-8b --to 3")]
    Rollout(RolloutArgs),
    /// Apply Playgrounds and Models to a cluster of the mesh
    #[command(after_help = "Example:\n  dunlin apply -f qwen3.yaml --cluster eu-1")]
    Apply(ApplyArgs),
    /// Print the definitions of the custom resources for Kubernetes
    #[command(after_help = "\
Examples:
  dunlin crds | kubectl apply --server-side -f -
  dunlin crds --runtimes | kubectl apply --server-side -f -     the engines' BackendRuntimes, too")]
    Crds(CrdsArgs),
    /// Run the simulated engine by itself: vLLM's API with settable speed and faults
    #[command(after_help = "Example:\n  dunlin demo-engine --http 127.0.0.1:8000 --tokens-per-second 50 --slots 4")]
    DemoEngine(DemoEngineArgs),
    /// Run an engine in a container of its own, at the word of the agent in another container of the pod
    #[command(after_help = "\
The agent (`dunlin agent --sidecar DIR`) leaves this executable and its socket in DIR, a folder that both containers see.
What the engine writes goes to standard output and to the agent, which says when the engine is started again. On SIGTERM the
agent finishes its requests, then the engine is ended; SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH are passed on.

Example:
  /dunlin/dunlin engine -- vllm serve Qwen/Qwen3-8B --host 127.0.0.1 --port 8000")]
    Engine(PodEngineArgs),
    /// Bring weights into a folder: over several connections, resumed after any end, checked by size and hash
    #[command(after_help = "\
What is there and right is not fetched again. A file gets its name when it is whole; what is on its way lies in
.dunlin-fetch/ in the folder, and may be fetched by one process at a time. Tokens and keys come from HF_TOKEN,
MODELSCOPE_API_TOKEN, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and go to the host that they are for, never on to another
that it redirects to. HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE are heeded.

Examples:
  dunlin fetch hf://Qwen/Qwen3-8B --to /models/qwen3-8b --ignore '*.pth,original/*'
  dunlin fetch hf://unsloth/Qwen3-8B-GGUF --allow '*Q4_K_M.gguf' --to /models/qwen3-8b-q4
  dunlin fetch s3://weights/qwen3-8b --bucket-endpoint https://minio.example:9000 --to /models/qwen3-8b
  dunlin fetch file:///models/qwen3-8b")]
    Fetch(FetchArgs),
    /// List the members that this node knows
    #[command(after_help = "Examples:\n  dunlin peers\n  dunlin peers --output json | jq -r '.[].peer'")]
    Peers(ListingArgs),
    /// List the models that the mesh serves, or could; add one to a cluster
    #[command(after_help = "\
Examples:
  dunlin models                                        what is served now
  dunlin models --output json | jq '.[].exact'
  dunlin models list                                   what clusters of the mesh can run
  dunlin models add Qwen/Qwen3-8B --source hf://Qwen/Qwen3-8B --flavors-of Qwen/Qwen3-4B")]
    Models(ModelsArgs),
    /// List LoRA adapters, have engines load or drop them
    #[command(after_help = "\
Examples:
  dunlin adapters list
  dunlin adapters load sql
  dunlin adapters unload sql --on workshop

An agent lists what its engines may load: dunlin agent --engine URL --adapter sql=/adapters/sql. A request for an adapter
that is not loaded anywhere has it loaded; these commands do so before, or make room.")]
    Adapters {
        #[command(subcommand)]
        command: AdaptersCommand,
    },
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
  dunlin logs eu-1/team-a/qwen3-8b -f    every replica of a job, as an operator
  dunlin logs my-model --previous        the run before the crash")]
    Logs(LogsArgs),
    /// List the endpoint's keys, make and revoke them
    #[command(after_help = "\
Examples:
  dunlin keys                        the keys that there are
  KEY=$(dunlin keys create --name editor)
  dunlin keys revoke ID")]
    Keys(KeysArgs),
    /// Whom keys belong to: make, list, suspend and remove tenants
    Tenants(TenantsArgs),
    /// Show what keys have used, summed over all endpoints
    #[command(after_help = "\
Examples:
  dunlin usage                                this month, by key and model
  dunlin usage --since 24h --by hour --key ID
  dunlin usage --by day --output csv > usage.csv")]
    Usage(UsageArgs),
    /// What models cost, so that usage and budgets have a cost
    Prices(PricesArgs),
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
            Self::Orchestrator(args) => &args.node,
            _ => return None,
        };
        Some((&node.threads, node.config.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use dunlin_protocol::id::Role;

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
        for listing in [
            &["peers"][..],
            &["models"],
            &["status"],
            &["doctor"],
            &["keys"],
            &["keys", "list"],
            &["tenants"],
            &["prices"],
            &["mesh", "show"],
        ] {
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
    fn roles_are_offered_by_name() {
        let error = Args::try_parse_from(["dunlin", "invite", "--role", "boss"]).err().unwrap().to_string();
        assert!(error.contains("agent, proxy, orchestrator, relay, operator"), "{error}");
        let wrong = ["dunlin", "invite", "--role", "operator", "--namespace", "Team A"];
        assert!(Args::try_parse_from(wrong).err().unwrap().to_string().contains("small letters"));
        assert!(Args::try_parse_from(["dunlin", "invite", "--namespace", "team-a"]).is_err(), "of an operator only");
        let args = Args::parse_from(["dunlin", "invite", "--role", "agent,relay"]);
        let Command::Invite(invite) = args.command else { panic!("invite") };
        assert_eq!(invite.roles, [Role::Agent, Role::Relay]);
    }
}

//! Flags about jobs.

use super::{ListingArgs, values::namespace};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use dunlin_protocol::jobs::{DEFAULT_NAMESPACE, JobName};
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct DeployArgs {
    /// The model, by the name that it serves
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) model: Option<String>,
    /// How many replicas [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<u32>,
    /// Name of the BackendRuntime [default: vllm]
    #[arg(long, value_name = "NAME")]
    pub(crate) runtime: Option<String>,
    /// Hardware that will do, by the names of the model's flavors, best first, repeatable [default: all of them]
    #[arg(long = "flavor", value_name = "NAME", value_delimiter = ',')]
    pub(crate) flavors: Vec<String>,
    /// Where, if there are several clusters in the mesh [default: the first by name]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// The namespace there
    #[arg(short, long, env = "DUNLIN_NAMESPACE", value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE, value_parser = namespace)]
    pub(crate) namespace: String,
    /// The job's name [default: from the model's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A Playground in YAML or JSON instead; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["replicas", "runtime", "flavors", "name"])]
    pub(crate) file: Option<PathBuf>,
    /// Wait until the first replica serves, and say how it goes
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(ClapArgs)]
pub(crate) struct JobArgs {
    /// CLUSTER/NAMESPACE/NAME, as `dunlin jobs` shows it
    pub(crate) job: JobName,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ScaleArgs {
    /// CLUSTER/NAMESPACE/NAME, as `dunlin jobs` shows it
    pub(crate) job: JobName,
    /// How many replicas
    pub(crate) replicas: u32,
}

#[derive(ClapArgs)]
pub(crate) struct RolloutArgs {
    /// What to do
    #[arg(value_enum)]
    pub(crate) what: RolloutVerb,
    /// CLUSTER/NAMESPACE/NAME, as `dunlin jobs` shows it
    pub(crate) job: JobName,
    /// With undo: the revision, by its number or name, as `rollout status` shows it [default: the one before]
    #[arg(long, value_name = "REVISION")]
    pub(crate) to: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RolloutVerb {
    /// Show where it stands
    Status,
    /// Make the replicas what they were before
    Undo,
    /// Replace all replicas, by what Model and BackendRuntime say now
    Restart,
    /// Leave replicas of older revisions as they are
    Pause,
    /// Go on
    Resume,
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ModelsCommand>,
    #[command(flatten)]
    pub(crate) listing: ListingArgs,
}

#[derive(Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the models that clusters of the mesh can run
    #[command(after_help = "Example:\n  dunlin models list")]
    List(ListingArgs),
    /// Let a cluster run one more model
    #[command(after_help = "\
For operators of all namespaces. `dunlin apply -f` takes a Model with flavors of its own.

Example:
  dunlin models add Qwen/Qwen3-8B --source hf://Qwen/Qwen3-8B --flavors-of Qwen/Qwen3-4B")]
    Add(AddModelArgs),
}

#[derive(ClapArgs)]
pub(crate) struct AddModelArgs {
    /// What clients call it
    pub(crate) model: String,
    /// Where its weights are: hf://ORG/NAME, modelscope://ORG/NAME, s3:// gs:// oss://BUCKET/PREFIX, https://HOST/FILE
    #[arg(long, value_name = "SOURCE")]
    pub(crate) source: String,
    /// The one file of a hub's repository that is wanted, as llama.cpp needs it
    #[arg(long, value_name = "NAME")]
    pub(crate) file: Option<String>,
    /// The model that runs on the same hardware [default: what the orchestrator's settings say]
    #[arg(long, value_name = "MODEL")]
    pub(crate) flavors_of: Option<String>,
    /// Where, if there are several clusters in the mesh [default: the first by name]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

#[derive(ClapArgs)]
pub(crate) struct ApplyArgs {
    /// Playgrounds and Models in YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE", required = true)]
    pub(crate) file: PathBuf,
    /// Where, if there are several clusters in the mesh [default: the first by name]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

//! Flags of what runs in the containers of a pod.

use super::values::{multiaddr, seconds};
use clap::Args as ClapArgs;
use dunlin_protocol::{id::MeshId, pattern::Pattern};
use libp2p::Multiaddr;
use std::{path::PathBuf, time::Duration};

/// How a pod becomes a member.
#[derive(ClapArgs, Default)]
pub(crate) struct PodJoinArgs {
    /// In a pod: join with the ServiceAccount token in this file, which the kubelet projects for the audience
    /// dunlin.dev/MESH
    #[arg(long, env = "DUNLIN_TOKEN_FILE", value_name = "FILE", requires = "mesh", hide_short_help = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// Orchestrator that admits the pod (with /p2p/PEER), repeatable [default: those of --peer]
    #[arg(long, env = "DUNLIN_ORCHESTRATOR", value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr, hide_short_help = true)]
    pub(crate) orchestrator: Vec<Multiaddr>,
    /// Id of the mesh that the pod joins, as `dunlin mesh show` has it
    #[arg(long, env = "DUNLIN_MESH", value_name = "ID", hide_short_help = true)]
    pub(crate) mesh: Option<MeshId>,
}

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

const SOURCE: &str = "hf://ORG/MODEL[@REVISION], modelscope://ORG/MODEL[@REVISION], s3:// gs:// oss://BUCKET/PREFIX, \
                      https://HOST/FILE[#sha256=HEX], or file:///PATH";

/// What is fetched, and into where.
#[derive(ClapArgs)]
pub(crate) struct FetchArgs {
    /// Where the weights are.
    // Not in the comment: the documentation would take the brackets for links.
    #[arg(env = "DUNLIN_FETCH", value_name = "SOURCE", help = SOURCE)]
    pub(crate) source: String,
    /// The folder; without it, a file:/// source is only looked at
    #[arg(long, env = "DUNLIN_FETCH_TO", value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Only files that match, repeatable; `*` matches anything
    #[arg(long, env = "DUNLIN_FETCH_ALLOW", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) allow: Vec<Pattern>,
    /// This file of a hub's repository or bucket and no other, repeatable
    #[arg(long, env = "DUNLIN_FETCH_FILE", value_name = "NAME", value_delimiter = ',')]
    pub(crate) file: Vec<Pattern>,
    /// No files that match, repeatable
    #[arg(long, env = "DUNLIN_FETCH_IGNORE", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) ignore: Vec<Pattern>,
    /// Connections at once
    #[arg(long, env = "DUNLIN_FETCH_CONNECTIONS", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: u16,
    /// The agent that is told how far it has come [default: agent.sock beside this executable, where there is one]
    #[arg(long, env = "DUNLIN_SOCKET", value_name = "PATH", hide_short_help = true)]
    pub(crate) socket: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) doors: DoorArgs,
}

/// Tokens, keys and addresses, under the names that everybody has for them.
#[derive(ClapArgs)]
pub(crate) struct DoorArgs {
    /// Token for the Hugging Face hub; better in the environment
    #[arg(long, env = "HF_TOKEN", value_name = "TOKEN", hide_env_values = true, hide_short_help = true)]
    pub(crate) hf_token: Option<String>,
    /// Address of the Hugging Face hub, or a mirror of it
    #[arg(long, env = "HF_ENDPOINT", value_name = "URL", hide_short_help = true)]
    pub(crate) hf_endpoint: Option<String>,
    /// Token for ModelScope; better in the environment
    #[arg(long, env = "MODELSCOPE_API_TOKEN", value_name = "TOKEN", hide_env_values = true, hide_short_help = true)]
    pub(crate) modelscope_token: Option<String>,
    /// Address of ModelScope
    #[arg(long, env = "MODELSCOPE_ENDPOINT", value_name = "URL", hide_short_help = true)]
    pub(crate) modelscope_endpoint: Option<String>,
    /// Id of a bucket's key
    #[arg(
        long,
        env = "AWS_ACCESS_KEY_ID",
        value_name = "ID",
        hide_env_values = true,
        hide_short_help = true,
        requires = "bucket_secret"
    )]
    pub(crate) bucket_key: Option<String>,
    /// A bucket's key; better in the environment
    #[arg(
        long,
        env = "AWS_SECRET_ACCESS_KEY",
        value_name = "KEY",
        hide_env_values = true,
        hide_short_help = true,
        requires = "bucket_key"
    )]
    pub(crate) bucket_secret: Option<String>,
    /// What goes with a key that ends soon
    #[arg(long, env = "AWS_SESSION_TOKEN", value_name = "TOKEN", hide_env_values = true, hide_short_help = true)]
    pub(crate) bucket_session: Option<String>,
    /// Address of buckets, where it isn't the usual one
    #[arg(long, env = "AWS_ENDPOINT_URL", value_name = "URL", hide_short_help = true)]
    pub(crate) bucket_endpoint: Option<String>,
    /// A bucket's region
    #[arg(long, env = "AWS_REGION", value_name = "REGION", hide_short_help = true)]
    pub(crate) bucket_region: Option<String>,
}

//! Flags of what has to do with Kubernetes.

use super::ThreadArgs;
use clap::Args as ClapArgs;
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct CrdsArgs {
    /// Print the BackendRuntimes that come with dunlin, too
    #[arg(long)]
    pub(crate) runtimes: bool,
}

#[derive(ClapArgs)]
pub(crate) struct OrchestratorArgs {
    /// Look after this namespace only [default: all of them]
    #[arg(long, env = "DUNLIN_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// What is the same for all replicas: a file of JSON, as the chart writes it
    #[arg(long, env = "DUNLIN_SETTINGS", value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// Who this orchestrator is, among those that share the lease [default: the host's name]
    #[arg(long, env = "DUNLIN_IDENTITY", value_name = "NAME")]
    pub(crate) identity: Option<String>,
    /// Namespace of the lease that only one orchestrator holds [default: that of the kubeconfig or the pod]
    #[arg(long, env = "DUNLIN_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) lease_namespace: Option<String>,
    #[command(flatten)]
    pub(crate) threads: ThreadArgs,
}

//! Flags of what has to do with Kubernetes.

use super::{
    NodeArgs,
    values::{multiaddr, namespace, socket_address},
};
use clap::Args as ClapArgs;
use libp2p::Multiaddr;
use std::{net::SocketAddr, path::PathBuf};

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
    /// What operators call this cluster
    #[arg(long, env = "DUNLIN_CLUSTER", value_name = "NAME", default_value = "default", value_parser = namespace)]
    pub(crate) cluster: String,
    /// ServiceAccount of the proxies in the lease's namespace, which may join as such
    #[arg(long, env = "DUNLIN_PROXY_ACCOUNT", value_name = "NAME")]
    pub(crate) proxy_account: Option<String>,
    /// ServiceAccount of the relays there, likewise
    #[arg(long, env = "DUNLIN_RELAY_ACCOUNT", value_name = "NAME")]
    pub(crate) relay_account: Option<String>,
    /// Folder with identity, certificate and delegation, as `dunlin mesh secret` makes them: taken over if newer
    #[arg(long, env = "DUNLIN_MEMBERSHIP", value_name = "DIR")]
    pub(crate) membership: Option<PathBuf>,
    /// Where replicas reach this orchestrator to join the mesh, repeatable: its Service
    #[arg(long, env = "DUNLIN_ADDRESS", value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) address: Vec<Multiaddr>,
    /// Address of /metrics and /health, such as 0.0.0.0:8482 [default: nowhere]
    #[arg(long, env = "DUNLIN_METRICS_HTTP", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(crate) metrics_http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

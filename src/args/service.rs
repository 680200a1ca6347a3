//! The processes that go on: `up`, `agent`, `proxy`, `relay`, and what they share.

use super::{
    EngineArgs, PodJoinArgs,
    values::{alias, duration, fallback, multiaddr, seconds, socket_address, worker_threads},
};
use clap::Args as ClapArgs;
use dunlin_protocol::id::{ModelId, Name};
use dunlin_proxy::Network;
use libp2p::Multiaddr;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// What every process that goes on takes.
#[derive(ClapArgs, Default)]
pub(crate) struct ThreadArgs {
    /// Threads of the process [default: 1]
    #[arg(long, env = "DUNLIN_WORKER_THREADS", value_parser = worker_threads, hide_short_help = true)]
    pub(crate) worker_threads: Option<usize>,
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
    /// Address of the admin API for keys, tenants and usage, such as 127.0.0.1:8481 [default: nowhere]
    #[arg(long, env = "DUNLIN_ADMIN_HTTP", value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(crate) admin_http: Option<SocketAddr>,
    /// Address or range of a proxy that is believed about where a request came from (X-Forwarded-For), repeatable
    #[arg(long = "trusted-proxy", env = "DUNLIN_TRUSTED_PROXY", value_name = "NETWORK", value_delimiter = ',')]
    pub(crate) trusted_proxies: Vec<Network>,
    /// Take no key when none of the other endpoints was heard of for so long, since one may have been revoked: 10m, 1h, 7d
    /// [default: take them for ever]
    #[arg(long, env = "DUNLIN_KEYS_MAX_AGE", value_name = "TIME", value_parser = duration)]
    pub(crate) keys_max_age: Option<Duration>,
    /// Longest wait for a replica's first byte before another is asked, seconds [default: what its runtime says]
    #[arg(long, env = "DUNLIN_FIRST_BYTE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) first_byte_timeout: Option<Duration>,
    /// Longest silence in the middle of a stream before its replica counts as lost, seconds [default: what its
    /// runtime says]
    #[arg(long, env = "DUNLIN_INTER_TOKEN_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) inter_token_timeout: Option<Duration>,
    /// Of the requests whose replica is late, how many percent of all may be asked of another as well; 0 for none
    /// [default: 10]
    #[arg(long, env = "DUNLIN_HEDGED_PERCENT", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100), hide_short_help = true)]
    pub(crate) hedged_percent: Option<u8>,
    /// Another name for a model, repeatable
    #[arg(long = "alias", value_name = "NAME=MODEL", value_parser = alias, hide_short_help = true)]
    pub(crate) aliases: Vec<(ModelId, ModelId)>,
    /// Models to ask, in this order, while no replica of a model answers; repeatable
    #[arg(long = "fallback", value_name = "MODEL=OTHER,...", value_parser = fallback, hide_short_help = true)]
    pub(crate) fallbacks: Vec<(ModelId, Vec<ModelId>)>,
    /// Serve HTTPS with the certificate chain in this PEM file, which may be replaced while the proxy runs
    #[arg(long, env = "DUNLIN_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_key", hide_short_help = true)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of --tls-certificate, PEM
    #[arg(long, env = "DUNLIN_TLS_KEY", value_name = "FILE", requires = "tls_certificate", hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Where uploads lie while they are answered [default: uploads in the state directory]
    #[arg(long, env = "DUNLIN_UPLOAD_FOLDER", value_name = "DIR", hide_short_help = true)]
    pub(crate) upload_folder: Option<PathBuf>,
    /// What all uploads together may take of the disk, bytes [default: 8589934592]
    #[arg(long, env = "DUNLIN_UPLOAD_DISK_BYTES", value_name = "N", hide_short_help = true)]
    pub(crate) upload_disk_bytes: Option<u64>,
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
    pub(crate) pod: PodJoinArgs,
    #[command(flatten)]
    pub(crate) engines: EngineArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) pod: PodJoinArgs,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(ClapArgs)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) pod: PodJoinArgs,
}

//! What `up`, `agent`, `proxy` and `relay` share: the parts of a node put together, run, and ended in order.

use crate::{
    args::EngineArgs,
    output,
    settings::{self, EndpointSettings, EngineSettings, EngineSource, File, NodeSettings},
    signals,
};
use anyhow::{Context, Result, bail};
use dunlin_agent::{AdapterConfig, Agent, EngineConfig, Found, Source, engine::discover::discover_on, usual_ports};
use dunlin_node::{Config, Handle, Node, clock, control, mesh, state::StateDir};
use dunlin_protocol::{
    id::{ModelId, Role, Roles},
    runtime::Catalogue,
};
use dunlin_proxy::{Fellows, Keeper, Proxy, keys::Keys, responses::Responses};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, net::SocketAddr, path::Path, time::Duration};
use tokio_util::sync::CancellationToken;

/// Longest that closing all connections may take when the process is to end at once.
const HANG_UP: Duration = Duration::from_millis(300);

/// What a process is to be.
pub(crate) struct Plan {
    pub(crate) state: StateDir,
    pub(crate) roles: Roles,
    pub(crate) node: NodeSettings,
    pub(crate) engines: Engines,
    /// Where an agent shows its metrics.
    pub(crate) metrics_http: Option<SocketAddr>,
    pub(crate) endpoint: Option<EndpointSettings>,
}

/// The engines of a process, and what is known of their kinds.
#[derive(Default)]
pub(crate) struct Engines {
    pub(crate) list: Vec<EngineConfig>,
    pub(crate) catalogue: Catalogue,
    /// Local ports at which more are looked for.
    pub(crate) discover: BTreeSet<u16>,
    /// Those that were found there now.
    pub(crate) found: Vec<Found>,
    /// Where the kubelet asks.
    pub(crate) ready_http: Option<SocketAddr>,
    /// Longest that requests in flight may take at the end.
    pub(crate) drain: Option<Duration>,
}

impl Engines {
    /// The engines that were asked for, as the agent wants them. Where none was, they are looked for, here and as long as
    /// the agent runs.
    pub(crate) async fn resolve(args: &EngineArgs, file: File) -> Result<Self> {
        let catalogue = settings::catalogue(args, &file)?;
        let ports = settings::discover(args, &file)?;
        let (ready_http, drain) = (args.ready_http, args.drain_timeout);
        let place = settings::engines_stand_in(args, &file);
        let asked = settings::engines(args, file)?;
        let discover = match ports {
            Some(ports) => ports,
            None if asked.is_empty() => usual_ports(&catalogue),
            None => BTreeSet::new(),
        };
        let found = match asked.is_empty() {
            true => discover_on(discover.iter().copied(), &catalogue).await,
            false => Vec::new(),
        };
        let asked = asked.into_iter().enumerate().map(|(index, engine)| {
            let config = engine_config(engine, &catalogue);
            match &place {
                Some(place) => config.with_context(|| format!("{place}: engines[{index}]")),
                None => config,
            }
        });
        let list = asked.chain(found.iter().cloned().map(|found| Ok(found.into()))).collect::<Result<_>>()?;
        Ok(Self { list, catalogue, discover, found, ready_http, drain })
    }

    /// Which were found, for people.
    pub(crate) fn found_lines(&self) -> Vec<String> {
        let line = |Found { url, runtime, models }: &Found| {
            format!("engine    {url} ({runtime}, {})", output::counted(models.len(), "model"))
        };
        self.found.iter().map(line).collect()
    }

    fn are_none(&self) -> bool {
        self.list.is_empty() && self.discover.is_empty()
    }
}

/// What runs here beside the node itself: `GET /process` on the control socket.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Base URL of the endpoint, without `/v1`.
    pub(crate) endpoint: Option<String>,
    /// Whether it asks for no key.
    pub(crate) no_auth: bool,
    /// Process id.
    pub(crate) pid: u32,
}

/// A node with all its parts, not running yet.
pub(crate) struct Service {
    pub(crate) handle: Handle,
    pub(crate) keys: Option<Keys>,
    pub(crate) process: Process,
    node: Node,
    agent: Option<Agent>,
    proxy: Option<Proxy>,
    /// Where keys are kept without an endpoint.
    keeper: Option<Keeper>,
    control: control::Server,
    shutdown: CancellationToken,
}

impl Service {
    /// Binds everything that can be refused: engines, mesh, endpoint, control socket.
    pub(crate) async fn start(plan: Plan) -> Result<Self> {
        let home = plan.state.path().to_owned();
        let agent = match plan.engines.are_none() {
            true => None,
            false => Some(agent(plan.engines, plan.metrics_http, &home)?),
        };
        let engines = agent.as_ref().map(Agent::status);
        let routes = agent.as_ref().map_or_else(dunlin_agent::without_engines, Agent::router);
        let responses = Responses::default();
        let on_hop = if plan.endpoint.is_some() { routes.clone().merge(responses.routes()) } else { routes.clone() };
        let mut config = Config::new(plan.state, plan.roles);
        config.listen = plan.node.listen;
        config.external = plan.node.external;
        config.bootstrap = plan.node.peers;
        config.mdns = plan.node.mdns;
        let fellows = Fellows::default();
        let (node, handle) = Node::start(config, on_hop.merge(fellows.router())).await?;
        let (to_kill, to_tell) = (engines.clone(), handle.clone());
        let shutdown = signals::shutdown(move || async move {
            // A node that is too busy to hang up is left at that.
            let _ = tokio::time::timeout(HANG_UP, to_tell.hang_up()).await;
            // The last thing: an agent that goes on would start them again.
            if let Some(engines) = &to_kill {
                engines.kill_launched();
            }
        })?;

        let mut extra = super::logs::routes(handle.clone(), routes.clone());
        extra = extra.merge(super::adapters::routes(handle.clone(), routes));
        extra = extra.merge(super::operator::routes(handle.clone()));
        let (mut proxy, mut keys, mut keeper) = (None, None, None);
        if let Some(endpoint) = &plan.endpoint {
            let opened = Keys::open(&super::keys::file(&home))?;
            let started = start_proxy(endpoint, &home, responses.clone(), handle.clone(), opened.clone())?;
            started.answer(&fellows);
            extra = extra.merge(started.control_routes());
            (proxy, keys) = (Some(started), Some(opened));
        } else if handle.members().own().keeps_keys() {
            // Whoever may make keys can do so without an endpoint of its own.
            let rooms = dunlin_proxy::rooms(handle.clone(), Keys::open(&super::keys::file(&home))?)?;
            fellows.keep(rooms.keeper.clone());
            fellows.count_nothing();
            keeper = Some(rooms.keeper.clone());
            extra = extra.merge(dunlin_proxy::control::keys_routes(rooms));
        } else {
            fellows.keep_nothing();
        }
        let scheme =
            if plan.endpoint.as_ref().is_some_and(|endpoint| endpoint.tls.is_some()) { "https" } else { "http" };
        let process = Process {
            endpoint: proxy.as_ref().map(|proxy| format!("{scheme}://{}", reachable(proxy.local_addr()))),
            no_auth: plan.endpoint.is_some_and(|endpoint| endpoint.no_auth),
            pid: std::process::id(),
        };
        extra = extra.merge(super::status::routes(process.clone(), engines));
        let control = control::Server::bind(&home, handle.clone(), extra)?;
        Ok(Self { handle, keys, process, node, agent, proxy, keeper, control, shutdown })
    }

    /// Runs until a signal, then ends the parts in the order in which they depend on each other: first the endpoint and
    /// the engines finish what they have, while the node still carries it; then the node says goodbye.
    pub(crate) async fn run(self) -> Result<()> {
        let end_of_node = CancellationToken::new();
        let front = self.shutdown.child_token();
        let handle = self.handle.clone();
        let agent = async {
            if let Some(agent) = self.agent {
                // Large, and moved once.
                Box::pin(agent.run(handle, front.clone())).await;
            }
        };
        let proxy = async {
            if let Some(proxy) = self.proxy {
                proxy.run(front.clone()).await;
            }
        };
        let keeping = async {
            if let Some(keeper) = self.keeper {
                Box::pin(keeper.run(front.clone())).await;
            }
        };
        let parts = async {
            tokio::join!(agent, proxy, keeping, front.cancelled());
            end_of_node.cancel();
        };
        let (_, _, ended) =
            tokio::join!(parts, self.control.run(end_of_node.clone()), self.node.run(end_of_node.clone()));
        signals::settle().await;
        ended.context("the node ended badly")
    }

    /// Ends when the first signal has come.
    pub(crate) fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }
}

fn agent(engines: Engines, metrics_http: Option<SocketAddr>, home: &Path) -> Result<Agent> {
    let mut config = dunlin_agent::Config::new(home.join("engines"))?;
    config.engines = engines.list;
    config.catalogue = engines.catalogue;
    config.discover = engines.discover;
    config.metrics_http = metrics_http;
    config.ready_http = engines.ready_http;
    config.drain = engines.drain.unwrap_or(config.drain);
    Ok(Agent::new(config)?)
}

fn adapters(configured: Vec<(ModelId, String)>) -> Vec<AdapterConfig> {
    configured.into_iter().map(|(name, source)| AdapterConfig { name, source }).collect()
}

fn start_proxy(
    endpoint: &EndpointSettings,
    home: &Path,
    responses: Responses,
    handle: Handle,
    keys: Keys,
) -> Result<Proxy> {
    let upload_folder = endpoint.upload_folder.clone().unwrap_or_else(|| home.join("uploads"));
    std::fs::create_dir_all(&upload_folder).with_context(|| {
        format!("can't make {} for uploads; choose another with --upload-folder", upload_folder.display())
    })?;
    let config = dunlin_proxy::Config {
        http: endpoint.http,
        no_auth: endpoint.no_auth,
        keys_max_age: endpoint.keys_max_age,
        trusted_proxies: endpoint.trusted_proxies.clone(),
        admin: endpoint.admin,
        first_byte: endpoint.first_byte_timeout,
        inter_token: endpoint.inter_token_timeout,
        hedged_percent: endpoint.hedged_percent,
        names: endpoint.names.clone(),
        tls: endpoint.tls.clone(),
        responses,
        upload_folder,
        upload_disk: endpoint.upload_disk_bytes,
        ..dunlin_proxy::Config::default()
    };
    Ok(Proxy::new(config, handle, keys)?)
}

/// An address that a client on this machine can use.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (std::net::Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}

/// Refuses to start as what this machine's certificate doesn't allow: every request would fail, and nobody would see why.
pub(crate) fn require(state: &StateDir, node: &NodeSettings, role: Role) -> Result<()> {
    let own = mesh::load(state, clock::unix_s())?.members.own();
    if !own.roles.contains(role) {
        bail!(
            "this machine's certificate allows {}, not {role}; join again with a token of `dunlin invite --role {role}`, or, \
             where the mesh was made, run `dunlin mesh roles` with every role that it shall have",
            own.roles
        );
    }
    if node.name.is_some() && node.name != own.name {
        output::note("--name is ignored: a name stands in the certificate; give it to `dunlin join` or `mesh create`");
    }
    Ok(())
}

fn engine_config(settings: EngineSettings, catalogue: &Catalogue) -> Result<EngineConfig> {
    if let Some(runtime) = &settings.runtime {
        catalogue.get(runtime)?;
    }
    if let EngineSource::Launch { runtime, .. } = &settings.source {
        catalogue.get(runtime)?;
    }
    let source = match settings.source {
        EngineSource::Attach(url) => Source::Attach(url.parse()?),
        EngineSource::Sidecar { url, folder } => Source::Sidecar { url: url.parse()?, folder },
        EngineSource::Launch { runtime, args, container } => Source::Launch { runtime, args, container },
    };
    Ok(EngineConfig {
        runtime: settings.runtime,
        models: settings.models,
        adapters: adapters(settings.adapters),
        slots: settings.slots,
        flavor: settings.flavor,
        patience: settings.patience,
        ..EngineConfig::new(source)
    })
}

/// Where the node is reached, for people.
pub(crate) fn address_lines(service: &Service) -> Vec<String> {
    let mut lines =
        vec![format!("mesh      {}", service.handle.mesh()), format!("peer      {}", service.handle.peer_id())];
    lines.extend(service.handle.listen_addresses().iter().map(|address| format!("listening {address}")));
    if let Some(endpoint) = &service.process.endpoint {
        lines.push(format!("endpoint  {endpoint}/v1"));
    }
    if let Some(address) = service.proxy.as_ref().and_then(Proxy::admin_addr) {
        lines.push(format!("admin     http://{address}/admin/v1 (with a key of `dunlin keys create --admin`)"));
    }
    if let Some(address) = service.agent.as_ref().and_then(Agent::metrics_addr) {
        lines.push(format!("metrics   http://{address}/metrics (of the engines)"));
    }
    if let Some(address) = service.agent.as_ref().and_then(Agent::ready_addr) {
        lines.push(format!("ready     http://{address}/ready"));
    }
    lines
}

/// Whether everything that a process is to listen on is free: asked before anything is written.
pub(crate) fn check_addresses(
    home: &Path,
    node: &NodeSettings,
    endpoint: &EndpointSettings,
    metrics_http: Option<SocketAddr>,
) -> Result<()> {
    control::socket_path(home)?;
    dunlin_node::check_listen(&node.listen)?;
    Proxy::check(endpoint.http)?;
    if let Some(tls) = endpoint.tls.clone() {
        dunlin_proxy::tls::check(tls).context("cannot serve HTTPS")?;
    }
    if let Some(address) = metrics_http {
        let bound = std::net::TcpListener::bind(address);
        bound.map_err(|error| dunlin_agent::Error::Metrics { address, error })?;
    }
    Ok(())
}

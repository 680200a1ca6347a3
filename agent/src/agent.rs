//! The agent: its engines' tasks, from start to drained.

use crate::{
    config::{Config, ContainerConfig, ENGINES, EngineConfig, Source},
    engine::{Client, EngineUrl, discover::Found},
    metrics::poll::poll,
    pod::{
        self,
        attend::{Place, attend},
    },
    prometheus::{self, Page},
    readiness,
    replica::{
        Replica,
        life::live,
        report::{announce, report},
        self_test::self_test,
        status::Status,
    },
    replicas::Replicas,
    scout::{ROUND, Scout},
    serve::{self, NodeHandle, Service},
    supervise::{Order, Process, container, reap_all, supervise},
};
use axum::Router;
use dunlin_node::Handle;
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{self, RuntimeName},
    runtime::{Catalogue, catalogue, launch::Unlaunchable},
};
use futures::future::join_all;
use std::{
    collections::{BTreeSet, HashSet},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Time for the last announcements to be made.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to do.
    #[error("an agent needs at least one engine, or ports at which to look for one")]
    NoEngine,
    /// More engines than one agent has.
    #[error("{0} engines; an agent has {ENGINES} at most")]
    TooManyEngines(usize),
    /// One engine as two replicas would be given twice the requests that it has slots for.
    #[error("the engine {0} is given twice; give each engine once")]
    Twice(EngineUrl),
    /// No such runtime.
    #[error(transparent)]
    Runtime(#[from] catalogue::Unknown),
    /// Launching needs a launch entry.
    #[error("runtime `{0}` cannot be launched; start it yourself and attach to it with --engine URL")]
    NoLaunch(RuntimeName),
    /// Not as a process, or not in a container.
    #[error("runtime `{runtime}` cannot be launched so: {error}")]
    Unlaunchable {
        /// The runtime.
        runtime: RuntimeName,
        /// Why.
        error: Unlaunchable,
    },
    /// The directory for logs cannot be made.
    #[error("cannot create {path}: {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The folder of a sidecar can't be used.
    #[error(transparent)]
    Sidecar(#[from] pod::install::Error),
    /// A pod has one engine.
    #[error("a sidecar answers for one engine; give one --engine URL with --sidecar")]
    TwoSidecars,
    /// The kubelet's question has no place.
    #[error("cannot listen on {address} for readiness: {error}; choose another address with --ready-http ADDR:PORT")]
    Ready {
        /// As configured.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The page for Prometheus has no place.
    #[error("cannot listen on {address} for metrics: {error}; choose another address with --metrics-http ADDR:PORT")]
    Metrics {
        /// As configured.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The demo engine cannot listen.
    #[error(transparent)]
    Demo(#[from] crate::demo::Error),
    /// A built-in name is wrong, which tests rule out.
    #[error(transparent)]
    Name(#[from] id::Error),
}

/// An agent, ready to run.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    catalogue: Arc<Catalogue>,
    service: Arc<Service>,
    /// What the labels of its containers say.
    owner: String,
    demos: Vec<(Arc<Replica>, crate::demo::Engine)>,
    metrics: Option<TcpListener>,
    ready: Option<TcpListener>,
    /// The socket for the shim and the loader of the pod.
    sidecar: Option<UnixListener>,
}

impl Agent {
    /// Checks the configuration, makes the directory for logs, and binds demo engines and the page for Prometheus. To be
    /// called on a tokio runtime.
    ///
    /// # Errors
    /// No engine and nowhere to look for one, too many, or one twice, an unknown runtime or one that can't be launched, no
    /// directory, no port.
    pub fn new(config: Config) -> Result<Self, Error> {
        match config.engines.len() {
            0 if config.discover.is_empty() => return Err(Error::NoEngine),
            0..=ENGINES => {}
            many => return Err(Error::TooManyEngines(many)),
        }
        no_engine_twice(&config.engines)?;
        make_directory(&config.directory)?;
        let replicas = Replicas::default();
        let mut demos = Vec::new();
        for (index, engine) in (0..).zip(&config.engines) {
            let replica = Arc::new(replica(index, engine, &config.catalogue)?);
            if let Source::Demo(demo) = &engine.source {
                let bound = crate::demo::Engine::bind(demo.clone())?;
                demos.push((Arc::clone(&replica), bound));
            }
            replicas.push(replica);
        }
        let owner = match config.engines.iter().any(|engine| container_of(engine).is_some()) {
            true => container::owner(&config.directory)
                .map_err(|error| Error::Directory { path: config.directory.clone(), error })?,
            false => String::new(),
        };
        let catalogue = Arc::new(config.catalogue.clone());
        let service = Arc::new(Service::new(replicas, Client::new()));
        let sidecar = sidecar_folder(&config.engines)?.map(pod::install::install).transpose()?;
        let metrics = listen(config.metrics_http).map_err(|(address, error)| Error::Metrics { address, error })?;
        // Last: a kubelet that can connect starts the other containers.
        let ready = listen(config.ready_http).map_err(|(address, error)| Error::Ready { address, error })?;
        Ok(Self { config, catalogue, service, owner, demos, metrics, ready, sidecar })
    }

    /// Where `GET /metrics` is answered, if anywhere; with the port that was chosen when none was asked for.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Where `GET /ready` is answered, likewise.
    #[must_use]
    pub fn ready_addr(&self) -> Option<SocketAddr> {
        self.ready.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The agent's routes on the mesh hop.
    pub fn router(&self) -> Router {
        serve::router(Arc::clone(&self.service))
    }

    /// What the engines are doing; stays valid while the agent runs and after.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(self.service.replicas.clone())
    }

    /// Runs the engines and tells the mesh about them. On `shutdown` it takes nothing new and says so, finishes what is in
    /// flight (within [`Config::drain`]), ends the engines that it launched, and returns. The node must outlive it, or
    /// nobody hears the farewell.
    pub async fn run(mut self, handle: Handle, shutdown: CancellationToken) {
        // A second run of the same routes is not possible: `run` takes the agent.
        let _ = self.service.node.set(NodeHandle(handle.clone()));
        reap_all(&self.config.directory, self.container_tools()).await;
        let stop_engines = CancellationToken::new();
        let mut engines = self.start_engines(&stop_engines);
        let mut tasks = Tasks { handle, watching: JoinSet::new(), announcing: JoinSet::new() };
        if let Some(listener) = self.metrics.take() {
            tasks.watching.spawn(prometheus::serve(listener, Page::new(self.service.replicas.clone())));
        }
        if let Some(listener) = self.ready.take() {
            tasks.watching.spawn(readiness::serve(listener, self.status()));
        }
        for (replica, config) in self.service.replicas.all().iter().zip(&self.config.engines) {
            self.watch(&mut tasks, replica, config);
        }
        self.find_engines(&mut tasks, &shutdown).await;
        self.drain().await;
        // Nothing restarts, and nothing is probed, while the engines end.
        tasks.watching.shutdown().await;
        stop_engines.cancel();
        while engines.join_next().await.is_some() {}
        self.service.replicas.all().iter().for_each(|replica| replica.gone());
        let _ = timeout(FAREWELL, async { while tasks.announcing.join_next().await.is_some() {} }).await;
    }

    fn watch(&self, tasks: &mut Tasks, replica: &Arc<Replica>, config: &EngineConfig) {
        let (client, handle) = (&self.service.client, &tasks.handle);
        let identify_with = is_unknown(config).then(|| Arc::clone(&self.catalogue));
        tasks.watching.spawn(live(Arc::clone(replica), client.clone(), identify_with));
        tasks.watching.spawn(poll(Arc::clone(replica), client.clone()));
        tasks.watching.spawn(self_test(Arc::clone(replica), client.clone()));
        tasks.watching.spawn(report(Arc::clone(replica), handle.clone()));
        tasks.announcing.spawn(announce(Arc::clone(replica), handle.clone()));
    }

    /// Until `shutdown`: takes in engines that come up, and lets stand-ins go when there is a real one.
    async fn find_engines(&self, tasks: &mut Tasks, shutdown: &CancellationToken) {
        if self.config.discover.is_empty() {
            return shutdown.cancelled().await;
        }
        let ports = self.config.discover.clone();
        let mut scout = Scout::new(ports, self.service.client.clone(), Arc::clone(&self.catalogue));
        let search = async {
            loop {
                sleep(ROUND).await;
                for found in scout.round(&self.taken(), Instant::now()).await {
                    self.take_in(tasks, found);
                }
                self.dismiss_stand_ins();
            }
        };
        tokio::select! {
            () = search => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Local ports at which this agent has engines.
    fn taken(&self) -> HashSet<u16> {
        self.service.replicas.all().iter().filter_map(|replica| replica.view().url.as_ref()?.local_port()).collect()
    }

    fn take_in(&self, tasks: &mut Tasks, found: Found) {
        let count = self.service.replicas.all().len();
        let Some(index) = u16::try_from(count).ok().filter(|_| count < ENGINES) else { return };
        tracing::info!(replica = index, url = %found.url, runtime = %found.runtime, models = found.models.len(), "found an engine");
        let url = found.url.clone();
        let config = EngineConfig::from(found);
        // The catalogue has what an attached engine begins as, or the agent would not have been made.
        let Ok(replica) = replica(index, &config, &self.catalogue).map(Arc::new) else { return };
        self.service.replicas.push(Arc::clone(&replica));
        replica.set_url(Some(url));
        self.watch(tasks, &replica, &config);
    }

    fn dismiss_stand_ins(&self) {
        let replicas = self.service.replicas.all();
        if !replicas.iter().any(|replica| !replica.stand_in && replica.view().state == ReplicaState::Ready) {
            return;
        }
        for replica in replicas.iter().filter(|replica| replica.stand_in && !replica.is_ending()) {
            tracing::info!(replica = replica.index, "there is a real engine now: the demo engine leaves");
            replica.gone();
        }
    }

    fn start_engines(&mut self, stop: &CancellationToken) -> JoinSet<()> {
        let mut engines = JoinSet::new();
        for (replica, demo) in self.demos.drain(..) {
            if let Ok(url) = EngineUrl::loopback(demo.local_addr().port()) {
                replica.set_url(Some(url));
            }
            engines.spawn(demo.run(stop.clone()));
        }
        for (replica, config) in self.service.replicas.all().iter().zip(&self.config.engines) {
            match &config.source {
                Source::Attach(url) => replica.set_url(Some(url.clone())),
                Source::Launch { args, container, .. } => {
                    replica.set_process(Process::Waiting);
                    let (replica, directory) = (Arc::clone(replica), self.config.directory.clone());
                    let container = container.clone().map(|container| (container, self.owner.clone()));
                    let order = Order { args: args.clone(), container };
                    engines.spawn(supervise(replica, order, directory, stop.clone()));
                }
                Source::Sidecar { url, .. } => {
                    let Some(listener) = self.sidecar.take() else { continue };
                    let (url, directory, drain) = (url.clone(), self.config.directory.clone(), self.config.drain);
                    let place = Place { url, directory, drain };
                    engines.spawn(attend(Arc::clone(replica), listener, place, stop.clone()));
                }
                Source::Demo(_) => {}
            }
        }
        engines
    }

    /// Command lines with which this agent runs containers.
    fn container_tools(&self) -> BTreeSet<String> {
        self.config.engines.iter().filter_map(container_of).map(|container| container.program.clone()).collect()
    }

    async fn drain(&self) {
        let replicas = self.service.replicas.all();
        replicas.iter().for_each(|replica| replica.drain());
        let empty = join_all(replicas.iter().map(|replica| replica.gate.empty()));
        if timeout(self.config.drain, empty).await.is_err() {
            let left: u32 = replicas.iter().map(|replica| u32::from(replica.gate.counts().in_flight)).sum();
            tracing::warn!(left, "requests did not end within the drain deadline; they are cut off");
        }
    }
}

/// What goes on for each replica.
struct Tasks {
    handle: Handle,
    watching: JoinSet<()>,
    announcing: JoinSet<()>,
}

fn no_engine_twice(engines: &[EngineConfig]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for engine in engines {
        if let Source::Attach(url) = &engine.source
            && !seen.insert(url)
        {
            return Err(Error::Twice(url.clone()));
        }
    }
    Ok(())
}

fn replica(index: u16, engine: &EngineConfig, catalogue: &Catalogue) -> Result<Replica, Error> {
    let name = match &engine.source {
        Source::Attach(_) | Source::Sidecar { .. } => {
            engine.runtime.clone().map_or_else(|| RuntimeName::new("openai"), Ok)?
        }
        Source::Launch { runtime, .. } => runtime.clone(),
        Source::Demo(_) => RuntimeName::new("demo")?,
    };
    let runtime = catalogue.get(&name)?.clone();
    if let Source::Launch { container, .. } = &engine.source {
        let Some(launch) = &runtime.launch else { return Err(Error::NoLaunch(name)) };
        let error = match container {
            Some(_) if launch.image.is_none() => Some(Unlaunchable::NoImage),
            None if launch.command.is_none() => Some(Unlaunchable::OnlyContainer),
            _ => None,
        };
        if let Some(error) = error {
            return Err(Error::Unlaunchable { runtime: name, error });
        }
    }
    Ok(Replica::new(index, engine, runtime))
}

fn container_of(engine: &EngineConfig) -> Option<&ContainerConfig> {
    match &engine.source {
        Source::Launch { container, .. } => container.as_ref(),
        _ => None,
    }
}

/// Only an engine of unknown kind that somebody else starts is asked what it is.
fn is_unknown(engine: &EngineConfig) -> bool {
    matches!(engine.source, Source::Attach(_) | Source::Sidecar { .. }) && engine.runtime.is_none()
}

/// The folder that this agent shares with the one engine of its pod.
fn sidecar_folder(engines: &[EngineConfig]) -> Result<Option<&Path>, Error> {
    let mut folders = engines.iter().filter_map(|engine| match &engine.source {
        Source::Sidecar { folder, .. } => Some(folder.as_path()),
        _ => None,
    });
    let folder = folders.next();
    if folders.next().is_some() { Err(Error::TwoSidecars) } else { Ok(folder) }
}

fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, (SocketAddr, io::Error)> {
    let Some(address) = address else { return Ok(None) };
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map(Some).map_err(|error| (address, error))
}

fn make_directory(path: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|error| Error::Directory { path: path.to_owned(), error })
}

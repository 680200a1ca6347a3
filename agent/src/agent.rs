//! The agent: its engines' tasks, from start to drained.

use crate::{
    config::{Config, ENGINES, EngineConfig, Source},
    engine::{Client, EngineUrl},
    metrics::poll::poll,
    prometheus::{self, Page},
    replica::{
        Replica,
        life::live,
        report::{announce, report},
        status::Status,
    },
    serve::{self, NodeHandle, Service},
    supervise::{Process, reap_all, supervise},
};
use axum::Router;
use dunlin_node::Handle;
use dunlin_protocol::{
    id::{self, RuntimeName},
    runtime::{Catalogue, catalogue},
};
use futures::future::join_all;
use std::{collections::HashSet, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

/// Time for the last announcements to be made.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to do.
    #[error("an agent needs at least one engine")]
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
    /// The directory for logs cannot be made.
    #[error("cannot create {path}: {error}")]
    Directory {
        /// The directory.
        path: PathBuf,
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
    service: Arc<Service>,
    demos: Vec<(Arc<Replica>, crate::demo::Engine)>,
    metrics: Option<TcpListener>,
}

impl Agent {
    /// Checks the configuration, makes the directory for logs, and binds demo engines and the page for Prometheus. To be
    /// called on a tokio runtime.
    ///
    /// # Errors
    /// No engine, too many, or one twice, an unknown runtime or one that can't be launched, no directory, no port.
    pub fn new(config: Config) -> Result<Self, Error> {
        match config.engines.len() {
            0 => return Err(Error::NoEngine),
            1..=ENGINES => {}
            many => return Err(Error::TooManyEngines(many)),
        }
        no_engine_twice(&config.engines)?;
        make_directory(&config.directory)?;
        let mut replicas = Vec::new();
        let mut demos = Vec::new();
        for (index, engine) in (0..).zip(&config.engines) {
            let replica = Arc::new(replica(index, engine, &config.catalogue)?);
            if let Source::Demo(demo) = &engine.source {
                let bound = crate::demo::Engine::bind(demo.clone())?;
                demos.push((Arc::clone(&replica), bound));
            }
            replicas.push(replica);
        }
        let service = Arc::new(Service::new(replicas.into(), Client::new()));
        let metrics = config.metrics_http.map(listen).transpose()?;
        Ok(Self { config, service, demos, metrics })
    }

    /// Where `GET /metrics` is answered, if anywhere; with the port that was chosen when none was asked for.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The agent's routes on the mesh hop.
    pub fn router(&self) -> Router {
        serve::router(Arc::clone(&self.service))
    }

    /// What the engines are doing; stays valid while the agent runs and after.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.service.replicas))
    }

    /// Runs the engines and tells the mesh about them. On `shutdown` it takes nothing new and says so, finishes what is in
    /// flight (within [`Config::drain`]), ends the engines that it launched, and returns. The node must outlive it, or
    /// nobody hears the farewell.
    pub async fn run(mut self, handle: Handle, shutdown: CancellationToken) {
        // A second run of the same routes is not possible: `run` takes the agent.
        let _ = self.service.node.set(NodeHandle(handle.clone()));
        reap_all(&self.config.directory).await;
        let stop_engines = CancellationToken::new();
        let mut engines = self.start_engines(&stop_engines);
        let mut watching = JoinSet::new();
        if let Some(listener) = self.metrics.take() {
            watching.spawn(prometheus::serve(listener, Page::new(Arc::clone(&self.service.replicas))));
        }
        let mut announcing = JoinSet::new();
        for (replica, config) in self.service.replicas.iter().zip(&self.config.engines) {
            let client = &self.service.client;
            watching.spawn(live(Arc::clone(replica), client.clone(), identify_with(config, &self.config.catalogue)));
            watching.spawn(poll(Arc::clone(replica), client.clone()));
            watching.spawn(report(Arc::clone(replica), handle.clone()));
            announcing.spawn(announce(Arc::clone(replica), handle.clone()));
        }
        shutdown.cancelled().await;
        self.drain().await;
        // Nothing restarts, and nothing is probed, while the engines end.
        watching.shutdown().await;
        stop_engines.cancel();
        while engines.join_next().await.is_some() {}
        self.service.replicas.iter().for_each(|replica| replica.gone());
        let _ = timeout(FAREWELL, async { while announcing.join_next().await.is_some() {} }).await;
    }

    fn start_engines(&mut self, stop: &CancellationToken) -> JoinSet<()> {
        let mut engines = JoinSet::new();
        for (replica, demo) in self.demos.drain(..) {
            if let Ok(url) = EngineUrl::loopback(demo.local_addr().port()) {
                replica.set_url(Some(url));
            }
            engines.spawn(demo.run(stop.clone()));
        }
        for (replica, config) in self.service.replicas.iter().zip(&self.config.engines) {
            match &config.source {
                Source::Attach(url) => replica.set_url(Some(url.clone())),
                Source::Launch { args, .. } => {
                    replica.set_process(Process::Waiting);
                    let (replica, directory) = (Arc::clone(replica), self.config.directory.clone());
                    engines.spawn(supervise(replica, args.clone(), directory, stop.clone()));
                }
                Source::Demo(_) => {}
            }
        }
        engines
    }

    async fn drain(&self) {
        let replicas = &self.service.replicas;
        replicas.iter().for_each(|replica| replica.drain());
        let empty = join_all(replicas.iter().map(|replica| replica.gate.empty()));
        if timeout(self.config.drain, empty).await.is_err() {
            let left: u32 = replicas.iter().map(|replica| u32::from(replica.gate.counts().in_flight)).sum();
            tracing::warn!(left, "requests did not end within the drain deadline; they are cut off");
        }
    }
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
        Source::Attach(_) => engine.runtime.clone().map_or_else(|| RuntimeName::new("openai"), Ok)?,
        Source::Launch { runtime, .. } => runtime.clone(),
        Source::Demo(_) => RuntimeName::new("demo")?,
    };
    let runtime = catalogue.get(&name)?.clone();
    if matches!(engine.source, Source::Launch { .. }) && runtime.launch.is_none() {
        return Err(Error::NoLaunch(name));
    }
    Ok(Replica::new(index, engine, runtime))
}

/// Only an attached engine of unknown kind is asked what it is.
fn identify_with(engine: &EngineConfig, catalogue: &Catalogue) -> Option<Arc<Catalogue>> {
    let unknown = matches!(engine.source, Source::Attach(_)) && engine.runtime.is_none();
    unknown.then(|| Arc::new(catalogue.clone()))
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    bound.map_err(|error| Error::Metrics { address, error })
}

fn make_directory(path: &std::path::Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|error| Error::Directory { path: path.to_owned(), error })
}

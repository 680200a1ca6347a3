//! What an agent is told: its engines, and where it keeps their logs.

pub use crate::replica::hang::Patience;

use crate::engine::{EngineUrl, discover::Found};
use dunlin_protocol::{
    id::{ModelId, RuntimeName},
    runtime::Catalogue,
};
use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

/// Time between two readings of an engine's metrics while it works.
pub const METRICS_INTERVAL: Duration = Duration::from_millis(100);
/// Longest that requests in flight may take after the agent was told to stop.
pub const DRAIN: Duration = Duration::from_secs(60);
/// Engines of one agent: replica indices are small, and one process answers for them all.
pub const ENGINES: usize = 64;

/// Everything that an agent needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its engines; their order gives the replica indices.
    pub engines: Vec<EngineConfig>,
    /// Where logs and pid files of launched engines lie, inside the state directory. Created when missing.
    pub directory: PathBuf,
    /// Known runtimes.
    pub catalogue: Catalogue,
    /// Longest that requests in flight may take after shutdown was asked for.
    pub drain: Duration,
    /// Where to listen for Prometheus, which `GET /metrics` answers there; `None` for nowhere.
    pub metrics_http: Option<SocketAddr>,
    /// Where to listen for the kubelet, which `GET /ready` answers there; `None` for nowhere.
    pub ready_http: Option<SocketAddr>,
    /// Local ports at which engines are looked for while the agent runs; those that other engines have already are left
    /// out. Empty: nothing is looked for, and there must be an engine.
    pub discover: BTreeSet<u16>,
}

/// Where an engine comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// It runs already.
    Attach(EngineUrl),
    /// The agent runs it as a child process.
    Launch {
        /// Which entry of the catalogue.
        runtime: RuntimeName,
        /// The user's own arguments.
        args: Vec<String>,
        /// Run it in a container instead.
        container: Option<ContainerConfig>,
    },
    /// `dunlin engine` runs it in another container of this pod, as this agent says.
    Sidecar {
        /// Where it listens.
        url: EngineUrl,
        /// The folder that both containers see: the executable and the socket lie there.
        folder: PathBuf,
    },
    /// The simulated engine inside this program.
    Demo(crate::demo::Config),
}

/// How an engine is run in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerConfig {
    /// Whose command line it is.
    pub tool: ContainerTool,
    /// The command line: a name that is looked up in `PATH`, or a path.
    pub program: String,
    /// GPUs that it is given.
    pub gpus: Option<Gpus>,
    /// Further options of `run`.
    pub options: Vec<String>,
}

impl ContainerConfig {
    /// As `tool` runs it by default: no GPU, no further options.
    #[must_use]
    pub fn new(tool: ContainerTool) -> Self {
        Self { tool, program: tool.program().to_owned(), gpus: None, options: Vec::new() }
    }
}

/// Command lines that run containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerTool {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl ContainerTool {
    /// What its command is called.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// GPUs of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// Every one of the machine.
    All,
    /// So many.
    Count(u16),
    /// These, by index or UUID.
    Devices(Vec<String>),
}

/// A LoRA adapter that an engine may load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterConfig {
    /// As clients name it.
    pub name: ModelId,
    /// Where the engine finds it: a folder of its host, or a name on a hub. Never taken from a request.
    pub source: String,
}

/// One engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where it comes from.
    pub source: Source,
    /// Its kind; `None` to find out by asking. Ignored for launched and demo engines, whose kind is known.
    pub runtime: Option<RuntimeName>,
    /// Models that count as listed whatever the engine says; when there are any, only these and adapters on top of them
    /// are served.
    pub models: Vec<ModelId>,
    /// LoRA adapters that it may be told to load.
    pub adapters: Vec<AdapterConfig>,
    /// Requests that it works on at once; `None` to take the engine's word or the runtime's default.
    pub slots: Option<u16>,
    /// How many kinds of hardware would be preferred to its own: 0 for the best. It decides between replicas that are as
    /// good as equal.
    pub flavor: u8,
    /// Time between two readings of its metrics while it works.
    pub metrics_interval: Duration,
    /// When it is started again though its process lives, if the agent launched it.
    pub patience: Patience,
    /// Nobody named it, it was found: when it stays away, so does its replica, until it is back.
    pub found: bool,
    /// Serves only until another engine of this agent is ready, and never again.
    pub stand_in: bool,
}

impl EngineConfig {
    /// An engine from `source`, everything else found out.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            source,
            runtime: None,
            models: Vec::new(),
            adapters: Vec::new(),
            slots: None,
            flavor: 0,
            metrics_interval: METRICS_INTERVAL,
            patience: Patience::default(),
            found: false,
            stand_in: false,
        }
    }
}

impl From<Found> for EngineConfig {
    fn from(found: Found) -> Self {
        // Its kind is asked for again whenever it comes up: the next engine at that port may be another.
        Self { found: true, ..Self::new(Source::Attach(found.url)) }
    }
}

impl Config {
    /// No engines yet, with the built-in runtimes.
    ///
    /// # Errors
    /// A built-in runtime is wrong, which tests rule out.
    pub fn new(directory: PathBuf) -> Result<Self, dunlin_protocol::runtime::catalogue::Error> {
        Ok(Self {
            engines: Vec::new(),
            directory,
            catalogue: Catalogue::built_in()?,
            drain: DRAIN,
            metrics_http: None,
            ready_http: None,
            discover: BTreeSet::new(),
        })
    }
}

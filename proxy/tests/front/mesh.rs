//! A mesh on loopback: one proxy, which holds the mesh key, and agents that join it by invitation.

use crate::{client::Client, engine::Engine};
use axum::Router;
use dunlin_node::{Config as NodeConfig, Handle, Node, Offer, issuer::InvitationOptions, join, mesh, state::StateDir};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::{ModelId, ReplicaId, Role, Roles, RuntimeName},
    load::{LoadReport, Measured},
    pattern::Models,
    record::Continuation,
};
use dunlin_proxy::{Config, Keys, Proxy};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LOOPBACK: &str = "/ip4/127.0.0.1/tcp/0";

/// One proxy and what it stands on. Everything ends with it.
pub(crate) struct Mesh {
    pub(crate) proxy: Handle,
    pub(crate) endpoint: SocketAddr,
    /// Of the admin API, where there is one.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) keys: Keys,
    pub(crate) control: Router,
    pub(crate) key: String,
    folder: PathBuf,
    stop: CancellationToken,
}

impl Mesh {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A mesh whose proxy is configured by `change`.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::start(change, Router::new()).await
    }

    /// A mesh of one process, which serves `models` itself.
    pub(crate) async fn alone(models: &[&str], slots: u16, engine: &Engine) -> Self {
        let mesh = Self::start(|_| {}, engine.router()).await;
        engine.belongs_to(&mesh.proxy);
        mesh.proxy.offer(offer(ReplicaState::Ready, models, slots)).await;
        mesh
    }

    async fn start(change: impl FnOnce(&mut Config), routes: Router) -> Self {
        let folder = folder();
        let state = StateDir::open(folder.join("proxy")).unwrap();
        let roles = Roles::from_iter([Role::Proxy, Role::Agent]);
        mesh::create(&state, roles, None, unix_now()).unwrap();
        let mut node = NodeConfig::new(state, roles);
        node.listen = vec![LOOPBACK.parse().unwrap()];
        let (node, proxy) = Node::start(node, routes).await.unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(node.run(stop.clone()));
        let keys = Keys::open(&folder.join("keys.db")).unwrap();
        let key = keys.create("test").unwrap().key;
        let mut config = Config { http: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        change(&mut config);
        let front = Proxy::new(config, proxy.clone(), keys.clone()).unwrap();
        let (endpoint, admin, control) = (front.local_addr(), front.admin_addr(), front.control_routes());
        tokio::spawn(front.run(stop.clone()));
        Self { proxy, endpoint, admin, keys, control, key, folder, stop }
    }

    /// A client with the mesh's first key.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.endpoint, Some(&self.key))
    }

    /// A client with a key of its own.
    pub(crate) async fn other_client(&self, name: &str) -> Client {
        Client::new(self.endpoint, Some(&self.keys.create(name).unwrap().key))
    }

    /// A client that sends `key`, if any.
    pub(crate) fn client_with(&self, key: Option<&str>) -> Client {
        Client::new(self.endpoint, key)
    }

    /// An agent that serves `models` through `engine`, known to the proxy when this returns.
    pub(crate) async fn agent(&self, models: &[&str], slots: u16, engine: &Engine) -> Agent {
        let agent = self.agent_not_ready(engine).await;
        agent.offer(ReplicaState::Ready, models, slots).await;
        self.until(|mesh| mesh.knows(&agent, models[0], true)).await;
        agent
    }

    /// The same with an engine that has proved to go on with a partial answer to the letter.
    pub(crate) async fn exact_agent(&self, models: &[&str], slots: u16, engine: &Engine) -> Agent {
        self.kin_agent(models, slots, engine, |_| {}).await
    }

    /// The same with an offer changed by `change`.
    pub(crate) async fn kin_agent(
        &self,
        models: &[&str],
        slots: u16,
        engine: &Engine,
        change: impl FnOnce(&mut Offer),
    ) -> Agent {
        let agent = self.agent_not_ready(engine).await;
        let mut offered = offer(ReplicaState::Ready, models, slots);
        offered.continuation = Continuation::Exact;
        offered.models.iter_mut().for_each(|model| model.root = Some(1));
        change(&mut offered);
        agent.handle.offer(offered).await;
        self.until(|mesh| mesh.knows(&agent, models[0], true)).await;
        agent
    }

    /// An agent that has joined and says nothing of a replica yet.
    pub(crate) async fn agent_not_ready(&self, engine: &Engine) -> Agent {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = self.folder.join(format!("agent-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let roles = Roles::from_iter([Role::Agent]);
        let life = Duration::from_secs(600);
        let invited =
            InvitationOptions { roles, models: Models::Any, life, uses: 1, namespaces: Vec::new(), keys: false };
        let token = self.proxy.invite(invited).await.unwrap();
        let state = StateDir::open(&path).unwrap();
        let (chain, _) = join::join(&token, &state.identity().unwrap(), None).await.unwrap();
        state.store_chain(&chain).unwrap();
        self.run_agent(path, state, engine).await
    }

    /// The same node as a new process, which has said nothing yet.
    pub(crate) async fn restart(&self, mut agent: Agent, engine: &Engine) -> Agent {
        agent.kill().await;
        // Handles of the dead process still lock its folder.
        let path = agent.path.with_extension("again");
        std::fs::create_dir(&path).unwrap();
        for file in std::fs::read_dir(&agent.path).unwrap().map(Result::unwrap) {
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), path.join(file.file_name())).unwrap();
            }
        }
        let state = StateDir::open(&path).unwrap();
        self.run_agent(path, state, engine).await
    }

    async fn run_agent(&self, path: PathBuf, state: StateDir, engine: &Engine) -> Agent {
        let roles = Roles::from_iter([Role::Agent]);
        let mut config = NodeConfig::new(state, roles);
        config.listen = vec![LOOPBACK.parse().unwrap()];
        config.bootstrap = self.proxy.listen_addresses();
        let (node, handle) = Node::start(config, engine.router()).await.unwrap();
        engine.belongs_to(&handle);
        let stop = self.stop.child_token();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                let _ = node.run(stop).await;
            }
        });
        Agent { handle, path, stop, task: Some(task) }
    }

    /// Whether the proxy sees the agent's replica of `model`, connected, and ready or not.
    pub(crate) fn knows(&self, agent: &Agent, model: &str, ready: bool) -> bool {
        let id = agent.replica();
        let model = ModelId::new(model).unwrap();
        self.proxy.directory().read(|directory| {
            let ready_state = |state| (state == ReplicaState::Ready) == ready;
            directory
                .replica(&id)
                .is_some_and(|it| ready_state(it.state) && it.serves(&model) && it.reachability.is_connected())
        })
    }

    /// Waits until something holds.
    pub(crate) async fn until(&self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..1000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 10 s");
    }

    /// One value of `/metrics`: the sum over all lines that begin with `series`.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let page = self.client().get("/metrics").await.text();
        let values = page.lines().filter(|line| line.starts_with(series)).filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One agent's node.
pub(crate) struct Agent {
    pub(crate) handle: Handle,
    path: PathBuf,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Agent {
    pub(crate) fn replica(&self) -> ReplicaId {
        self.handle.replica_id(0)
    }

    pub(crate) async fn offer(&self, state: ReplicaState, models: &[&str], slots: u16) {
        self.handle.offer(offer(state, models, slots)).await;
    }

    /// Gossips a load report.
    pub(crate) fn report(&self, slots: u16, in_flight: u16) {
        self.handle.report(report(&self.handle, slots, in_flight));
    }

    /// Ends at once, without a farewell, as by kill -9: sockets close, nothing is said.
    pub(crate) async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn report(handle: &Handle, slots: u16, in_flight: u16) -> LoadReport {
    LoadReport {
        replica: handle.replica_id(0),
        version: handle.next_load_version(),
        slots,
        in_flight,
        queued: 0,
        draining: false,
        flavor: 0,
        measured: Measured::default(),
        engine: None,
    }
}

fn offer(state: ReplicaState, models: &[&str], slots: u16) -> Offer {
    let served = |id: &&str| ServedModel { id: ModelId::new(id).unwrap(), parent: None, context: None, root: None };
    Offer {
        index: 0,
        state,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots,
        models: models.iter().map(served).collect(),
    }
}

fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("dunlin-front-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn unix_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

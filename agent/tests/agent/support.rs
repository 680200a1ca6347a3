//! What the tests share: a node, an agent on it, and a client that speaks like a proxy.

use bytes::Bytes;
use dunlin_agent::{Agent, Config, EngineConfig, EngineStatus, Source, Status, engine::EngineUrl};
use dunlin_node::{Handle, Node, mesh, state::StateDir};
use dunlin_protocol::{
    announcement::ReplicaState,
    hop::{MODEL, REPLICA_INDEX},
    id::{Role, Roles},
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use std::{
    future::Future,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A runtime that launches the test engine.
const SCRIPT: &str = r#"
name = "script"
[launch]
command = "python3"
args = ["ENGINE", "--port", "{port}", "{args}"]
[probe]
health = "/health"
models = "/v1/models"
identify = [{ path = "/v1/models", pointer = "/data/0/owned_by", equals = "script" }]
[metrics]
path = "/metrics"
[metrics.names]
running = ["script_running"]
waiting = ["script_waiting"]
[slots]
default = 4
[drain]
grace_s = 2
"#;

pub(crate) fn config(directory: &Path) -> Config {
    let mut config = Config::new(directory.to_owned()).unwrap();
    let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engine.py");
    config.catalogue.merge("test", &SCRIPT.replace("ENGINE", engine)).unwrap();
    config
}

pub(crate) fn script(args: &str) -> EngineConfig {
    let args = args.split_whitespace().map(str::to_owned).collect();
    EngineConfig::new(Source::Launch { runtime: "script".parse().unwrap(), args, container: None })
}

pub(crate) fn demo(change: impl FnOnce(&mut dunlin_agent::demo::Config)) -> EngineConfig {
    let mut config = dunlin_agent::demo::Config::default();
    change(&mut config);
    EngineConfig::new(Source::Demo(config))
}

/// A running agent on a node of its own.
pub(crate) struct Running {
    pub(crate) status: Status,
    pub(crate) node: Handle,
    pub(crate) hop: http2::SendRequest<Full<Bytes>>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) agent: JoinHandle<()>,
    pub(crate) directory: PathBuf,
    _ends: DropGuard,
    _home: TempDir,
}

/// Starts an agent with `engines` in a directory of its own.
pub(crate) async fn start(engines: Vec<EngineConfig>) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let running = start_in(&directory.path().join("engines"), engines).await;
    // Lies in the temporary folder until the test process ends; children may still write to it.
    let _ = directory.keep();
    running
}

pub(crate) async fn start_in(directory: &Path, engines: Vec<EngineConfig>) -> Running {
    start_with(Config { engines, ..config(directory) }).await
}

pub(crate) async fn start_with(config: Config) -> Running {
    let directory = config.directory.clone();
    let agent = Agent::new(config).unwrap();
    let (status, router) = (agent.status(), agent.router());
    let home = tempfile::tempdir().unwrap();
    let ended = CancellationToken::new();
    let node = node(home.path(), &ended).await;
    let shutdown = ended.child_token();
    let agent = tokio::spawn(agent.run(node.clone(), shutdown.clone()));
    let hop = connect(router, &ended).await;
    Running { status, node, hop, shutdown, agent, directory, _ends: ended.drop_guard(), _home: home }
}

async fn node(home: &Path, ended: &CancellationToken) -> Handle {
    let state = StateDir::open(home).unwrap();
    let roles = Roles::from_iter([Role::Agent, Role::Proxy]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    mesh::create(&state, roles, None, now).unwrap();
    let mut config = dunlin_node::Config::new(state, roles);
    config.mdns = false;
    let (node, handle) = Node::start(config, axum::Router::new()).await.unwrap();
    tokio::spawn(node.run(ended.clone()));
    handle
}

/// The agent's routes behind HTTP/2 on loopback, as `dunlin_node::hop` serves them.
async fn connect(router: axum::Router, ended: &CancellationToken) -> http2::SendRequest<Full<Bytes>> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ended = ended.clone();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(router);
        let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = serving => {}
            () = ended.cancelled() => {}
        }
    });
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// An answer read whole.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub(crate) async fn whole(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    let body = String::from_utf8(body.to_bytes().into()).unwrap();
    Answer { status: head.status, headers: head.headers, body, trailers }
}

impl Running {
    pub(crate) fn engine(&self, index: usize) -> EngineStatus {
        self.status.engines().remove(index)
    }

    /// Waits until engine `index` serves.
    pub(crate) async fn ready(&self, index: usize) -> EngineStatus {
        eventually("ready", || self.engine(index).state == ReplicaState::Ready).await;
        self.engine(index)
    }

    pub(crate) fn request(
        &self,
        index: u16,
        model: &str,
        path: &str,
        body: &serde_json::Value,
    ) -> Request<Full<Bytes>> {
        Request::builder()
            .method(Method::POST)
            .uri(format!("http://agent/engine{path}"))
            .header(REPLICA_INDEX, index.to_string())
            .header(MODEL, model)
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))
            .unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.hop.clone().send_request(request).await
    }

    /// A chat request to engine 0, read whole.
    pub(crate) async fn chat(&self, model: &str, body: serde_json::Value) -> Answer {
        let request = self.request(0, model, "/v1/chat/completions", &body);
        whole(self.send(request).await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response<Incoming> {
        let request = Request::get(format!("http://agent{path}")).body(Full::default()).unwrap();
        self.send(request).await.unwrap()
    }

    /// What a script engine says of itself.
    pub(crate) async fn engine_state(&self, index: usize) -> serde_json::Value {
        let url: EngineUrl = self.engine(index).url.unwrap().parse().unwrap();
        let answer = client().get(&url, "/state", Duration::from_secs(2), 1 << 20).await.unwrap();
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Posts to the engine itself, past the agent.
    pub(crate) async fn tell(&self, index: usize, path: &str, body: serde_json::Value) {
        let url: EngineUrl = self.engine(index).url.unwrap().parse().unwrap();
        let answer = client().post_json(&url, path, &body, Duration::from_secs(2), 1 << 20).await.unwrap();
        assert!(answer.status.is_success(), "{answer:?}");
    }

    /// Stops the agent as SIGTERM does; returns how long it took.
    pub(crate) async fn stop(self) -> Duration {
        let started = Instant::now();
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(20), self.agent).await.unwrap().unwrap();
        started.elapsed()
    }
}

pub(crate) fn client() -> dunlin_agent::engine::Client {
    dunlin_agent::engine::Client::new()
}

/// Waits up to ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    eventually_async(what, || std::future::ready(holds())).await
}

pub(crate) async fn eventually_async<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) -> Duration {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(10), "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    started.elapsed()
}

/// Whether a process runs. A zombie has ended.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The worker's process id from the output of a script engine.
pub(crate) fn worker(status: &EngineStatus) -> u32 {
    let line = status.last_output.iter().find(|line| line.starts_with("worker ")).expect("a worker");
    line["worker ".len()..].parse().unwrap()
}

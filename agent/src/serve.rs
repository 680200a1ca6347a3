//! The agent's routes on the mesh hop: `/engine/*` goes to the engine, `/mesh/logs` shows what a launched engine wrote.
//!
//! Who may call them has been checked before (`dunlin_node::hop::server`); that the model is one that this agent
//! registered is checked here.

mod adapters;
mod forward;
mod headers;
mod logs;
mod refusal;
mod relay;
mod usage;

use crate::{
    engine::Client,
    replica::{
        Replica,
        status::{EngineStatus, Status},
    },
    replicas::Replicas,
};
use axum::{
    Json, Router,
    extract::State,
    response::IntoResponse,
    routing::{any, get},
};
use dunlin_node::Handle;
use dunlin_protocol::{hop::ENGINES_PATH, id::ModelId, load::LoadReport};
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};
use tokio::sync::Semaphore;

/// Followers of engine output at the same time.
const FOLLOWERS: usize = 32;

/// What the routes need.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) replicas: Replicas,
    pub(crate) client: Client,
    /// Known once the node runs; before that, no request can come.
    pub(crate) node: OnceLock<NodeHandle>,
    followers: Arc<Semaphore>,
}

/// A [`Handle`] that can be shown.
#[derive(Clone)]
pub(crate) struct NodeHandle(pub(crate) Handle);

impl std::fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeHandle({})", self.0.peer_id())
    }
}

impl Service {
    pub(crate) fn new(replicas: Replicas, client: Client) -> Self {
        Self { replicas, client, node: OnceLock::new(), followers: Arc::new(Semaphore::new(FOLLOWERS)) }
    }

    /// Whether this peer's certificate covers the model. The node leaves others out of what it announces.
    fn may_serve(&self, model: &ModelId) -> bool {
        self.node.get().is_none_or(|node| node.0.members().own().may_serve(model))
    }

    /// The load of a replica now; `None` before the node runs.
    fn load(&self, replica: &Replica) -> Option<LoadReport> {
        self.node.get().map(|node| replica.load(&node.0, Instant::now()))
    }
}

/// The routes, for `dunlin_node::Node::start`.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/engine/{*path}", any(forward::engine))
        .route("/mesh/logs", get(logs::logs))
        .route("/mesh/adapters", get(adapters::list).post(adapters::order))
        .route(ENGINES_PATH, get(engines))
        .with_state(service)
}

/// How the engines stand.
async fn engines(State(service): State<Arc<Service>>) -> Json<Vec<EngineStatus>> {
    Json(Status(service.replicas.clone()).engines())
}

/// The routes of a member without engines, for callers that still believe it to have one.
pub fn without_engines() -> Router {
    let refuse = || async { refusal::Refusal::NoReplica("at all".to_owned()).into_response() };
    Router::new().route("/engine/{*path}", any(refuse))
}

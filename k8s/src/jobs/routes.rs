//! Jobs as HTTP on the mesh hop. Who is an operator at all was decided before, by `dunlin_protocol::hop::Route`; in which
//! namespaces is decided here, for each request.

use super::{Error, Jobs, logs::Agents};
use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, FromRequestParts, Path, RawQuery, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dunlin_node::hop::Caller;
use dunlin_protocol::{
    certificate::EVERY_NAMESPACE,
    jobs::{APPLY_PATH, AddModel, CLUSTER_PATH, Deploy, MODELS_PATH, PATH, Problem, Rollout, Scale, is_label},
    limits,
};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Requests of operators at once; more are told to come later.
const AT_ONCE: usize = 16;

#[derive(Clone)]
struct Shared {
    jobs: Jobs,
    agents: Agents,
    turns: Arc<Semaphore>,
}

/// The routes of an orchestrator, which reaches its replicas through `agents`.
pub fn routes(jobs: Jobs, agents: Agents) -> Router {
    Router::new()
        .route(PATH, get(list).post(deploy))
        .route(&format!("{PATH}/{{cluster}}/{{namespace}}/{{name}}"), get(job).delete(delete))
        .route(&format!("{PATH}/{{cluster}}/{{namespace}}/{{name}}/scale"), post(scale))
        .route(&format!("{PATH}/{{cluster}}/{{namespace}}/{{name}}/rollout"), get(progress).post(rollout))
        .route(&format!("{PATH}/{{cluster}}/{{namespace}}/{{name}}/logs/{{replica}}"), get(logs))
        .route(MODELS_PATH, get(models))
        .route(&format!("{MODELS_PATH}/{{cluster}}"), post(add))
        .route(&format!("{APPLY_PATH}/{{cluster}}"), post(apply))
        .route(CLUSTER_PATH, get(cluster))
        .layer(DefaultBodyLimit::max(limits::JOB_BYTES))
        .with_state(Shared { jobs, agents, turns: Arc::new(Semaphore::new(AT_ONCE)) })
}

/// In `namespace`, unless the caller may not operate there, or too many others are at it.
async fn within<T: Serialize>(
    shared: &Shared,
    caller: &Caller,
    namespace: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Response {
    if !is_label(namespace) {
        return refuse(&Error::Wrong(format!("{namespace:?} is no namespace")));
    }
    if !caller.membership.may_operate(namespace) {
        return refuse(&Error::Forbidden(namespace.to_owned()));
    }
    answer(shared, work).await
}

async fn answer<T: Serialize>(shared: &Shared, work: impl Future<Output = Result<T, Error>>) -> Response {
    let Ok(_turn) = shared.turns.try_acquire() else {
        let problem = "the orchestrator has too much to do; try again in a moment".to_owned();
        return (StatusCode::TOO_MANY_REQUESTS, Json(Problem { problem })).into_response();
    };
    match work.await {
        Ok(value) => Json(value).into_response(),
        Err(error) => refuse(&error),
    }
}

/// What is said of another cluster's things.
fn elsewhere(shared: &Shared, cluster: &str) -> Option<Response> {
    let own = &shared.jobs.cluster;
    (cluster != own)
        .then(|| refuse(&Error::Missing(format!("this is the orchestrator of cluster {own}, not {cluster}"))))
}

fn refuse(error: &Error) -> Response {
    let status = match error {
        Error::Wrong(_) => StatusCode::BAD_REQUEST,
        Error::Missing(_) => StatusCode::NOT_FOUND,
        Error::Conflict(_) => StatusCode::CONFLICT,
        Error::Forbidden(_) => StatusCode::FORBIDDEN,
        Error::Cluster(_) | Error::Silent => StatusCode::BAD_GATEWAY,
    };
    (status, Json(Problem { problem: error.to_string() })).into_response()
}

async fn list(State(shared): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    let may = |namespace: &str| caller.membership.may_operate(namespace);
    answer(&shared, shared.jobs.list(may)).await
}

async fn deploy(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Json(order): Json<Deploy>,
) -> Response {
    if let Some(name) = order.name.as_ref().filter(|name| !is_label(name)) {
        return refuse(&Error::Wrong(format!("{name:?} is no name of a job: small letters, digits and -")));
    }
    if let Some(refused) = order.cluster.as_ref().and_then(|cluster| elsewhere(&shared, cluster)) {
        return refused;
    }
    within(&shared, &caller, &order.namespace, Box::pin(shared.jobs.deploy(&order))).await
}

/// A job of this cluster.
struct Which {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Path3 {
    cluster: String,
    namespace: String,
    name: String,
}

impl FromRequestParts<Shared> for Which {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Response> {
        let path = Path::<Path3>::from_request_parts(parts, shared).await;
        let Path(Path3 { cluster, namespace, name }) = path.map_err(IntoResponse::into_response)?;
        if let Some(refused) = elsewhere(shared, &cluster) {
            return Err(refused);
        }
        Ok(Self { namespace, name })
    }
}

async fn job(State(shared): State<Shared>, Extension(caller): Extension<Caller>, which: Which) -> Response {
    let Which { namespace, name } = which;
    within(&shared, &caller, &namespace, shared.jobs.job(&namespace, &name)).await
}

async fn delete(State(shared): State<Shared>, Extension(caller): Extension<Caller>, which: Which) -> Response {
    let Which { namespace, name } = which;
    let deleted = async {
        let deleted = shared.jobs.delete(&namespace, &name).await?;
        tracing::info!(operator = %caller.peer, job = %deleted, "a job is ended");
        Ok(deleted)
    };
    within(&shared, &caller, &namespace, deleted).await
}

async fn scale(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Which { namespace, name }: Which,
    Json(Scale { replicas }): Json<Scale>,
) -> Response {
    within(&shared, &caller, &namespace, shared.jobs.scale(&namespace, &name, replicas)).await
}

async fn rollout(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Which { namespace, name }: Which,
    Json(what): Json<Rollout>,
) -> Response {
    within(&shared, &caller, &namespace, shared.jobs.rollout(&namespace, &name, what, Timestamp::now())).await
}

async fn progress(State(shared): State<Shared>, Extension(caller): Extension<Caller>, which: Which) -> Response {
    let Which { namespace, name } = which;
    within(&shared, &caller, &namespace, shared.jobs.progress(&namespace, &name)).await
}

#[derive(Deserialize)]
struct OfReplica {
    replica: String,
}

/// What an engine of a job wrote. The agent knows no namespaces, so that it is asked in the orchestrator's name.
async fn logs(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Which { namespace, name }: Which,
    Path(OfReplica { replica }): Path<OfReplica>,
    RawQuery(query): RawQuery,
) -> Response {
    if !caller.membership.may_operate(&namespace) {
        return refuse(&Error::Forbidden(namespace));
    }
    let answered = async {
        let job = shared.jobs.job(&namespace, &name).await?;
        let found = job.replicas.iter().find(|one| one.name == replica);
        let found = found.ok_or_else(|| Error::Missing(format!("{} has no replica {replica}", job.id)))?;
        let peer = found.peer.as_ref().and_then(|peer| peer.parse().ok());
        let peer =
            peer.ok_or_else(|| Error::Missing(format!("{replica} has not joined the mesh yet: {}", found.phase)))?;
        shared.agents.logs(peer, query.as_deref().unwrap_or_default()).await
    };
    answered.await.unwrap_or_else(|error| refuse(&error))
}

async fn models(State(shared): State<Shared>) -> Response {
    answer(&shared, shared.jobs.models()).await
}

async fn add(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(cluster): Path<String>,
    Json(order): Json<AddModel>,
) -> Response {
    if let Some(refused) = elsewhere(&shared, &cluster) {
        return refused;
    }
    if !caller.membership.may_operate(EVERY_NAMESPACE) {
        return refuse(&Error::Forbidden(EVERY_NAMESPACE.to_owned()));
    }
    answer(&shared, shared.jobs.add(&order)).await
}

async fn cluster(State(shared): State<Shared>) -> Response {
    answer(&shared, async { Ok(&shared.jobs.cluster) }).await
}

async fn apply(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(cluster): Path<String>,
    Json(object): Json<Value>,
) -> Response {
    if let Some(refused) = elsewhere(&shared, &cluster) {
        return refused;
    }
    let may = |namespace: &str| caller.membership.may_operate(namespace);
    answer(&shared, shared.jobs.apply(&object, may)).await
}

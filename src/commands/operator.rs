//! Asking the orchestrators of the mesh: the node of this machine does, over the hop, in its own role.

use super::connect;
use anyhow::{Result, bail};
use axum::{
    Json, Router,
    body::Body,
    extract::{Path, RawQuery, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use dunlin_node::{Handle, hop};
use dunlin_protocol::{
    id::{PeerId, Role},
    jobs::{PATH, Problem},
    limits,
    topic::Topic,
};
use futures::{StreamExt, future::join_all, stream};
use http::{Method, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::time::Duration;
use tokio::time::timeout;

/// Orchestrators of one mesh that are asked.
const ORCHESTRATORS: usize = 16;
/// Longest wait for a connection to one that registered as such, and was not met yet.
const MEET: Duration = Duration::from_secs(3);
/// From the question to the whole answer of one of them.
const DEADLINE: Duration = Duration::from_secs(30);
/// Largest answer: a listing of all jobs.
const ANSWER_BYTES: usize = 8 << 20;
/// Largest word about why there is none.
const PROBLEM_BYTES: usize = 64 << 10;

/// A question for every orchestrator.
#[derive(Serialize, Deserialize)]
struct Question {
    method: String,
    path: String,
    body: serde_json::Value,
}

/// What one orchestrator says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Answer {
    peer: PeerId,
    /// 0 when it was not reached.
    status: u16,
    body: serde_json::Value,
}

/// Control routes: `POST /operator`, and `GET /job-logs/CLUSTER/NAMESPACE/NAME/REPLICA?...`, as `/mesh/logs` takes it.
pub(crate) fn routes(handle: Handle) -> Router {
    let logs = "/job-logs/{cluster}/{namespace}/{name}/{replica}";
    Router::new().route("/operator", post(ask_all)).route(logs, get(logs_of)).with_state(handle)
}

/// The output of a job's replica, from whichever orchestrator knows the job.
async fn logs_of(
    State(handle): State<Handle>,
    Path((cluster, namespace, name, replica)): Path<(String, String, String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let mut problem = (StatusCode::NOT_FOUND, "no orchestrator is known in this mesh".to_owned());
    for peer in orchestrators(&handle).await {
        let path =
            format!("{PATH}/{cluster}/{namespace}/{name}/logs/{replica}?{}", query.as_deref().unwrap_or_default());
        let asked = async {
            handle.connect(peer).await.map_err(|error| error.to_string())?;
            let request = http::Request::builder().uri(path).body(hop::Body::empty());
            let request = request.map_err(|error| error.to_string())?;
            handle.hop().send(peer, request).await.map_err(|error| error.to_string())
        };
        match timeout(DEADLINE, asked).await {
            Ok(Ok(answer)) if answer.status().is_success() => return answer.map(Body::new),
            Ok(Ok(answer)) => {
                let status = answer.status();
                let body = Limited::new(answer.into_body(), PROBLEM_BYTES).collect().await;
                let text = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                let said = serde_json::from_slice::<Problem>(&text).map(|said| said.problem);
                let said = said.unwrap_or_else(|_| format!("orchestrator {peer} answered {status}"));
                if status != StatusCode::NOT_FOUND || problem.0 == StatusCode::NOT_FOUND {
                    problem = (status, said);
                }
            }
            Ok(Err(cause)) => problem = (StatusCode::BAD_GATEWAY, cause),
            Err(_) => problem = (StatusCode::BAD_GATEWAY, format!("no answer within {} s", DEADLINE.as_secs())),
        }
    }
    let (status, message) = problem;
    (status, Json(serde_json::json!({ "error": { "message": message } }))).into_response()
}

/// The orchestrators of the mesh that can be asked.
async fn orchestrators(handle: &Handle) -> Vec<PeerId> {
    let topic = Topic::Role(Role::Orchestrator);
    // Without an answer, those that are known already are asked.
    let _ = handle.look_up(topic.clone()).await;
    let strangers: Vec<PeerId> = handle.directory().read(|directory| match directory.awaits(&topic) {
        true => directory.strangers().map(|stranger| stranger.peer).take(ORCHESTRATORS).collect(),
        false => Vec::new(),
    });
    // A connection proves who they are.
    join_all(strangers.iter().map(|peer| timeout(MEET, handle.connect(*peer)))).await;
    let members = handle.peers().into_iter();
    // Who was revoked is not asked.
    let there = members.filter(|peer| peer.roles.contains(&Role::Orchestrator) && peer.reachability != "revoked");
    there.filter_map(|peer| peer.peer.parse().ok()).take(ORCHESTRATORS).collect()
}

async fn ask_all(State(handle): State<Handle>, Json(question): Json<Question>) -> Response {
    if !question.path.starts_with(PATH) || question.method.parse::<Method>().is_err() {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let peers = orchestrators(&handle).await;
    let answers = stream::iter(peers).map(|peer| ask_one(&handle, peer, &question)).buffer_unordered(ORCHESTRATORS);
    Json(answers.collect::<Vec<Answer>>().await).into_response()
}

async fn ask_one(handle: &Handle, peer: PeerId, question: &Question) -> Answer {
    let unreached = |cause: String| Answer { peer, status: 0, body: serde_json::json!(Problem { problem: cause }) };
    let asked = async {
        handle.connect(peer).await.map_err(|error| error.to_string())?;
        let body = if question.body.is_null() { Bytes::new() } else { Bytes::from(question.body.to_string()) };
        let request = http::Request::builder()
            .method(question.method.as_str())
            .uri(&question.path)
            .header(CONTENT_TYPE, "application/json")
            .body(hop::Body::from(body))
            .map_err(|error| error.to_string())?;
        let answer = handle.hop().send(peer, request).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await.map_err(|error| error.to_string())?;
        let text = body.to_bytes();
        let body = serde_json::from_slice(&text).unwrap_or_else(|_| {
            serde_json::json!(Problem { problem: String::from_utf8_lossy(&text).chars().take(500).collect() })
        });
        Ok::<_, String>(Answer { peer, status, body })
    };
    match timeout(DEADLINE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(cause)) => unreached(cause),
        Err(_) => unreached(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// Asks all orchestrators; what those say that know an answer, and the problem of those that don't.
///
/// # Errors
/// No orchestrator is there, or none has a good answer: what the one says that knows most.
pub(super) async fn ask<T: DeserializeOwned>(
    home: &std::path::Path,
    method: Method,
    path: &str,
    body: serde_json::Value,
) -> Result<Vec<T>> {
    if body.to_string().len() > limits::JOB_BYTES {
        bail!("more than {} bytes, which no job needs", limits::JOB_BYTES);
    }
    let question = Question { method: method.to_string(), path: path.to_owned(), body };
    let answers: Vec<Answer> = connect(home).await?.post("/operator", &question).await?;
    if answers.is_empty() {
        bail!(
            "no orchestrator is known in this mesh\n  `dunlin peers` shows the members and their roles; docs/kubernetes.md says how to run one"
        );
    }
    let good = answers.iter().filter(|answer| (200..300).contains(&answer.status));
    let good = good.map(|answer| serde_json::from_value(answer.body.clone())).collect::<Result<Vec<T>, _>>()?;
    if !good.is_empty() {
        return Ok(good);
    }
    // One that speaks of the thing itself before those that don't know it.
    let best = answers.iter().min_by_key(|answer| match answer.status {
        404 => 2,
        0 => 1,
        _ => 0,
    });
    let problem = best.map(|answer| match answer.body.get("problem").and_then(serde_json::Value::as_str) {
        Some(problem) => problem.to_owned(),
        None if answer.status == 403 => {
            "this node's certificate has not the role operator; `dunlin invite --role operator` makes one that has"
                .to_owned()
        }
        None => format!("orchestrator {} answered {}: {}", answer.peer, answer.status, answer.body),
    });
    bail!(problem.unwrap_or_default());
}

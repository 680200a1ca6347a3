//! `dunlin logs`: an engine's output, wherever it runs. The node of this machine asks the agents over the hop.

use super::{connect, who};
use crate::{args::LogsArgs, exit::Failure, output};
use anyhow::{Context, Result, bail};
use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    response::{IntoResponse, Response},
    routing::get,
};
use dunlin_node::{Handle, hop};
use dunlin_protocol::{
    id::{ModelId, PeerId, ReplicaId},
    jobs::JobName,
    topic::Topic,
};
use futures::{StreamExt, stream::FuturesUnordered};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tower::ServiceExt;

/// Lines that are shown of each engine unless something else is asked for.
const TAIL: u32 = 200;
/// Replicas whose output one call shows.
const REPLICAS: usize = 64;

#[derive(Clone)]
struct Shared {
    handle: Handle,
    /// This process's own agent, which no hop leads to.
    own: Router,
}

#[derive(Deserialize)]
struct Find {
    target: String,
}

#[derive(Deserialize)]
struct Ask {
    peer: PeerId,
    replica: u16,
    tail: Option<u32>,
    since_s: Option<u64>,
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    previous: bool,
}

/// What is asked of an agent, as a query.
fn query(replica: u16, tail: Option<u32>, since_s: Option<u64>, follow: bool, previous: bool) -> String {
    let tail = tail.map(|lines| format!("&tail={lines}")).unwrap_or_default();
    let since = since_s.map(|seconds| format!("&since_s={seconds}")).unwrap_or_default();
    format!("replica={replica}&follow={follow}&previous={previous}{tail}{since}")
}

/// One replica whose output can be asked for.
#[derive(Clone, Serialize, Deserialize)]
struct Source {
    peer: String,
    replica: u16,
    /// The job whose replica it is, and the replica's name, where the orchestrator is asked.
    #[serde(skip)]
    job: Option<(JobName, String)>,
}

/// Control routes: `GET /log-sources?target=` and `GET /logs?peer=&replica=&tail=&since_s=&follow=&previous=`.
pub(crate) fn routes(handle: Handle, own: Router) -> Router {
    Router::new().route("/log-sources", get(sources)).route("/logs", get(logs)).with_state(Shared { handle, own })
}

/// The replicas that a model or peer id names.
async fn sources(State(shared): State<Shared>, Query(find): Query<Find>) -> Json<Vec<Source>> {
    let (peer, index) = peer_and_index(&find.target);
    let model = ModelId::new(&find.target).ok();
    if let (None, Some(model)) = (peer, &model)
        && !shared.handle.directory().read(|directory| directory.knows(model))
    {
        // Without an answer, what is known already is shown.
        let _ = shared.handle.look_up(Topic::Model(model.clone())).await;
    }
    let mut found: Vec<ReplicaId> = shared.handle.directory().read(|directory| {
        let named = |replica: &&dunlin_node::directory::Replica| match peer {
            Some(peer) => replica.id.peer == peer && index.is_none_or(|index| replica.id.index == index),
            None => model.as_ref().is_some_and(|model| replica.models.iter().any(|served| &served.id == model)),
        };
        directory.all_replicas().filter(named).map(|replica| replica.id).collect()
    });
    found.sort();
    found.truncate(REPLICAS);
    Json(found.into_iter().map(|id| Source { peer: id.peer.to_string(), replica: id.index, job: None }).collect())
}

/// `PEER` or `PEER/INDEX`; nothing for what is neither.
fn peer_and_index(text: &str) -> (Option<PeerId>, Option<u16>) {
    let one = text.rsplit_once('/').and_then(|(peer, index)| Some((peer.parse().ok()?, index.parse().ok()?)));
    match one {
        Some((peer, index)) => (Some(peer), Some(index)),
        None => (text.parse().ok(), None),
    }
}

async fn logs(State(shared): State<Shared>, Query(ask): Query<Ask>) -> Response {
    let Ask { peer: _, replica, tail, since_s, follow, previous } = ask;
    let path = format!("/mesh/logs?{}", query(replica, tail, since_s, follow, previous));
    if ask.peer == shared.handle.peer_id() {
        return match Request::builder().uri(path).body(Body::empty()) {
            Ok(request) => shared.own.oneshot(request).await.into_response(),
            Err(error) => failure(StatusCode::BAD_REQUEST, error.to_string()),
        };
    }
    let request = match http::Request::builder().uri(path).body(hop::Body::empty()) {
        Ok(request) => request,
        Err(error) => return failure(StatusCode::BAD_REQUEST, error.to_string()),
    };
    if let Err(error) = shared.handle.connect(ask.peer).await {
        return failure(StatusCode::BAD_GATEWAY, error.to_string());
    }
    match shared.handle.hop().send(ask.peer, request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => failure(StatusCode::BAD_GATEWAY, error.to_string()),
    }
}

fn failure(status: StatusCode, message: String) -> Response {
    (status, Json(serde_json::json!({ "error": { "message": message } }))).into_response()
}

pub(crate) async fn run(args: LogsArgs, home: &Path) -> Result<()> {
    let sources = sources_of(&args.target, home).await?;
    let several = sources.len() > 1;
    let mut printing: FuturesUnordered<_> = sources.iter().map(|source| print(source, &args, home, several)).collect();
    let (mut shown, mut first_error) = (0, None);
    while let Some(printed) = printing.next().await {
        match printed {
            Ok(()) => shown += 1,
            Err(error) if several => {
                output::note(&format!("warning: {error:#}"));
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first_error {
        Some(error) if shown == 0 => Err(error),
        _ => Ok(()),
    }
}

/// The replicas of a model, else those of the peer with that id or name, or one of them.
async fn sources_of(target: &str, home: &Path) -> Result<Vec<Source>> {
    let mut client = connect(home).await?;
    let path = |target: &str| format!("/log-sources?target={}", super::keys::path_segment(target));
    let mut sources: Vec<Source> = client.get(&path(target)).await?;
    if sources.is_empty()
        && let Some(peer) = who::find(&mut client, target).await?
    {
        sources = client.get(&path(&peer.to_string())).await?;
    }
    if sources.is_empty()
        && let Some((name, index)) = target.rsplit_once('/')
        && let Some(peer) = who::find(&mut client, name).await?
    {
        sources = client.get(&path(&format!("{peer}/{index}"))).await?;
    }
    if sources.is_empty()
        && let Ok(job) = target.parse::<JobName>()
    {
        let joined = super::jobs::job(&job, home).await?.replicas.into_iter();
        let joined = joined.filter_map(|replica| Some((replica.peer?, replica.name)));
        let source = |(peer, name)| Source { peer, replica: 0, job: Some((job.clone(), name)) };
        sources = joined.map(source).take(REPLICAS).collect();
    }
    if sources.is_empty() {
        bail!(Failure::NotFound {
            what: format!("a replica of {target:?}"),
            hint: "\n  `dunlin models` and `dunlin peers` show what there is".into(),
        });
    }
    Ok(sources)
}

async fn print(source: &Source, args: &LogsArgs, home: &Path, several: bool) -> Result<()> {
    let Source { peer, replica, job } = source;
    let since_s = args.since.map(|time| time.as_secs());
    let tail = args.tail.or((since_s.is_none() && !args.previous).then_some(TAIL));
    let query = query(*replica, tail, since_s, args.follow, args.previous);
    let (path, name) = match job {
        Some((job, name)) => (format!("/job-logs/{job}/{name}?{query}"), name.clone()),
        None => {
            let name = format!("{}/{replica}", &peer[peer.len().saturating_sub(8)..]);
            (format!("/logs?peer={peer}&{query}"), name)
        }
    };
    // Kept while the body is read: the connection ends with it.
    let mut client = connect(home).await?;
    let response = client.stream(Method::GET, &path, bytes::Bytes::new()).await;
    let mut body = response.with_context(|| format!("replica {replica} of {peer}"))?.into_body();
    let mut lines = Lines { prefix: several.then(|| format!("{name} | ")), rest: Vec::new() };
    while let Some(frame) = body.frame().await {
        if let Some(bytes) = frame.with_context(|| format!("the output of {name} broke off"))?.data_ref() {
            lines.print(bytes)?;
        }
    }
    lines.print(b"")
}

/// Prints whole lines, so that several engines don't mix within one.
struct Lines {
    prefix: Option<String>,
    rest: Vec<u8>,
}

impl Lines {
    fn print(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(prefix) = &self.prefix else { return Ok(output::piece(bytes)?) };
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let mut line = prefix.clone().into_bytes();
            line.extend(self.rest.drain(..=end));
            output::piece(&line)?;
        }
        Ok(())
    }
}

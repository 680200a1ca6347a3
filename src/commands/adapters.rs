//! `dunlin adapters`: LoRA adapters of the mesh's engines, and having them loaded. The node of this machine asks the agents
//! over the hop.

use super::{connect, who};
use crate::{
    args::{AdaptersCommand, Output},
    exit::Failure,
    output,
};
use anyhow::{Result, bail};
use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    routing::get,
};
use bytes::Bytes;
use dunlin_node::{Handle, hop};
use dunlin_protocol::{
    id::{ModelId, PeerId, Role},
    topic::Topic,
};
use futures::{StreamExt, stream};
use http::{Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeSet, path::Path, time::Duration};
use tower::ServiceExt;

/// Path at an agent.
const PATH: &str = "/mesh/adapters";
/// Agents that are asked at the same time.
const AT_ONCE: usize = 16;
/// How long one has: loading may mean downloading.
const TIME: Duration = Duration::from_secs(150);
/// Largest answer of one, bytes.
const ANSWER: usize = 1 << 20;

#[derive(Clone)]
struct Shared {
    handle: Handle,
    /// This process's own agent, which no hop leads to.
    own: Router,
}

/// An adapter at one engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Listed {
    #[serde(default)]
    peer: String,
    replica: u16,
    adapter: ModelId,
    parent: Option<ModelId>,
    loaded: bool,
    allowed: bool,
}

/// What came of an order at one engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Done {
    #[serde(default)]
    peer: String,
    replica: u16,
    error: Option<String>,
}

/// What agents say, and who of them said nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Said<T> {
    of: Vec<T>,
    silent: Vec<PeerId>,
}

impl<T> Said<T> {
    /// What was said; who said nothing is named.
    fn heard(self) -> Vec<T> {
        for peer in &self.silent {
            output::note(&format!("{peer} could not be asked: what it has is not counted here"));
        }
        self.of
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    adapter: ModelId,
    action: String,
}

#[derive(Debug, Deserialize)]
struct At {
    peer: Option<PeerId>,
}

/// Control routes: `GET /adapters?peer=` and `POST /adapters?peer=`.
pub(crate) fn routes(handle: Handle, own: Router) -> Router {
    Router::new().route("/adapters", get(list).post(order)).with_state(Shared { handle, own })
}

async fn list(State(shared): State<Shared>, Query(at): Query<At>) -> Json<Said<Listed>> {
    let said: Said<(PeerId, Vec<Listed>)> = shared.ask(at.peer, Method::GET, Bytes::new()).await;
    let named = |(peer, listed): (PeerId, Vec<Listed>)| {
        listed.into_iter().map(move |listed| Listed { peer: peer.to_string(), ..listed })
    };
    Json(Said { of: said.of.into_iter().flat_map(named).collect(), silent: said.silent })
}

async fn order(State(shared): State<Shared>, Query(at): Query<At>, Json(order): Json<Order>) -> Json<Said<Done>> {
    let body = serde_json::to_vec(&order).unwrap_or_default();
    let said: Said<(PeerId, Vec<Done>)> = shared.ask(at.peer, Method::POST, body.into()).await;
    let named =
        |(peer, done): (PeerId, Vec<Done>)| done.into_iter().map(move |done| Done { peer: peer.to_string(), ..done });
    Json(Said { of: said.of.into_iter().flat_map(named).collect(), silent: said.silent })
}

impl Shared {
    /// What each agent says, or that of `peer` alone.
    async fn ask<T: DeserializeOwned>(&self, peer: Option<PeerId>, method: Method, body: Bytes) -> Said<(PeerId, T)> {
        let agents: Vec<PeerId> = match peer {
            Some(peer) => vec![peer],
            None => {
                let own = self.handle.peer_id();
                // A proxy looks for agents all the time; others may know none.
                if self.agents().iter().all(|peer| *peer == own) {
                    let _ = self.handle.look_up(Topic::Role(Role::Agent)).await;
                }
                self.agents().into_iter().filter(|peer| *peer != own).chain([own]).collect()
            }
        };
        let asking = stream::iter(agents).map(|peer| {
            let (method, body) = (method.clone(), body.clone());
            async move {
                let answer = tokio::time::timeout(TIME, self.one(peer, method, body)).await;
                (peer, answer.ok().flatten())
            }
        });
        let mut said = Said { of: Vec::new(), silent: Vec::new() };
        let mut answers = asking.buffer_unordered(AT_ONCE);
        while let Some((peer, answer)) = answers.next().await {
            match answer {
                // One that has no such path is no agent, or knows no adapters.
                Some((StatusCode::NOT_FOUND, _)) => {}
                Some((StatusCode::OK, answer)) => match serde_json::from_slice(&answer) {
                    Ok(answer) => said.of.push((peer, answer)),
                    Err(_) => said.silent.push(peer),
                },
                _ => said.silent.push(peer),
            }
        }
        said
    }

    /// Whoever serves something is an agent, also before its record of that role was looked up.
    fn agents(&self) -> BTreeSet<PeerId> {
        self.handle.directory().read(|directory| {
            let serving = directory.all_replicas().map(|replica| replica.id.peer);
            directory.members(Role::Agent).chain(serving).collect()
        })
    }

    async fn one(&self, peer: PeerId, method: Method, body: Bytes) -> Option<(StatusCode, Bytes)> {
        let request =
            http::Request::builder().method(method).uri(PATH).header(header::CONTENT_TYPE, "application/json");
        let answer = if peer == self.handle.peer_id() {
            let request: Request = request.body(Body::from(body)).ok()?;
            self.own.clone().oneshot(request).await.ok()?
        } else {
            self.handle.connect(peer).await.ok()?;
            self.handle.hop().send(peer, request.body(hop::Body::from(body)).ok()?).await.ok()?.map(Body::new)
        };
        let status = answer.status();
        Some((status, Limited::new(answer.into_body(), ANSWER).collect().await.ok()?.to_bytes()))
    }
}

pub(crate) async fn run(command: AdaptersCommand, home: &Path) -> Result<()> {
    match command {
        AdaptersCommand::List(listing) => show(home, listing.output).await,
        AdaptersCommand::Load { adapter, on } => change(home, adapter, on, "load").await,
        AdaptersCommand::Unload { adapter, on } => change(home, adapter, on, "unload").await,
    }
}

async fn show(home: &Path, output: Output) -> Result<()> {
    let mut listed = connect(home).await?.get::<Said<Listed>>("/adapters").await?.heard();
    listed.sort_by(|a, b| (&a.adapter, &a.peer, a.replica).cmp(&(&b.adapter, &b.peer, b.replica)));
    output::show(output, &listed, |listed| {
        if listed.is_empty() {
            return "no engine has an adapter, or may load one (dunlin agent --adapter NAME=SOURCE)".to_owned();
        }
        output::table(["ADAPTER", "ADAPTS", "REPLICA", "STATE"], listed.iter().map(row))
    })
}

fn row(listed: &Listed) -> [String; 4] {
    let state = match (listed.loaded, listed.allowed) {
        (true, true) => "loaded",
        (true, false) => "loaded, by the engine itself",
        (false, _) => "loadable",
    };
    [
        listed.adapter.to_string(),
        output::or_none(listed.parent.as_ref().map(ToString::to_string)),
        format!("{}/{}", listed.peer, listed.replica),
        state.to_owned(),
    ]
}

async fn change(home: &Path, adapter: ModelId, on: Option<String>, action: &str) -> Result<()> {
    let mut client = connect(home).await?;
    let query = match &on {
        None => String::new(),
        Some(name) => match who::find(&mut client, name).await? {
            Some(peer) => format!("?peer={peer}"),
            None => bail!(Failure::NotFound {
                what: format!("a member called {name:?}"),
                hint: "\n  `dunlin peers` shows who there is".into(),
            }),
        },
    };
    let order = Order { adapter: adapter.clone(), action: action.to_owned() };
    let done = client.post::<Said<Done>>(&format!("/adapters{query}"), &order).await?.heard();
    if done.is_empty() {
        bail!(Failure::NotFound {
            what: format!("an engine that may load the adapter `{adapter}`"),
            hint: "\n  an agent lists what its engines may load: dunlin agent --adapter NAME=SOURCE".into(),
        });
    }
    let mut failed = 0;
    for Done { peer, replica, error } in &done {
        match error {
            None => output::line(&format!("{action}ed {adapter} at {peer}/{replica}"))?,
            Some(error) => {
                failed += 1;
                output::note(&format!("{peer}/{replica}: {error}"));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} engines did not {action} the adapter `{adapter}`", done.len());
    }
    Ok(())
}

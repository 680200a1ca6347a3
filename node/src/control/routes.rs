//! The node's own routes on the control socket.

mod delegation;
mod invitations;

use crate::{
    clock,
    handle::Handle,
    issuer::{self, InvitationOptions},
    manage::ManageError,
    members::Standing,
    peer_info::PeerInfo,
};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
pub use delegation::{Bounds, Delegate, Equip, Equipment, IssuerInfo, Undelegate};
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ModelId, Name, PeerId, Role, Roles, RuntimeName},
    pattern::{Models, Pattern},
    record::Continuation,
    topic::Topic,
};
pub use invitations::InvitationInfo;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Peers of other meshes in a status, the ones met last.
const OTHER_MESHES: usize = 16;

/// A peer that was met and belongs to another mesh: neither lets the other in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Foreigner {
    /// Its id, base58.
    pub peer: String,
    /// Seconds since it was met last.
    pub age_s: u64,
}

/// `GET /status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// This peer's id, base58.
    pub peer: String,
    /// The mesh's id, hexadecimal.
    pub mesh: String,
    /// This peer's display name.
    pub name: Option<Name>,
    /// Roles that its certificate allows.
    pub roles: Vec<Role>,
    /// Whether invitations are made here.
    pub issuer: bool,
    /// Within which bounds, where the mesh key lies elsewhere.
    pub delegation: Option<Bounds>,
    /// Whether this machine's membership was revoked.
    pub revoked: bool,
    /// The member that says so, where no signed revocation has arrived here.
    pub revoked_says: Option<String>,
    /// End of its certificate, unix seconds.
    pub not_after: u64,
    /// Seconds until then; negative within the leeway.
    pub expires_in_s: i64,
    /// Epoch of the process.
    pub epoch: u64,
    /// Addresses that it listens on.
    pub listen: Vec<String>,
    /// Connected peers.
    pub connected: usize,
    /// Models known of.
    pub models: usize,
    /// Peers of other meshes that were met within ten minutes, 16 at most, newest first.
    pub other_meshes: Vec<Foreigner>,
    /// Version of the executable.
    pub version: String,
}

/// `GET /models`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The model, or adapter.
    pub model: ModelId,
    /// For an adapter, the model that it adapts.
    pub parent: Option<ModelId>,
    /// Runtimes of its replicas.
    pub runtimes: Vec<RuntimeName>,
    /// Replicas of it that are known.
    pub replicas: usize,
    /// Of these, ready and connected.
    pub ready: usize,
    /// Of the others, those whose engine served and fails now.
    pub unhealthy: usize,
    /// Of the others, those whose engine is not up yet.
    #[serde(default)]
    pub starting: usize,
    /// Of the others, those whose machine is not reached.
    #[serde(default)]
    pub lost: usize,
    /// Of the ready ones, those known to go on with a partial answer to the letter: proved, and their weights known.
    pub exact: usize,
    /// Slots of the ready ones.
    pub slots: u32,
    /// Requests that they have now, as reported last.
    pub in_flight: u32,
}

/// `POST /invite`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Invite {
    /// Roles; agent and proxy when empty.
    pub roles: Vec<Role>,
    /// Model patterns; absent: every model that may be given here.
    pub models: Option<Vec<Pattern>>,
    /// Life of the invitation, seconds; a day when absent.
    pub ttl_s: Option<u64>,
    /// How many peers may use it; 1 when absent.
    pub uses: Option<u32>,
    /// For the role operator: its namespaces; all when empty.
    pub namespaces: Vec<String>,
    /// Whether they may make keys.
    #[serde(default)]
    pub keys: bool,
}

/// Answer to `POST /invite`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    /// The token. Whoever has it can join.
    pub token: String,
}

/// `POST /revoke`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// The peer, base58.
    pub peer: String,
}

pub(super) fn routes(handle: Handle) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/peers", get(peers))
        .route("/models", get(models))
        .route("/invite", post(invite))
        .route("/invitations", get(invitations::list))
        .route("/invitations/{id}", delete(invitations::withdraw))
        .route("/revoke", post(revoke))
        .route("/issuers", get(delegation::issuers))
        .route("/delegate", post(delegation::delegate))
        .route("/undelegate", post(delegation::undelegate))
        .route("/equip", post(delegation::equip))
        .with_state(handle)
}

async fn status(State(handle): State<Handle>) -> Json<Status> {
    let own = handle.members().own();
    let (connected, models) = handle.directory().read(|directory| {
        let own = handle.peer_id();
        let connected = directory.peers().filter(|peer| peer.peer != own && peer.reachability.is_connected()).count();
        (connected, directory.models().count())
    });
    let standing = handle.members().standing();
    let revoked_says = match standing {
        Standing::CalledRevoked(peer) => Some(peer.to_string()),
        Standing::Member | Standing::Revoked => None,
    };
    let foreign = handle.members().of_other_meshes(Instant::now()).into_iter().take(OTHER_MESHES);
    let other_meshes = foreign.map(|(peer, age)| Foreigner { peer: peer.to_string(), age_s: age.as_secs() }).collect();
    let left = i128::from(own.not_after) - i128::from(clock::unix_s());
    Json(Status {
        peer: handle.peer_id().to_string(),
        mesh: handle.mesh().to_string(),
        name: own.name.clone(),
        roles: own.roles.iter().collect(),
        issuer: handle.issues(),
        delegation: handle.delegation().as_ref().map(Bounds::of),
        revoked: standing != Standing::Member,
        revoked_says,
        not_after: own.not_after,
        expires_in_s: i64::try_from(left).unwrap_or(i64::MAX),
        epoch: handle.epoch(),
        listen: handle.listen_addresses().iter().map(ToString::to_string).collect(),
        connected,
        models,
        other_meshes,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn peers(State(handle): State<Handle>) -> Json<Vec<PeerInfo>> {
    Json(handle.peers())
}

async fn models(State(handle): State<Handle>) -> Json<Vec<ModelInfo>> {
    // A proxy looks for agents all the time; what it knows is what there is. Without an answer, any node shows what it knows.
    let looks = handle.0.roles.contains(Role::Proxy);
    if !looks || handle.directory().read(|directory| directory.all_replicas().next().is_none()) {
        let _ = handle.look_up(Topic::Role(Role::Agent)).await;
    }
    Json(handle.directory().read(|directory| {
        let mut infos: BTreeMap<ModelId, ModelInfo> = BTreeMap::new();
        for replica in directory.all_replicas() {
            let reached = replica.reachability.is_connected();
            for served in &replica.models {
                let info = infos.entry(served.id.clone()).or_insert_with(|| ModelInfo::new(served.id.clone()));
                info.parent = info.parent.take().or_else(|| served.parent.clone());
                info.replicas += 1;
                if let Some(runtime) = &replica.runtime
                    && !info.runtimes.contains(runtime)
                {
                    info.runtimes.push(runtime.clone());
                }
                match replica.state {
                    // What it said of its engine is what was.
                    _ if !reached => info.lost += 1,
                    ReplicaState::Starting => info.starting += 1,
                    ReplicaState::Unhealthy => info.unhealthy += 1,
                    ReplicaState::Draining | ReplicaState::Gone => {}
                    ReplicaState::Ready => {
                        info.ready += 1;
                        // A record says that it goes on, but not from which weights: only its announcement does.
                        info.exact += usize::from(replica.continuation == Continuation::Exact && served.root.is_some());
                        info.slots += u32::from(replica.slots);
                        info.in_flight += replica.load.as_ref().map_or(0, |(report, _)| u32::from(report.in_flight));
                    }
                }
            }
        }
        infos.into_values().collect()
    }))
}

impl ModelInfo {
    fn new(model: ModelId) -> Self {
        let (replicas, ready, unhealthy, starting, lost, exact, slots, in_flight) = (0, 0, 0, 0, 0, 0, 0, 0);
        let (parent, runtimes) = (None, Vec::new());
        Self { model, parent, runtimes, replicas, ready, unhealthy, starting, lost, exact, slots, in_flight }
    }
}

async fn invite(State(handle): State<Handle>, Json(asked): Json<Invite>) -> Response {
    let defaults = match handle.default_invitation() {
        Ok(defaults) => defaults,
        Err(error) => return manage_failure(&error),
    };
    let options = InvitationOptions {
        roles: if asked.roles.is_empty() { defaults.roles } else { Roles::from_iter(asked.roles) },
        models: asked.models.map_or(defaults.models, Models::Only),
        life: asked.ttl_s.map_or(defaults.life, Duration::from_secs),
        uses: asked.uses.unwrap_or(defaults.uses),
        namespaces: asked.namespaces,
        keys: asked.keys,
    };
    match handle.invite(options).await {
        Ok(token) => match token.to_text() {
            Ok(token) => Json(Invitation { token }).into_response(),
            Err(error) => failure(StatusCode::BAD_REQUEST, &error),
        },
        Err(error) => manage_failure(&error),
    }
}

async fn revoke(State(handle): State<Handle>, Json(asked): Json<Revoke>) -> Response {
    let Ok(peer) = asked.peer.parse::<PeerId>() else {
        return failure(StatusCode::BAD_REQUEST, &"`peer` is not a peer id");
    };
    let members = handle.members();
    let already = match members.get(&peer) {
        Some(membership) => members.is_revoked(&membership),
        None => members.revocations().revoked_before(&peer, None) > 0,
    };
    match handle.revoke(peer).await {
        Ok(()) => Json(serde_json::json!({ "already": already })).into_response(),
        Err(error) => manage_failure(&error),
    }
}

fn manage_failure(error: &ManageError) -> Response {
    let status = match error {
        ManageError::NotAnIssuer
        | ManageError::Outdated
        | ManageError::ListFull
        | ManageError::StillMember { .. }
        | ManageError::MaybeMember(_) => StatusCode::CONFLICT,
        ManageError::Stopped | ManageError::Unreachable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        ManageError::Issuer(issuer::Error::NotTheMeshKey) => StatusCode::CONFLICT,
        ManageError::Issuer(_) | ManageError::Appointment(_) => StatusCode::BAD_REQUEST,
        ManageError::NotTaken { .. } => StatusCode::BAD_GATEWAY,
        ManageError::State(_) | ManageError::Task(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    failure(status, error)
}

fn failure(status: StatusCode, error: &dyn std::fmt::Display) -> Response {
    (status, Json(serde_json::json!({ "error": { "message": error.to_string() } }))).into_response()
}

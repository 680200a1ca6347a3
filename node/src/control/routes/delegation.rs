//! Who may issue, and letting others.

use super::{failure, manage_failure};
use crate::{handle::Handle, issuer::DelegationOptions};
use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use data_encoding::BASE64;
use dunlin_protocol::{
    certificate::{Authority, Membership},
    delegation::Delegation,
    id::{Name, PeerId, Role, Roles},
    pattern::{Models, Pattern},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `POST /delegate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegate {
    /// The member, base58.
    pub peer: String,
    /// Roles that it may give; agent and proxy when empty.
    #[serde(default)]
    pub roles: Vec<Role>,
    /// Models that it may give; absent: every model.
    #[serde(default)]
    pub models: Option<Vec<Pattern>>,
    /// Longest life of a certificate that it gives, seconds; 30 days when absent.
    #[serde(default)]
    pub life_s: Option<u64>,
    /// How long it may issue, seconds; a year when absent.
    #[serde(default)]
    pub ttl_s: Option<u64>,
}

/// `POST /equip`: a membership with a delegation for a peer that is no member yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equip {
    /// The peer, base58.
    pub peer: String,
    /// What it is to be itself.
    pub roles: Vec<Role>,
    /// What other members see.
    #[serde(default)]
    pub name: Option<Name>,
    /// The most that it may give. `peer` there is not looked at.
    pub gives: Delegate,
}

/// What `POST /equip` gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Equipment {
    /// An [`Appointment`](dunlin_protocol::appointment::Appointment) as it is sent, base64.
    pub appointment: String,
}

/// `POST /undelegate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undelegate {
    /// The member, base58.
    pub peer: String,
}

/// The most that a delegate may give.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Roles.
    pub roles: Vec<Role>,
    /// Model patterns; `None` for every model.
    pub models: Option<Vec<Pattern>>,
    /// Longest life of a certificate, seconds.
    pub life_s: u64,
    /// End of the delegation, unix seconds.
    pub not_after: u64,
}

impl Bounds {
    /// What a delegation says of them.
    #[must_use]
    pub fn of(delegation: &Delegation) -> Self {
        let models = match &delegation.models {
            Models::Any => None,
            Models::Only(patterns) => Some(patterns.clone()),
        };
        let Delegation { life_s, not_after, .. } = *delegation;
        Self { roles: delegation.roles.iter().collect(), models, life_s, not_after }
    }
}

/// `GET /issuers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IssuerInfo {
    /// Its id, base58.
    pub peer: String,
    /// Its display name.
    pub name: Option<String>,
    /// Why it may issue.
    pub authority: Authority,
    /// The most that it may give, where that is known here.
    pub bounds: Option<Bounds>,
}

impl IssuerInfo {
    /// An issuer by its certificate.
    #[must_use]
    pub fn of(member: &Membership, authority: Authority, bounds: Option<Bounds>) -> Self {
        let name = member.name.as_ref().map(ToString::to_string);
        Self { peer: member.peer.to_string(), name, authority, bounds }
    }
}

/// Those that this node knows of: itself, members met, and delegates that it named.
pub(super) async fn issuers(State(handle): State<Handle>) -> Response {
    let own = handle.members().own();
    let mut known = Vec::new();
    if handle.issues() {
        let delegation = handle.delegation();
        let authority = if delegation.is_some() { Authority::Delegation } else { Authority::MeshKey };
        known.push(IssuerInfo::of(&own, authority, delegation.as_ref().map(Bounds::of)));
    }
    let others = handle.members().issuers();
    known.extend(others.iter().filter_map(|member| Some(IssuerInfo::of(member, member.authority()?, None))));
    match handle.delegations().await {
        Ok(named) => {
            for row in named {
                let (peer, bounds) = (row.terms.issuer.to_string(), Some(Bounds::of(&row.terms)));
                match known.iter_mut().find(|info| info.peer == peer) {
                    Some(info) if info.authority == Authority::Delegation => info.bounds = bounds,
                    Some(_) => {}
                    None => {
                        let authority = Authority::Delegation;
                        known.push(IssuerInfo { peer, name: row.name, authority, bounds });
                    }
                }
            }
            Json(known).into_response()
        }
        Err(error) => manage_failure(&error),
    }
}

fn options(asked: Delegate) -> DelegationOptions {
    let defaults = DelegationOptions::default();
    DelegationOptions {
        roles: if asked.roles.is_empty() { defaults.roles } else { Roles::from_iter(asked.roles) },
        models: asked.models.map_or(defaults.models, Models::Only),
        certificate_life: asked.life_s.map_or(defaults.certificate_life, Duration::from_secs),
        life: asked.ttl_s.map_or(defaults.life, Duration::from_secs),
    }
}

pub(super) async fn equip(State(handle): State<Handle>, Json(asked): Json<Equip>) -> Response {
    let Ok(peer) = asked.peer.parse::<PeerId>() else {
        return failure(StatusCode::BAD_REQUEST, &"`peer` is not a peer id");
    };
    match handle.equip(peer, Roles::from_iter(asked.roles), asked.name, options(asked.gives)).await {
        Ok(appointment) => match appointment.encode() {
            Ok(bytes) => Json(Equipment { appointment: BASE64.encode(&bytes) }).into_response(),
            Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error),
        },
        Err(error) => manage_failure(&error),
    }
}

pub(super) async fn delegate(State(handle): State<Handle>, Json(asked): Json<Delegate>) -> Response {
    let Ok(peer) = asked.peer.parse::<PeerId>() else {
        return failure(StatusCode::BAD_REQUEST, &"`peer` is not a peer id");
    };
    match handle.delegate(peer, options(asked)).await {
        Ok(delegation) => Json(Bounds::of(&delegation)).into_response(),
        Err(error) => manage_failure(&error),
    }
}

pub(super) async fn undelegate(State(handle): State<Handle>, Json(asked): Json<Undelegate>) -> Response {
    let Ok(peer) = asked.peer.parse::<PeerId>() else {
        return failure(StatusCode::BAD_REQUEST, &"`peer` is not a peer id");
    };
    match handle.undelegate(peer).await {
        Ok(()) => Json(serde_json::json!({})).into_response(),
        Err(error) => manage_failure(&error),
    }
}

//! The invitations that this peer made, and taking one back.

use super::{failure, manage_failure};
use crate::{handle::Handle, state::issuer_db::InvitationRow};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

/// One of `GET /invitations`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvitationInfo {
    /// Beginning of the public half of its seed, hexadecimal. Of no use to whoever wants to join.
    pub id: String,
    /// Roles that it gives, comma-separated.
    pub roles: String,
    /// When it was made, unix seconds.
    pub created: u64,
    /// Until when it can be used, unix seconds.
    pub not_after: u64,
    /// How many peers may use it.
    pub uses: u32,
    /// How many have.
    pub used: u32,
    /// Taken back.
    pub withdrawn: bool,
}

impl From<InvitationRow> for InvitationInfo {
    fn from(row: InvitationRow) -> Self {
        let id = row.id();
        let InvitationRow { roles, not_after, uses, used, created_at, withdrawn, .. } = row;
        Self { id, roles, created: created_at, not_after, uses, used, withdrawn }
    }
}

/// `GET /invitations`, newest first.
pub(super) async fn list(State(handle): State<Handle>) -> Response {
    match handle.invitations().await {
        Ok(rows) => Json(rows.into_iter().map(InvitationInfo::from).collect::<Vec<_>>()).into_response(),
        Err(error) => manage_failure(&error),
    }
}

/// `DELETE /invitations/{id}`.
pub(super) async fn withdraw(State(handle): State<Handle>, Path(id): Path<String>) -> Response {
    match handle.withdraw(id).await {
        Ok(Some(row)) => Json(InvitationInfo::from(row)).into_response(),
        Ok(None) => failure(StatusCode::NOT_FOUND, &"there is no such invitation that can still be used"),
        Err(error) => manage_failure(&error),
    }
}

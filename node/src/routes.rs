//! What every member answers on the hop, whatever roles it plays: itself, its revocation list, and renewals where it
//! issues. Who may call what was decided before, by [`dunlin_protocol::hop::Route`].

use crate::{
    clock,
    handle::Handle,
    hop::Caller,
    info::{self, Info},
    pulls::REVOCATIONS_PATH,
};
use axum::{
    Extension, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dunlin_protocol::id::Roles;

/// Path of renewals on the hop.
pub(crate) const RENEW_PATH: &str = "/mesh/renew";

#[derive(Clone)]
struct Context {
    handle: Handle,
    roles: Roles,
}

/// The node's own routes.
pub(crate) fn routes(handle: Handle, roles: Roles) -> Router {
    Router::new()
        .route(info::PATH, get(info))
        .route(REVOCATIONS_PATH, get(revocations))
        .route(RENEW_PATH, post(renew))
        .with_state(Context { handle, roles })
}

async fn info(State(context): State<Context>) -> Response {
    let announcements = context.handle.0.announced.load().as_ref().clone();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let info = Info { roles: context.roles, version, epoch: context.handle.epoch(), announcements };
    match info.encode() {
        Ok(bytes) => bytes.into_response(),
        Err(error) => failed(&error),
    }
}

async fn revocations(State(context): State<Context>) -> Response {
    match context.handle.members().revocations().encode() {
        Ok(bytes) => bytes.into_response(),
        Err(error) => failed(&error),
    }
}

async fn renew(State(context): State<Context>, Extension(caller): Extension<Caller>) -> Response {
    let Some(issuer) = context.handle.0.issuer.clone() else { return StatusCode::NOT_FOUND.into_response() };
    let revocations = context.handle.members().revocations();
    let renewed =
        tokio::task::spawn_blocking(move || issuer.renew(&caller.membership, &revocations, clock::unix_s())).await;
    match renewed {
        Ok(Ok(chain)) => match chain.encode() {
            Ok(bytes) => bytes.into_response(),
            Err(error) => failed(&error),
        },
        Ok(Err(error)) => (StatusCode::FORBIDDEN, error.to_string()).into_response(),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "answer on the hop failed");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

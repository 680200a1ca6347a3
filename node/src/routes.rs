//! What every member answers on the hop, whatever roles it plays: itself, its revocation list, and renewals where it
//! issues. Who may call what was decided before, by [`dunlin_protocol::hop::Route`].

use crate::{
    clock,
    handle::Handle,
    hop::Caller,
    info::{self, Info},
    issuer,
    pulls::REVOCATIONS_PATH,
};
use axum::{
    Extension, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dunlin_protocol::id::{PeerId, Roles};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// Path of renewals on the hop.
pub(crate) const RENEW_PATH: &str = "/mesh/renew";

#[derive(Clone)]
struct Context {
    handle: Handle,
    roles: Roles,
    renewing: Renewing,
}

/// Members whose certificates are being renewed: each waits for the disk, so one at a time of each.
#[derive(Debug, Clone, Default)]
struct Renewing(Arc<Mutex<HashSet<PeerId>>>);

impl Renewing {
    /// `None` when one of this peer is under way.
    fn begin(&self, peer: PeerId) -> Option<UnderWay> {
        let new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
        new.then(|| UnderWay { peer, of: self.clone() })
    }
}

/// One renewal, until dropped.
#[derive(Debug)]
struct UnderWay {
    peer: PeerId,
    of: Renewing,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.of.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.peer);
    }
}

/// The node's own routes.
pub(crate) fn routes(handle: Handle, roles: Roles) -> Router {
    Router::new()
        .route(info::PATH, get(info))
        .route(REVOCATIONS_PATH, get(revocations))
        .route(RENEW_PATH, post(renew))
        .with_state(Context { handle, roles, renewing: Renewing::default() })
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
    let Some(renewing) = context.renewing.begin(caller.peer) else {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    let revocations = context.handle.members().revocations();
    let renew = move || {
        // Until it is done, also when nobody waits for it any more.
        let _renewing = renewing;
        issuer.renew(&caller.membership, &revocations, clock::unix_s())
    };
    match tokio::task::spawn_blocking(renew).await {
        Ok(Ok(chain)) => match chain.encode() {
            Ok(bytes) => bytes.into_response(),
            Err(error) => failed(&error),
        },
        Ok(Err(error @ issuer::Error::NotDue)) => (StatusCode::CONFLICT, error.to_string()).into_response(),
        Ok(Err(error @ issuer::Error::Refused(_))) => (StatusCode::FORBIDDEN, error.to_string()).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "answer on the hop failed");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_renewal_at_a_time() {
        let (renewing, peer) = (Renewing::default(), PeerId::random());
        let under_way = renewing.begin(peer);
        assert!(under_way.is_some() && renewing.begin(peer).is_none());
        assert!(renewing.begin(PeerId::random()).is_some());
        drop(under_way);
        assert!(renewing.begin(peer).is_some());
    }
}

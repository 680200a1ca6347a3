//! What every member answers on the hop, whatever roles it plays: itself, its revocation list, a delegation for it, and
//! renewals where it issues. Who may call what was decided before, by [`dunlin_protocol::hop::Route`].

use crate::{
    clock,
    handle::{Command, Handle},
    hop::Caller,
    info::{self, Info},
    issuer,
    manage::ManageError,
    pulls::REVOCATIONS_PATH,
};
use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use bytes::Bytes;
use dunlin_protocol::{
    appointment::Appointment,
    certificate::{self, Chain},
    id::{PeerId, Roles},
    limits,
    revocation::ListVersion,
};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::Semaphore;

/// Path of renewals on the hop.
pub(crate) const RENEW_PATH: &str = "/mesh/renew";
/// Path of delegations on the hop.
pub(crate) const DELEGATION_PATH: &str = "/mesh/delegation";
/// Path at which a proxy says how many agents it hears: a decimal number as the body.
pub(crate) const AGENTS_PATH: &str = "/mesh/agents";

#[derive(Clone)]
struct Context {
    handle: Handle,
    roles: Roles,
    renewing: Renewing,
    delegating: Arc<Semaphore>,
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
        .route(DELEGATION_PATH, post(delegation))
        .route(AGENTS_PATH, put(agents))
        .layer(DefaultBodyLimit::max(limits::HELLO_BYTES))
        .with_state(Context { handle, roles, renewing: Renewing::default(), delegating: Arc::new(Semaphore::new(1)) })
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

/// The revocation list, unless the caller has the same one. A caller that has another one is asked back: it may know more.
async fn revocations(
    State(context): State<Context>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let list = context.handle.members().revocations();
    let tag = headers.get(header::IF_NONE_MATCH).and_then(|tag| tag.to_str().ok());
    let has = tag.and_then(ListVersion::from_entity_tag);
    let etag = [(header::ETAG, list.version().entity_tag())];
    if has == Some(list.version()) {
        return (StatusCode::NOT_MODIFIED, etag).into_response();
    }
    if let Some(has) = has {
        // Without room for it now, one of the next rounds does as well.
        let _ = context.handle.0.commands.try_send(Command::OtherList { peer: caller.peer, list: has });
    }
    match list.encode() {
        Ok(bytes) => (etag, bytes).into_response(),
        Err(error) => failed(&error),
    }
}

async fn renew(State(context): State<Context>, Extension(caller): Extension<Caller>, shown: Bytes) -> Response {
    let Some(issuer) = context.handle.0.issuing.get() else { return StatusCode::NOT_FOUND.into_response() };
    let Some(renewing) = context.renewing.begin(caller.peer) else {
        return StatusCode::TOO_MANY_REQUESTS.into_response();
    };
    let members = context.handle.members().clone();
    let renew = move || {
        // Until it is done, also when nobody waits for it any more.
        let _renewing = renewing;
        let now = clock::unix_s();
        let chain = Chain::decode(&shown).map_err(certificate::Error::from)?;
        let member = chain.verify(now, &members.mesh())?;
        if member.peer != caller.peer {
            return Err(certificate::Error::WrongSubject(member.peer).into());
        }
        issuer.renew(&member, chain.delegation.as_ref(), &members.revocations(), now)
    };
    match tokio::task::spawn_blocking(renew).await {
        Ok(Ok(chain)) => match chain.encode() {
            Ok(bytes) => bytes.into_response(),
            Err(error) => failed(&error),
        },
        Ok(Err(error)) => refused(&error),
        Err(error) => failed(&error),
    }
}

/// Why nothing was renewed.
fn refused(error: &issuer::Error) -> Response {
    let status = match error {
        issuer::Error::NotDue | issuer::Error::EndsWithDelegation => StatusCode::CONFLICT,
        issuer::Error::Certificate(_) => StatusCode::BAD_REQUEST,
        issuer::Error::Refused(_)
        | issuer::Error::Delegation(_)
        | issuer::Error::DelegationEnded
        | issuer::Error::DelegationRevoked => StatusCode::FORBIDDEN,
        _ => return failed(error),
    };
    (status, error.to_string()).into_response()
}

/// A proxy's word on how many agents it hears. Taken up with the next housekeeping.
async fn agents(State(context): State<Context>, Extension(caller): Extension<Caller>, body: String) -> StatusCode {
    let Ok(agents) = body.parse() else { return StatusCode::BAD_REQUEST };
    context.handle.0.heard.lock().unwrap_or_else(PoisonError::into_inner).tell(caller.peer, agents);
    StatusCode::OK
}

/// Takes a delegation for this peer. Only one at a time is looked at: each waits for the disk.
async fn delegation(State(context): State<Context>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    let Ok(appointment) = Appointment::decode(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    let Ok(_one) = context.delegating.try_acquire() else { return StatusCode::TOO_MANY_REQUESTS.into_response() };
    match context.handle.accept(appointment).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error @ (ManageError::Appointment(_) | ManageError::Outdated)) => {
            tracing::info!(peer = %caller.peer, %error, "a delegation was refused");
            (StatusCode::FORBIDDEN, error.to_string()).into_response()
        }
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

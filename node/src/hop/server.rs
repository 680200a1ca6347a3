//! Serving the substreams that members open to us: HTTP/2, and per request the question whether this caller may.
//!
//! The transport proved who the peer is and admission knew its certificate; but a connection outlives both, so rights,
//! expiry and revocation are looked up for **each** request.

use super::{
    BoxError, Coalesce, Settings,
    pulse::{Heard, Pulse},
    refusal::Refusal,
    stall::Guard,
};
use crate::{
    clock,
    members::Members,
    stream::{Inbound, Incoming},
};
use axum::{Router, extract::Request, response::Response};
use bytes::Bytes;
use dunlin_protocol::{certificate::Membership, hop::Route, id::PeerId};
use futures::future::{Either, FutureExt, Map, Ready, ready};
use hyper_util::rt::TokioIo;
use std::{collections::HashMap, convert::Infallible, pin::pin, sync::Arc};
use tokio::task::{self, JoinSet};
use tokio_util::{compat::FuturesAsyncReadCompatExt, sync::CancellationToken, task::TaskTracker};
use tower::Service;

/// Substreams that one peer may have open to us. One per connection and two connections are usual; a replaced one may
/// linger.
const SUBSTREAMS_PER_PEER: usize = 8;

/// Who sent a request on the hop. In the extensions of every request that reaches the router.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Proven by the transport.
    pub peer: PeerId,
    /// What its certificate says, valid and not revoked when the request came.
    pub membership: Arc<Membership>,
}

/// Whether `peer` may call `path` now.
fn check(members: &Members, peer: &PeerId, path: &str) -> Result<Arc<Membership>, Refusal> {
    let membership = members.check(peer, clock::unix_s())?;
    let route = Route::of(path).ok_or(Refusal::UnknownPath)?;
    let may = route.allows(membership.roles) || (route.allows_keepers() && membership.keeps_keys());
    if may { Ok(membership) } else { Err(Refusal::RoleMissing) }
}

/// Serves inbound substreams until `shutdown`, then lets what is in flight finish, at most [`Settings::drain`] long.
/// Also ends when the stream behaviour is dropped.
pub async fn serve(
    mut incoming: Incoming,
    members: Members,
    routes: Router,
    settings: Settings,
    shutdown: CancellationToken,
) {
    // Of our own: connections are told to end also when only the stream behaviour has ended.
    let shutdown = shutdown.child_token();
    let mut served = Served { members, routes, settings, shutdown, connections: Connections::default() };
    loop {
        tokio::select! {
            () = served.shutdown.cancelled() => break,
            Some(()) = served.connections.ended() => {}
            inbound = incoming.recv() => match inbound {
                Some(inbound) => served.start(inbound),
                None => break,
            },
        }
    }
    drop(incoming);
    served.drain().await;
}

struct Served {
    members: Members,
    routes: Router,
    settings: Settings,
    shutdown: CancellationToken,
    connections: Connections,
}

impl Served {
    fn start(&mut self, inbound: Inbound) {
        let peer = inbound.peer;
        let open = self.connections.of(&peer);
        if open >= SUBSTREAMS_PER_PEER {
            tracing::warn!(%peer, open, "hop refused: too many substreams of one peer");
            return;
        }
        let front = Front { peer, members: self.members.clone(), routes: self.routes.clone() };
        let settings = self.settings.clone();
        let shutdown = self.shutdown.clone();
        self.connections.spawn(peer, async move { serve_connection(inbound, front, &settings, &shutdown).await });
    }

    async fn drain(mut self) {
        self.shutdown.cancel();
        let all_ended = async { while self.connections.ended().await.is_some() {} };
        if tokio::time::timeout(self.settings.drain, all_ended).await.is_err() {
            tracing::warn!(connections = self.connections.tasks.len(), "hop ended with answers in flight");
        }
    }
}

/// The tasks of connections, counted by peer.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    peers: HashMap<task::Id, PeerId>,
    per_peer: HashMap<PeerId, usize>,
}

impl Connections {
    fn of(&self, peer: &PeerId) -> usize {
        self.per_peer.get(peer).copied().unwrap_or_default()
    }

    fn spawn(&mut self, peer: PeerId, serving: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(serving).id();
        self.peers.insert(id, peer);
        *self.per_peer.entry(peer).or_default() += 1;
    }

    /// Waits for one to end, well or badly; `None` when there is none. Cancel-safe.
    async fn ended(&mut self) -> Option<()> {
        let id = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "a hop connection's task ended badly");
                error.id()
            }
        };
        let peer = self.peers.remove(&id)?;
        if let Some(open) = self.per_peer.get_mut(&peer) {
            *open -= 1;
            if *open == 0 {
                self.per_peer.remove(&peer);
            }
        }
        Some(())
    }
}

async fn serve_connection(inbound: Inbound, front: Front, settings: &Settings, shutdown: &CancellationToken) {
    let peer = inbound.peer;
    let guard = Guard::new(TaskTracker::new(), settings.stall);
    let pulse = Arc::<Pulse>::default();
    let io = TokioIo::new(Heard::new(inbound.stream, Arc::clone(&pulse)).compat());
    let mut http = pin!(settings.server(guard).serve_connection(io, front));
    let serving = async {
        tokio::select! {
            ended = &mut http => ended,
            () = shutdown.cancelled() => {
                http.as_mut().graceful_shutdown();
                http.await
            }
        }
    };
    // Both sides ping when they hear nothing, so a live client is never silent.
    let ended = tokio::select! {
        ended = serving => Some(ended),
        () = pulse.watch(settings.dead, settings.dead) => None,
    };
    match ended {
        Some(Ok(())) => tracing::debug!(%peer, connection = %inbound.connection, "hop closed by the peer"),
        Some(Err(error)) => tracing::debug!(%peer, connection = %inbound.connection, %error, "hop broke"),
        None => tracing::debug!(%peer, connection = %inbound.connection, "hop closed: the peer is silent"),
    }
}

/// One peer's way in.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) peer: PeerId,
    pub(super) members: Members,
    pub(super) routes: Router,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Front {
    /// Hands a request to its route, if this caller may; the answer of a refusal otherwise.
    pub(super) fn route<B>(&self, mut request: http::Request<B>) -> Routed
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let membership = match check(&self.members, &self.peer, request.uri().path()) {
            Ok(membership) => membership,
            Err(refusal) => {
                tracing::debug!(peer = %self.peer, path = request.uri().path(), ?refusal, "request refused");
                return Either::Left(ready(Ok(refusal.response())));
            }
        };
        request.extensions_mut().insert(Caller { peer: self.peer, membership });
        Either::Right(self.routes.clone().call(request.map(axum::body::Body::new)))
    }
}

type Answer = Result<http::Response<Coalesce<axum::body::Body>>, Infallible>;
type Routed = Either<Ready<Result<Response, Infallible>>, <Router as Service<Request>>::Future>;

impl hyper::service::Service<http::Request<hyper::body::Incoming>> for Front {
    type Response = http::Response<Coalesce<axum::body::Body>>;
    type Error = Infallible;
    type Future = Map<Routed, fn(Result<Response, Infallible>) -> Answer>;

    fn call(&self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        self.route(request).map(coalesced)
    }
}

fn coalesced(answer: Result<Response, Infallible>) -> Answer {
    answer.map(|response| response.map(Coalesce::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_counts_until_its_task_ends_well_or_badly() {
        let mut connections = Connections::default();
        let peer = PeerId::random();
        connections.spawn(peer, async {});
        connections.spawn(peer, async { panic!("a bug") });
        assert_eq!(connections.of(&peer), 2);
        while connections.ended().await.is_some() {}
        assert_eq!((connections.of(&peer), connections.peers.len()), (0, 0));
    }
}

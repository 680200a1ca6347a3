//! Serving the substreams that members open to us: HTTP/2, and per request the question whether this caller may.
//!
//! The transport proved who the peer is and admission knew its certificate; but a connection outlives both, so rights,
//! expiry and revocation are looked up for **each** request.

use super::{
    Coalesce, Settings,
    pulse::{Heard, Pulse},
    refusal::Refusal,
    stall::Guard,
};
use crate::stream::{Inbound, Incoming};
use axum::{Router, extract::Request, response::Response};
use dunlin_protocol::{certificate::Membership, hop::Route, id::PeerId};
use futures::future::{Either, FutureExt, Map, Ready, ready};
use hyper_util::rt::TokioIo;
use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    pin::pin,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::task::JoinSet;
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

/// Looks up memberships: `None` for a peer that is unknown **or revoked**. Called once per request, so it must be
/// quick and never wait.
#[derive(Clone)]
pub struct Access(Arc<LookUp>);

type LookUp = dyn Fn(&PeerId) -> Option<Arc<Membership>> + Send + Sync;

impl Access {
    /// Access as the function says.
    pub fn new(look_up: impl Fn(&PeerId) -> Option<Arc<Membership>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }

    fn check(&self, peer: &PeerId, path: &str, now_unix_s: u64) -> Result<Arc<Membership>, Refusal> {
        let membership = (self.0)(peer).ok_or(Refusal::NotAMember)?;
        if !membership.valid_at(now_unix_s) {
            return Err(Refusal::Expired);
        }
        let route = Route::of(path).ok_or(Refusal::UnknownPath)?;
        if route.allows(membership.roles) { Ok(membership) } else { Err(Refusal::RoleMissing) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

/// Serves inbound substreams until `shutdown`, then lets what is in flight finish, at most [`Settings::drain`] long.
/// Also ends when the stream behaviour is dropped.
pub async fn serve(
    mut incoming: Incoming,
    access: Access,
    routes: Router,
    settings: Settings,
    shutdown: CancellationToken,
) {
    let mut served =
        Served { access, routes, settings, shutdown, connections: JoinSet::new(), per_peer: HashMap::new() };
    loop {
        tokio::select! {
            () = served.shutdown.cancelled() => break,
            Some(ended) = served.connections.join_next() => served.ended(ended),
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
    access: Access,
    routes: Router,
    settings: Settings,
    shutdown: CancellationToken,
    connections: JoinSet<PeerId>,
    per_peer: HashMap<PeerId, usize>,
}

impl Served {
    fn start(&mut self, inbound: Inbound) {
        let open = self.per_peer.entry(inbound.peer).or_default();
        if *open >= SUBSTREAMS_PER_PEER {
            tracing::warn!(peer = %inbound.peer, open = *open, "hop refused: too many substreams of one peer");
            return;
        }
        *open += 1;
        let front = Front { peer: inbound.peer, access: self.access.clone(), routes: self.routes.clone() };
        let settings = self.settings.clone();
        let shutdown = self.shutdown.clone();
        self.connections.spawn(async move {
            let peer = inbound.peer;
            serve_connection(inbound, front, &settings, &shutdown).await;
            peer
        });
    }

    fn ended(&mut self, ended: Result<PeerId, tokio::task::JoinError>) {
        let Ok(peer) = ended else {
            tracing::error!("a hop connection's task panicked");
            return;
        };
        if let Some(open) = self.per_peer.get_mut(&peer) {
            *open -= 1;
            if *open == 0 {
                self.per_peer.remove(&peer);
            }
        }
    }

    async fn drain(mut self) {
        self.shutdown.cancel();
        let all_ended = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.settings.drain, all_ended).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "hop ended with answers in flight");
        }
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
    // The client pings, so a live one is never silent.
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
struct Front {
    peer: PeerId,
    access: Access,
    routes: Router,
}

type Answer = Result<http::Response<Coalesce<axum::body::Body>>, Infallible>;
type Routed = Map<<Router as Service<Request>>::Future, fn(Result<Response, Infallible>) -> Answer>;

impl hyper::service::Service<http::Request<hyper::body::Incoming>> for Front {
    type Response = http::Response<Coalesce<axum::body::Body>>;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Routed>;

    fn call(&self, mut request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let membership = match self.access.check(&self.peer, request.uri().path(), now) {
            Ok(membership) => membership,
            Err(refusal) => {
                tracing::debug!(peer = %self.peer, path = request.uri().path(), ?refusal, "request refused");
                return Either::Left(ready(coalesced(Ok(refusal.response()))));
            }
        };
        request.extensions_mut().insert(Caller { peer: self.peer, membership });
        let answer = self.routes.clone().call(request.map(axum::body::Body::new));
        Either::Right(answer.map(coalesced))
    }
}

fn coalesced(answer: Result<Response, Infallible>) -> Answer {
    answer.map(|response| response.map(Coalesce::new))
}

//! Sending requests to members.

use super::{
    Body, Loss, ResponseBody, SendError, Settings, Unsent, keeper,
    line::{Line, Link},
    server::Front,
};
use crate::{
    members::Members,
    stream::{Connection, Control},
};
use arc_swap::ArcSwapOption;
use axum::Router;
use libp2p::{PeerId, swarm::ConnectionId};
use std::{
    collections::{HashMap, HashSet},
    future::Future,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// Links tried for one request that could not be sent on the first.
const ATTEMPTS: usize = 3;

/// The client of the hop: cheap to clone, usable from any task. Its links end when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Hop {
    shared: Arc<Shared>,
    _ends_links: Arc<DropGuard>,
}

/// What the tasks behind the links share with the [`Hop`]s.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) control: Control,
    pub(super) settings: Settings,
    lines: RwLock<HashMap<PeerId, Arc<Line>>>,
    /// Connections that have a keeper.
    pub(super) kept: Mutex<HashSet<ConnectionId>>,
    pub(super) links_opened: AtomicU64,
    pub(super) tasks: Tasks,
    pub(super) stop: CancellationToken,
    /// The way to this process's own routes.
    own: ArcSwapOption<Front>,
}

/// Runs what hyper needs to run for a client, and counts it.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks(pub(super) TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

impl Hop {
    /// A client over these substreams. Needs a tokio runtime from its first use on.
    #[must_use]
    pub fn new(control: Control, settings: Settings) -> Self {
        let stop = CancellationToken::new();
        let shared = Shared {
            control,
            settings,
            lines: RwLock::default(),
            kept: Mutex::default(),
            links_opened: AtomicU64::new(0),
            tasks: Tasks::default(),
            stop: stop.clone(),
            own: ArcSwapOption::empty(),
        };
        Self { shared: Arc::new(shared), _ends_links: Arc::new(stop.drop_guard()) }
    }

    /// From now on requests to `peer`, which is this process itself, go straight to `routes`: libp2p connects nobody with
    /// itself, and a proxy may have its agent beside it. Rights are checked as for everybody.
    pub fn serve_own(&self, peer: PeerId, members: Members, routes: Router) {
        self.shared.own.store(Some(Arc::new(Front { peer, members, routes })));
    }

    /// Ends what [`Self::serve_own`] began. Routes often hold this client themselves: neither would ever be freed.
    pub fn forget_own(&self) {
        self.shared.own.store(None);
    }

    /// Opens links to the peer ahead of the first request, on each direct connection, or on a relayed one if there
    /// are only such. To be called when a connection to a peer that this node calls is established; calling it again
    /// costs little. Returns at once.
    pub fn prepare(&self, peer: PeerId) {
        Shared::prepare(&self.shared, peer);
    }

    /// Sends a request and waits for the head of the answer. There is no deadline on the answer as long as the peer
    /// lives: from one that is silent for [`Settings::suspect`] no answer is waited for, and a body ends with an error
    /// after [`Settings::dead`]. Dropping the future, or later the body, cancels the request at the peer.
    ///
    /// The request's URI needs a path only; its HTTP version is of no meaning.
    ///
    /// # Errors
    /// [`SendError`]; it gives the request back when the peer has seen nothing of it.
    pub async fn send(
        &self,
        peer: PeerId,
        mut request: http::Request<Body>,
    ) -> Result<http::Response<ResponseBody>, SendError> {
        if let Some(own) = self.shared.own.load_full().filter(|own| own.peer == peer) {
            let Ok(response) = own.route(request).await;
            return Ok(response.map(ResponseBody::own));
        }
        // As a version 2 request, h2 would insist on a scheme and an authority.
        *request.version_mut() = http::Version::HTTP_11;
        let mut broken = None;
        for _ in 0..ATTEMPTS {
            let mut link = match self.link(peer).await {
                Ok(link) => link,
                Err(None) => return Err(SendError::NotConnected(Box::new(request))),
                Err(Some(unsent)) => return Err(SendError::NotSent(Box::new(request), unsent)),
            };
            let limit = self.shared.settings.in_flight;
            let Some(in_flight) = link.enter(limit) else {
                return Err(SendError::NotSent(Box::new(request), Unsent::Full(limit)));
            };
            let answer = link.sender.try_send_request(request);
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                () = link.pulse.silence() => return Err(SendError::Lost(Loss::Silent)),
            };
            match answer {
                Ok(response) => return Ok(response.map(|body| ResponseBody::new(body, in_flight))),
                Err(mut error) => match error.take_message() {
                    None => return Err(SendError::Lost(Loss::Broken(error.into_error()))),
                    Some(unsent) => {
                        self.shared.withdraw(&peer, &link);
                        request = unsent;
                        broken = Some(error.into_error());
                    }
                },
            }
        }
        Err(match broken {
            Some(error) => SendError::NotSent(Box::new(request), Unsent::Broken(error)),
            None => SendError::NotConnected(Box::new(request)),
        })
    }

    /// Whether a connection to the peer is open, so that a request has a way to go.
    #[must_use]
    pub fn connected(&self, peer: &PeerId) -> bool {
        self.shared.control.is_connected(peer) || self.is_own(peer)
    }

    fn is_own(&self, peer: &PeerId) -> bool {
        self.shared.own.load().as_ref().is_some_and(|own| own.peer == *peer)
    }

    /// Whether a link is open, so that a request starts with no further round trip.
    #[must_use]
    pub fn ready(&self, peer: &PeerId) -> bool {
        self.is_own(peer) || self.shared.line(peer).is_some_and(|line| line.best().is_some())
    }

    /// The last measured round trip to a connected peer.
    #[must_use]
    pub fn round_trip(&self, peer: &PeerId) -> Option<Duration> {
        self.shared.line(peer)?.round_trip()
    }

    /// Takes over a measured round trip, from whoever measures (libp2p's ping). Forgotten when the peer's last
    /// connection closes.
    pub fn set_round_trip(&self, peer: &PeerId, round_trip: Duration) {
        if self.connected(peer) {
            self.shared.line_or_new(*peer).set_round_trip(round_trip);
        }
    }

    /// To be called when the last connection to a peer has closed: forgets the peer.
    pub fn disconnected(&self, peer: &PeerId) {
        self.shared.tidy(peer);
    }

    /// Links opened since the start; more than there were connections means that some broke and were replaced.
    #[must_use]
    pub fn links_opened(&self) -> u64 {
        self.shared.links_opened.load(Ordering::Relaxed)
    }

    /// A link to the peer, waited for up to [`Settings::open`] if it has to be made.
    async fn link(&self, peer: PeerId) -> Result<Link, Option<Unsent>> {
        if let Some(line) = self.shared.line(&peer)
            && let Some(link) = line.best()
        {
            if !link.pulse.is_silent() {
                return Ok(link);
            }
            // The peer may be back on another connection, as after a restart, whose link is not open yet.
            if line.covers(self.shared.wanted(&peer)) {
                return Err(Some(Unsent::Silent));
            }
        }
        if !self.connected(&peer) {
            return Err(None);
        }
        let wait = self.shared.line_or_new(peer).wait();
        self.prepare(peer);
        let deadline = self.shared.settings.open;
        match tokio::time::timeout(deadline, wait).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(_)) if !self.connected(&peer) => Err(None),
            Ok(Err(error)) => Err(Some(Unsent::Open(error))),
            Err(_) => Err(Some(Unsent::Timeout(deadline))),
        }
    }
}

impl Shared {
    /// The connections that are to have a link: each direct one, or one that is relayed if there are only such.
    fn wanted(&self, peer: &PeerId) -> impl Iterator<Item = Connection> {
        let connections = self.control.connections(peer);
        // Direct ones come first.
        let relayed_only = connections.first().is_some_and(|best| best.relayed);
        let wanted = connections.into_iter().take_while(move |connection| connection.relayed == relayed_only);
        wanted.take(if relayed_only { 1 } else { usize::MAX })
    }

    fn prepare(shared: &Arc<Self>, peer: PeerId) {
        for connection in shared.wanted(&peer) {
            let new = shared.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(connection.id);
            if new {
                shared.tasks.0.spawn(keeper::keep(Arc::clone(shared), peer, connection));
            }
        }
    }

    pub(super) fn line(&self, peer: &PeerId) -> Option<Arc<Line>> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner).get(peer).cloned()
    }

    pub(super) fn line_or_new(&self, peer: PeerId) -> Arc<Line> {
        if let Some(line) = self.line(&peer) {
            return line;
        }
        Arc::clone(self.lines.write().unwrap_or_else(PoisonError::into_inner).entry(peer).or_default())
    }

    pub(super) fn withdraw(&self, peer: &PeerId, link: &Link) {
        if let Some(line) = self.line(peer) {
            line.withdraw(link);
        }
    }

    /// Forgets a peer that has no connection any more.
    pub(super) fn tidy(&self, peer: &PeerId) {
        if self.control.is_connected(peer) {
            return;
        }
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        // Somebody who waits for a link has a clone of the line; who comes later makes a new one.
        if lines.get(peer).is_some_and(|line| line.is_idle() && Arc::strong_count(line) == 1) {
            lines.remove(peer);
        }
    }
}

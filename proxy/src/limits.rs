//! How much a key may use, over all proxies of the mesh together and with no database that they share.
//!
//! Each key's account lies with one proxy, found by hashing ([`view`]). A limit of N in a minute is N permits, each of
//! which can be used once in 60 seconds, wherever it lies: a proxy holds some ([`slot`]), tells the owner twice a second
//! how many, gives back what it does not need, and gets what there is ([`account`]). A request that finds none here makes
//! its proxy ask the owner once, and waits a moment for the answer. What happens when proxies are cut off from each other
//! or die stands in `docs/keys.md`, and is tried in `simulation`.
//!
//! All decisions are pure ([`limiter`]); this file carries their messages.

mod account;
pub(crate) mod estimate;
mod limiter;
mod log;
mod slot;
mod view;

#[cfg(test)]
mod simulation;

use crate::keys::{Grant, Keys};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use dunlin_node::{
    Handle, clock,
    hop::{self, Caller},
    members::Denied,
};
use dunlin_protocol::{
    id::{PeerId, Role},
    lease::{KINDS, LeaseReply, LeaseReport},
    limits,
};
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use limiter::Outgoing;
pub(crate) use limiter::{Cost, Left, Limiter, Refused, Taken};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{self, MissedTickBehavior},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Path on the hop.
pub(crate) const PATH: &str = "/mesh/limits";
/// How often proxies tell each other what they hold, at most.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Longest that a request waits for the owner of its key's account: an owner on the other side of the earth, and busy, has
/// answered by then. Who is refused without the owner's word is refused for nothing.
pub(crate) const BORROW: Duration = Duration::from_millis(500);
/// Longest wait for the answer to a report.
const REPORT: Duration = Duration::from_secs(1);
/// A member that has the role and plays it not is asked again after this long.
const NO_PROXY: Duration = Duration::from_secs(30);
/// Note of the proxies that were there last.
const PROXIES: &str = "proxies";
/// Of these, so many are remembered.
const REMEMBERED: usize = 256;

/// The limits of one key, in the order of kinds. `None`: no limit.
pub(crate) type Caps = [Option<i64>; KINDS];

/// The limits of a grant's key.
pub(crate) fn caps(grant: &Grant) -> Caps {
    let limits = &grant.key.limits;
    [limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests].map(|limit| limit.map(i64::from))
}

/// All limits of one proxy. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Limits(Arc<Inner>);

struct Inner {
    handle: Handle,
    keys: Keys,
    limiter: Mutex<Limiter>,
    waits: Mutex<HashMap<Box<str>, Arc<Waits>>>,
    fellows: Mutex<Fellows>,
    /// Questions of requests to owners: at most one of each key, and none for longer than [`REPORT`].
    borrowing: TaskTracker,
}

/// Requests with one key that wait for its owner.
#[derive(Default)]
struct Waits {
    cost: Mutex<(Cost, usize)>,
    answered: Notify,
}

/// Which other members are known to be proxies, or not to be.
#[derive(Default)]
struct Fellows {
    proxies: BTreeSet<PeerId>,
    none_until: BTreeMap<PeerId, Instant>,
}

/// What a request has taken. To be settled by [`Limits::ended`] or taken back by [`Limits::undo`].
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) key: Box<str>,
    cost: Cost,
    at: Instant,
}

impl Limits {
    /// The limits of `keys`, of which none was used yet. Blocks on the disk for a moment.
    pub(crate) fn new(handle: Handle, keys: Keys) -> Self {
        let known: Vec<PeerId> = match keys.note(PROXIES) {
            Ok(Some(list)) => list.split(' ').filter_map(|peer| peer.parse().ok()).take(REMEMBERED).collect(),
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "the other proxies of before are not known");
                Vec::new()
            }
        };
        let limiter = Limiter::new(handle.peer_id(), handle.epoch(), known, Instant::now());
        let (limiter, waits, fellows) = (Mutex::new(limiter), Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { handle, keys, limiter, waits, fellows, borrowing: TaskTracker::new() }))
    }

    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        self.0.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fellows(&self) -> MutexGuard<'_, Fellows> {
        self.0.fellows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request pass that may use `tokens`, or says which limit is reached. Waits [`BORROW`] at most.
    ///
    /// # Errors
    /// A limit is reached.
    pub(crate) async fn admit(&self, grant: &Grant, tokens: i64) -> Result<Ticket, Refused> {
        let (key, caps) = (grant.key.id.as_str(), caps(grant));
        let cost = [1, tokens.min(caps[1].unwrap_or(tokens)), 1];
        let now = Instant::now();
        let taken = self.limiter().take(key, &caps, &cost, false, now);
        match taken {
            Taken::Yes => Ok(Ticket { key: key.into(), cost, at: now }),
            Taken::No(refused) => Err(refused),
            Taken::Ask => self.ask(key, cost, now).await,
        }
    }

    async fn ask(&self, key: &str, cost: Cost, since: Instant) -> Result<Ticket, Refused> {
        let waiting = Waiting::begin(self, key, cost);
        let deadline = since + BORROW;
        loop {
            let answered = waiting.waits.answered.notified();
            let mut answered = std::pin::pin!(answered);
            answered.as_mut().enable();
            let sent = self.limiter().borrow(key, &waiting.sum(), Instant::now());
            let asked = sent.is_some();
            if let Some(sent) = sent {
                // Everybody who waits for this key looks when it is through. An answer that comes too late for them all
                // is the next one's, so that it is awaited whatever becomes of this request.
                let limits = self.clone();
                self.0.borrowing.spawn(async move { limits.exchange(sent, REPORT).await });
            }
            let begun = Instant::now();
            let until = if self.limiter().is_unsure(key, begun) { deadline.min(begun + TICK) } else { deadline };
            let _ = time::timeout_at(until.into(), answered).await;
            let now = Instant::now();
            let (taken, unsure) = {
                let mut limiter = self.limiter();
                (limiter.take_now(key, &cost, now), limiter.is_unsure(key, now))
            };
            match taken {
                Taken::Yes => return Ok(Ticket { key: key.into(), cost, at: now }),
                Taken::No(refused) if (asked && !unsure) || now >= deadline => return Err(refused),
                Taken::No(_) | Taken::Ask => {}
            }
        }
    }

    /// Sends a report, and takes in what is answered within `longest`.
    async fn exchange(&self, sent: Outgoing, longest: Duration) {
        let under_way = UnderWay { limits: self, sent: &sent, over: false };
        let reply = time::timeout(longest, self.send(sent.to, &sent.report)).await;
        under_way.over(reply.ok().flatten());
    }

    /// `None`: no answer.
    async fn send(&self, to: PeerId, report: &LeaseReport) -> Option<LeaseReply> {
        let body = hop::Body::from(Bytes::from(report.encode().ok()?));
        let request = http::Request::post(PATH).body(body).ok()?;
        let response = self.0.handle.hop().send(to, request).await.ok()?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                let mut fellows = self.fellows();
                fellows.proxies.remove(&to);
                fellows.none_until.insert(to, Instant::now() + NO_PROXY);
                return None;
            }
            _ => return None,
        }
        let body = Limited::new(response.into_body(), limits::LEASE_BYTES).collect().await.ok()?;
        let reply = LeaseReply::decode(&body.to_bytes()).ok()?;
        self.is_proxy(to);
        Some(reply)
    }

    /// Whoever speaks about limits is a proxy.
    fn is_proxy(&self, peer: PeerId) {
        let mut fellows = self.fellows();
        fellows.none_until.remove(&peer);
        if fellows.proxies.insert(peer) {
            drop(fellows);
            self.see();
        }
    }

    /// Looks which proxies are there. Returns whether any came or went.
    fn see(&self) -> bool {
        let hop = self.0.handle.hop();
        let connected: BTreeSet<PeerId> = {
            let mut fellows = self.fellows();
            fellows.proxies.retain(|peer| hop.connected(peer));
            fellows.proxies.clone()
        };
        self.limiter().connected(&connected, Instant::now())
    }

    /// The other proxies that are there.
    pub(crate) fn others(&self) -> Vec<PeerId> {
        self.fellows().proxies.iter().copied().collect()
    }

    /// A request has ended. `tokens`: what it used in truth, where that is known.
    pub(crate) fn ended(&self, ticket: &Ticket, tokens: Option<i64>) {
        self.limiter().ended(&ticket.key, &ticket.cost, ticket.at, tokens, Instant::now());
    }

    /// A request that took its part was not sent to anybody.
    pub(crate) fn undo(&self, ticket: &Ticket) {
        self.limiter().undo(&ticket.key, &ticket.cost, ticket.at, Instant::now());
    }

    /// What is left of requests and of tokens.
    pub(crate) fn left(&self, key: &str) -> [Option<Left>; 2] {
        let limiter = self.limiter();
        let now = Instant::now();
        [0, 1].map(|kind| limiter.left(key, kind, now))
    }

    /// Another proxy reports.
    pub(crate) fn answer(&self, caller: &Caller, body: &Bytes) -> Response {
        let Ok(report) = LeaseReport::decode(body) else { return StatusCode::BAD_REQUEST.into_response() };
        if report.keys.len() > limits::LEASES {
            return StatusCode::PAYLOAD_TOO_LARGE.into_response();
        }
        self.is_proxy(caller.peer);
        let caps = |key: &str| self.0.keys.grant(key).map(|grant| caps(&grant));
        let reply = self.limiter().report(caller.peer, &report, caps, Instant::now());
        match reply.encode() {
            Ok(bytes) => bytes.into_response(),
            Err(error) => {
                tracing::error!(%error, "limits could not be answered");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    /// Tells the others what is held, until `shutdown`.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        let mut tick = time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut telling = JoinSet::new();
        let mut remembered = Vec::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = telling.join_next(), if !telling.is_empty() => continue,
                _ = tick.tick() => {}
            }
            self.see();
            let due = self.limiter().is_due(Instant::now());
            if !due {
                continue;
            }
            self.forget_revoked();
            let reports = self.limiter().reports(Instant::now());
            for sent in reports {
                let limits = self.clone();
                telling.spawn(async move { limits.exchange(sent, REPORT).await });
            }
            for peer in self.strangers() {
                let limits = self.clone();
                let probe = LeaseReport { view: 0, epoch: 0, seq: 0, whole: false, keys: Vec::new() };
                telling.spawn(async move { _ = time::timeout(REPORT, limits.send(peer, &probe)).await });
            }
            let known = self.limiter().known();
            if known != remembered {
                remembered = known;
                self.remember(&remembered).await;
            }
        }
        self.0.borrowing.close();
        self.0.borrowing.wait().await;
    }

    /// Members that may be proxies, and have not said yet.
    fn strangers(&self) -> Vec<PeerId> {
        let now = Instant::now();
        let me = self.0.handle.peer_id();
        let proxies: Vec<PeerId> = self.0.handle.directory().read(|directory| {
            let may = directory.peers().filter(|view| view.rights.is_some_and(|of| of.roles.contains(Role::Proxy)));
            may.map(|view| view.peer).filter(|peer| *peer != me).collect()
        });
        let mut fellows = self.fellows();
        fellows.none_until.retain(|_, until| *until > now);
        let unknown = |peer: &PeerId| !fellows.proxies.contains(peer) && !fellows.none_until.contains_key(peer);
        proxies.into_iter().filter(|peer| unknown(peer) && self.0.handle.hop().connected(peer)).collect()
    }

    fn forget_revoked(&self) {
        let now = clock::unix_s();
        let known = self.limiter().known();
        for peer in known {
            if matches!(self.0.handle.members().check(&peer, now), Err(Denied::Revoked)) {
                self.limiter().forget(&peer);
            }
        }
    }

    /// Who is there now is taken to be cut off when this process starts again, until it is met.
    async fn remember(&self, known: &[PeerId]) {
        let list: Vec<String> = known.iter().take(REMEMBERED).map(ToString::to_string).collect();
        let keys = self.0.keys.clone();
        let stored = tokio::task::spawn_blocking(move || keys.set_note(PROXIES, &list.join(" "))).await;
        if let Ok(Err(error)) = stored {
            tracing::warn!(%error, "the other proxies were not remembered");
        }
    }
}

/// One request that waits for the owner of its key's account; until dropped.
struct Waiting<'a> {
    limits: &'a Limits,
    key: &'a str,
    cost: Cost,
    waits: Arc<Waits>,
}

impl<'a> Waiting<'a> {
    fn begin(limits: &'a Limits, key: &'a str, cost: Cost) -> Self {
        let mut all = limits.0.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = Arc::clone(all.entry(key.into()).or_default());
        let mut sum = waits.cost.lock().unwrap_or_else(PoisonError::into_inner);
        sum.0.iter_mut().zip(cost).for_each(|(sum, cost)| *sum += cost);
        sum.1 += 1;
        drop(sum);
        Self { limits, key, cost, waits }
    }

    fn sum(&self) -> Cost {
        self.waits.cost.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut all = self.limits.0.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = self.waits.cost.lock().unwrap_or_else(PoisonError::into_inner);
        sum.0.iter_mut().zip(self.cost).for_each(|(sum, cost)| *sum -= cost);
        sum.1 -= 1;
        if sum.1 == 0 {
            all.remove(self.key);
        }
    }
}

/// A report that was sent. Its keys are free again when it is dropped, also by a client that went away.
struct UnderWay<'a> {
    limits: &'a Limits,
    sent: &'a Outgoing,
    over: bool,
}

impl UnderWay<'_> {
    fn over(mut self, reply: Option<LeaseReply>) {
        if let Some(reply) = reply {
            self.limits.limiter().answered(self.sent, &reply, Instant::now());
            self.over = true;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.limits.limiter().lost(self.sent);
        }
        let waits = self.limits.0.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.is_empty() {
            return;
        }
        for told in &self.sent.report.keys {
            if let Some(waits) = waits.get(told.key.as_str()) {
                waits.answered.notify_waiters();
            }
        }
    }
}

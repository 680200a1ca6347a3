//! Gets one request answered: finds a replica, asks it, and asks another when that is right.
//!
//! Until the first byte of the answer's body is here, nothing has been sent to the client, and a replica's failure is
//! nobody's business but ours. From then on the answer is what that replica makes of it (see `http::answer::relay`).
//!
//! What is tried again is decided by what happened, never guessed from a status code: an agent says itself when it, and
//! not the engine, answers. Answers of engines pass through untouched, but for 502, 503 and 504 while another replica
//! may do better.

mod attempt;
pub(crate) mod beside;
mod first;
mod patience;
pub(crate) mod resume;
mod sense;
mod unknown;

use crate::{
    balance::Want,
    config::Config,
    continuation::KEPT_IN_ALL,
    errors::{Cause, Error},
    http::{answer::Relay, endpoint::Dialect, headers},
    metrics::Metrics,
    pool::{Lease, Pool, Ticket, Unserved},
    request::{
        self,
        body::{self, Share},
        payload::Payload,
    },
    responses::Responses,
    tally::Account,
};
use attempt::Failure;
use beside::Outcome;
use dunlin_node::{Handle, directory::Directory, hop::Budget};
use dunlin_protocol::{
    announcement::ReplicaState,
    hop::{self, AskUsage},
    id::{ModelId, ReplicaId},
    runtime::Catalogue,
    topic::Topic,
};
pub(crate) use first::First;
use http::{HeaderMap, HeaderValue, Method, Response, uri::PathAndQuery};
use patience::Patience;
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::time;
use unknown::NotFound;

/// Replicas asked for one request at most, those not counted that refused for being full...
const TRIES: usize = 3;
/// ... or so many while all were silent: a machine that hangs has done nothing, and several may hang at once.
const SILENT_TRIES: usize = 6;
/// How long the look-up of an unknown model is waited for.
const LOOK_UP: Duration = Duration::from_secs(2);
/// So long after its start a proxy that knows no replica at all waits to hear of one: it has no connections yet, and what
/// a look-up then doesn't find may well be there.
const SETTLING: Duration = Duration::from_secs(5);
/// Pause before a replica is asked again for want of another: its agent may be reconnecting.
const AGAIN: Duration = Duration::from_millis(100);
/// The same while all replicas are lost, unless one is heard of before: it may have to be dialled.
const RETURNS: Duration = Duration::from_millis(250);

/// What all requests of one proxy share.
pub(crate) struct Dispatcher {
    /// The mesh.
    pub(crate) handle: Handle,
    /// The replicas.
    pub(crate) pool: Arc<Pool>,
    /// The counters.
    pub(crate) metrics: Arc<Metrics>,
    patience: Patience,
    /// The memory for answers that are held until they are whole.
    held: Budget,
    /// The same for what is kept of streams so that they could go on elsewhere.
    kept: Budget,
    /// [`crate::Config::hold`].
    pub(crate) hold: Duration,
    /// Who holds which response.
    pub(crate) responses: Responses,
    /// How engines are asked for the rest of an answer, and how long they may take.
    runtimes: Catalogue,
    not_found: Mutex<NotFound>,
    started: Instant,
}

/// One client's request, with all that is needed to send it several times.
pub(crate) struct Ask {
    /// As the client sent it.
    pub(crate) method: Method,
    /// As the client sent it.
    pub(crate) path: PathAndQuery,
    /// As the client sent them.
    pub(crate) headers: HeaderMap,
    /// As the client sent it.
    pub(crate) body: Payload,
    /// The memory that the body takes; `None` of a body that the proxy made for a while.
    pub(crate) memory: Option<Share>,
    /// What was read of the body.
    pub(crate) want: Want,
    /// The model as the client named it.
    pub(crate) asked: ModelId,
    /// Where its name stands in the body.
    pub(crate) model_at: Option<Range<usize>>,
    /// Whom to ask in its place.
    pub(crate) fallbacks: Vec<ModelId>,
    /// The only replica that may be asked: it holds what the request is about.
    pub(crate) pinned: Option<ReplicaId>,
    /// Whose a response is that comes of it: [`responses::tag`].
    pub(crate) owner: u64,
    /// Where an agent may ask its engine for the usage.
    pub(crate) ask_usage: Option<AskUsage>,
    /// Who wants to know what was used.
    pub(crate) account: Option<Account>,
    /// The endpoint's.
    pub(crate) dialect: Dialect,
    /// Goes along.
    pub(crate) id: HeaderValue,
    /// When the request's head had come.
    pub(crate) since: Instant,
}

impl Ask {
    /// Asks for another model from now on: its name takes the place of the other's in the body.
    ///
    /// # Errors
    /// The body can't be changed, or there is no room for the other.
    pub(crate) fn rename(&mut self, model: &ModelId) -> Result<(), Error> {
        self.want.model = model.clone();
        let bytes = match &mut self.body {
            Payload::Upload(_, name) => {
                *name = (*model != self.asked).then(|| model.clone());
                return Ok(());
            }
            Payload::Whole(bytes) => bytes,
        };
        let at = self.model_at.clone().ok_or(request::Error::NotUtf8)?;
        let (body, now) = request::renamed(bytes, &at, model);
        let longer = now.len().saturating_sub(at.len());
        if self.memory.as_mut().is_some_and(|memory| !memory.grow(longer)) {
            return Err(body::Error::NoRoom.into());
        }
        if let Some(ask) = &mut self.ask_usage
            && ask.offset > at.start as u64
        {
            ask.offset = (ask.offset + now.len() as u64).saturating_sub(at.len() as u64);
        }
        *bytes = body;
        self.model_at = Some(now);
        Ok(())
    }
}

impl Dispatcher {
    /// Asks the replicas of `pool` over the mesh of `handle`, as configured.
    pub(crate) fn new(handle: Handle, pool: Arc<Pool>, metrics: Arc<Metrics>, config: &Config) -> Self {
        // A built-in file that is wrong, which tests rule out, costs continued streams only.
        let runtimes = Catalogue::built_in().unwrap_or_default();
        Self {
            responses: config.responses.clone(),
            handle,
            pool,
            metrics,
            patience: Patience::new(config),
            held: Budget::new(first::HELD_IN_ALL),
            kept: Budget::new(KEPT_IN_ALL),
            hold: config.hold,
            runtimes,
            not_found: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// The first answer that may be shown to the client: of its model, or of one that stands in for that.
    ///
    /// # Errors
    /// No replica serves the model, none became free in time, or all that were tried failed.
    pub(crate) async fn dispatch(&self, ask: &mut Ask) -> Result<Response<Relay>, Error> {
        let mut answered = self.dispatch_one(ask).await;
        let mut by = ask.want.model.clone();
        for model in std::mem::take(&mut ask.fallbacks) {
            let failed = match &answered {
                Ok(answer) => attempt::is_failure_of_replica(answer.status()),
                Err(error) => error.another_model_may_do_better(),
            };
            if !failed {
                break;
            }
            if let Err(error) = ask.rename(&model) {
                tracing::debug!(%model, %error, "the fallback cannot be asked");
                break;
            }
            self.metrics.retried("fallback");
            // What is told of is the model that was asked for.
            match self.dispatch_one(ask).await {
                Ok(answer) => (answered, by) = (Ok(answer), model),
                Err(error) => tracing::debug!(%model, %error, "fallback failed"),
            }
        }
        let mut answer = answered?;
        if by != ask.asked
            && let Ok(model) = HeaderValue::try_from(hop::model_to_header(&by))
        {
            answer.headers_mut().insert(headers::MODEL, model);
        }
        Ok(answer)
    }

    async fn dispatch_one(&self, ask: &Ask) -> Result<Response<Relay>, Error> {
        self.look_up_unknown(&ask.want.model).await?;
        let mut ticket = Ticket::default();
        if let Some(pinned) = ask.pinned {
            let others = self.handle.directory().read(|directory| {
                let of_model = directory.replicas(&ask.want.model).map(|replica| replica.id);
                of_model.filter(|replica| *replica != pinned).collect::<Vec<_>>()
            });
            others.into_iter().for_each(|replica| ticket.failed_on(replica));
        }
        let may = |replica: &ReplicaId| ask.pinned.is_none_or(|pinned| pinned == *replica);
        let answer = self.first_answer(ask, ticket, &may).await?;
        self.metrics.first_byte(&ask.want.model, ask.since.elapsed());
        Ok(answer)
    }

    /// The first answer of a replica that `may` be asked.
    async fn first_answer(
        &self,
        ask: &Ask,
        mut ticket: Ticket,
        may: &(dyn Fn(&ReplicaId) -> bool + Sync),
    ) -> Result<Response<Relay>, Error> {
        let model = &ask.want.model;
        let until = Instant::now() + self.hold;
        let (mut tries, mut all_silent) = (0, true);
        loop {
            let lease = self.lease(&ask.want, &mut ticket, until).await?;
            let replica = lease.replica();
            if !may(&replica) {
                drop(lease);
                // Those that may are out of rotation for a moment, or have gone.
                if Instant::now() >= until || !self.any(model, may) {
                    return Err(Error::unserved(model, Unserved::NoReplica));
                }
                time::sleep(AGAIN).await;
                continue;
            }
            let Outcome { replica, answer, others } = self.ask_beside(ask, lease, &mut ticket.tried, may).await;
            tries += others;
            let failure = match answer {
                Ok(mut answer) => {
                    if !answer.status().is_server_error() {
                        self.pool.answered(model);
                    }
                    if tries > 0 {
                        answer.headers_mut().insert(headers::TRIES, HeaderValue::from(tries + 1));
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let (cause, answer) = match failure {
                // Not a failure but bad timing: back to the front of the line.
                Failure::Full => continue,
                Failure::Draining if Instant::now() < until => {
                    ticket.failed_on(replica);
                    self.pause_if_alone(model, &ticket).await;
                    continue;
                }
                Failure::Draining => return Err(Error::unserved(model, Unserved::NoReplica)),
                Failure::Untouched(cause) if self.is_passing(model, replica, &mut ticket, cause, until) => {
                    self.metrics.retried(cause.label());
                    self.pool.connected(model, RETURNS).await;
                    continue;
                }
                Failure::Failed(cause) | Failure::Untouched(cause) => (cause, None),
                Failure::Answered(cause, answer) => (cause, Some(answer)),
            };
            tries += 1;
            tracing::debug!(%replica, %cause, tries, request_id = ask.id.to_str().ok(), "try failed");
            ticket.failed_on(replica);
            all_silent &= matches!(cause, Cause::Timeout | Cause::Unreachable);
            let most = if all_silent { SILENT_TRIES } else { TRIES };
            if tries >= most || !self.another_may_do_better(model, &ticket, cause) {
                return answer
                    .map_or_else(|| Err(Error::Failed { model: model.clone(), tries, last: cause }), |a| Ok(*a));
            }
            self.metrics.retried(cause.label());
            self.pause_if_alone(model, &ticket).await;
        }
    }

    /// Whether there is a replica, ready, that `may` be asked.
    fn any(&self, model: &ModelId, may: &(dyn Fn(&ReplicaId) -> bool + Sync)) -> bool {
        let ready = |directory: &Directory| {
            let ready = directory.replicas(model).filter(|replica| replica.state == ReplicaState::Ready);
            ready.map(|replica| replica.id).collect::<Vec<_>>()
        };
        self.handle.directory().read(ready).iter().any(may)
    }

    /// Whether all replicas were lost a moment ago or are just coming back, so that the request may wait for them. No
    /// engine has begun with it, so this is no try.
    fn is_passing(
        &self,
        model: &ModelId,
        replica: ReplicaId,
        ticket: &mut Ticket,
        cause: Cause,
        until: Instant,
    ) -> bool {
        ticket.failed_on(replica);
        let passing = match cause {
            Cause::Unreachable => self.pool.just_lost(model, &ticket.tried),
            _ => self.pool.just_changing(model, &ticket.tried),
        };
        passing && Instant::now() < until
    }

    /// Lost connections are always tried again; what an engine worked for in vain only where there is another replica,
    /// and within the budget.
    fn another_may_do_better(&self, model: &ModelId, ticket: &Ticket, cause: Cause) -> bool {
        let other_only = cause.costs() || matches!(cause, Cause::NotServed | Cause::Nonsense(_));
        if other_only && self.pool.only(model, &ticket.tried) {
            return false;
        }
        !cause.costs() || self.pool.may_retry()
    }

    /// Before the same replica is asked again for want of another.
    async fn pause_if_alone(&self, model: &ModelId, ticket: &Ticket) {
        if self.pool.only(model, &ticket.tried) {
            time::sleep(AGAIN).await;
        }
    }

    async fn lease(&self, want: &Want, ticket: &mut Ticket, until: Instant) -> Result<Lease, Error> {
        let asked = Instant::now();
        let waited_before = std::mem::take(&mut ticket.waited);
        let found = self.pool.lease(want, ticket, until).await;
        if ticket.waited {
            self.metrics.waited(asked.elapsed());
        }
        ticket.waited |= waited_before;
        found.map_err(|why| Error::unserved(&want.model, why))
    }

    /// A model of which nothing is known is looked up, once per while.
    async fn look_up_unknown(&self, model: &ModelId) -> Result<(), Error> {
        let known = || self.handle.directory().read(|directory| directory.knows(model));
        if known() || self.pool.may_return(model) {
            return Ok(());
        }
        let unknown = Err(Error::unserved(model, Unserved::Unknown));
        self.settle().await;
        if known() {
            return Ok(());
        }
        if self.not_found().has(model, Instant::now()) {
            return unknown;
        }
        let look_up = self.handle.look_up(Topic::Model(model.clone()));
        let found = time::timeout(LOOK_UP, look_up).await;
        if known() {
            return Ok(());
        }
        match found {
            // A look-up that failed or goes on says nothing of the model.
            Ok(Err(error)) => tracing::debug!(%model, %error, "look-up failed"),
            Err(_) => tracing::debug!(%model, "look-up takes too long"),
            Ok(Ok(_)) => self.not_found().add(model, Instant::now()),
        }
        unknown
    }

    /// Returns when a replica of any model is known, or when there has been time enough to hear of one.
    async fn settle(&self) {
        let directory = self.handle.directory();
        let mut changes = directory.changed();
        let heard = async {
            while directory.read(|known| known.all_replicas().next().is_none()) && changes.changed().await.is_ok() {}
        };
        // That nothing was heard is no news.
        let _ = time::timeout_at((self.started + SETTLING).into(), heard).await;
    }

    fn not_found(&self) -> MutexGuard<'_, NotFound> {
        // A list only: nothing that a panic elsewhere could leave half done.
        self.not_found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

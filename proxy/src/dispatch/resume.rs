//! A stream whose replica was lost goes on at another: what is kept for that, and the asking. What may go on, and how, is
//! decided in `continuation`.

use super::{Ask, Dispatcher, RETURNS};
use crate::{
    continuation::{self, Endpoint, KEPT_BODY, Kept, Kin, Refusal, Rest, Splice, Way},
    http::{answer::Relay, headers},
    pool::Ticket,
    request::{self, payload::Payload},
};
use bytes::Bytes;
use dunlin_node::{
    directory::{Directory, Replica},
    hop::Body,
};
use dunlin_protocol::{
    id::{ModelId, ReplicaId},
    runtime::{Continuation, Tokenize},
};
use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time;

/// How often one stream may go on elsewhere.
const LOSSES: usize = 3;
/// How often it may do so because its replica was late.
const SECONDS: usize = 4;
/// Longest wait for replicas that were all lost together.
const COMES_BACK: Duration = Duration::from_secs(15);
/// How long a count of tokens is waited for, once everybody has been asked.
const COUNT: Duration = Duration::from_secs(2);
/// How long the last one asked has before the next one is asked too.
const COUNT_ALONE: Duration = Duration::from_millis(50);
/// Replicas that are asked for one.
const COUNTERS: usize = 8;
/// How often they are asked: all of them may be busy.
const COUNTS: usize = 3;
/// Largest answer to that, bytes: engines list every token.
const COUNT_BYTES: usize = 4 << 20;

/// What is kept of a stream for when its replica is lost, or late.
#[derive(Clone)]
pub(crate) struct Keep {
    dispatcher: Arc<Dispatcher>,
    ask: Arc<Ask>,
    kept: Kept,
    /// What answers now; `None` where that isn't known.
    kin: Option<Kin>,
    /// Set once it has gone on elsewhere.
    splice: Option<Splice>,
    losses: usize,
    /// How often it went on because its replica was late.
    seconds: usize,
    /// How long the client may hear nothing while another replica is asked.
    pub(crate) silence: Duration,
}

/// How another replica is had.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// As for a request that comes; nobody else answers this one.
    InLine,
    /// Only one that is free: the stream's own may come back.
    AtOnce,
}

/// A stream that goes on.
pub(crate) struct Resumed {
    /// What is kept of it.
    pub(crate) keep: Box<Keep>,
    /// Where it goes on.
    pub(crate) relay: Box<Relay>,
    /// How, for metrics.
    pub(crate) how: &'static str,
    /// The same for the client, and by whom.
    pub(crate) comment: Bytes,
}

impl Keep {
    /// For the stream that `ask` asked for and `replica` answers: `None` where its endpoint's streams never go on.
    ///
    /// # Errors
    /// This one will not go on.
    pub(crate) fn new(
        dispatcher: Arc<Dispatcher>,
        ask: Ask,
        replica: ReplicaId,
        silence: Duration,
    ) -> Option<Result<Box<Self>, Refusal>> {
        let endpoint = Endpoint::of(ask.path.path())?;
        if headers::refuses_continuation(&ask.headers) {
            return Some(Err(Refusal::Off));
        }
        if ask.body.len() > KEPT_BODY || !ask.memory.as_ref().is_some_and(|memory| memory.may_stay()) {
            return Some(Err(Refusal::LargeRequest));
        }
        let kin = dispatcher.kin(replica, &ask.want.model);
        let ask = Arc::new(ask);
        let kept = Kept::new(endpoint, dispatcher.kept.clone());
        Some(Ok(Box::new(Self { dispatcher, ask, kept, kin, splice: None, losses: 0, seconds: 0, silence })))
    }

    /// Whole events on their way to the client: what of them goes out.
    pub(crate) fn pass(&mut self, events: Bytes) -> Bytes {
        let events = match &mut self.splice {
            Some(splice) => splice.push(&events),
            None => events,
        };
        self.kept.saw(&events);
        events
    }

    /// Begins to ask for the rest, `lost` being gone.
    ///
    /// # Errors
    /// The stream may not go on.
    pub(crate) fn resume(
        mut self: Box<Self>,
        lost: ReplicaId,
    ) -> Result<BoxFuture<'static, Result<Resumed, Refusal>>, Refusal> {
        if self.losses >= LOSSES {
            return Err(Refusal::Often);
        }
        self.losses += 1;
        self.asked_for(lost, Turn::InLine)
    }

    /// Begins to ask another replica for the rest while `late` is silent.
    ///
    /// # Errors
    /// The stream may not go on.
    pub(crate) fn beside(&self, late: ReplicaId) -> Result<BoxFuture<'static, Result<Resumed, Refusal>>, Refusal> {
        // Before its text is copied and counted.
        if !self.dispatcher.pool.may_hedge(&self.ask.want.model, late) {
            return Err(Refusal::NoReplica);
        }
        let mut copy = Box::new(self.clone());
        copy.seconds += 1;
        if copy.seconds > SECONDS {
            return Err(Refusal::Often);
        }
        copy.asked_for(late, Turn::AtOnce)
    }

    fn asked_for(
        self: Box<Self>,
        lost: ReplicaId,
        turn: Turn,
    ) -> Result<BoxFuture<'static, Result<Resumed, Refusal>>, Refusal> {
        let way = self.kept.way(self.ask.body.whole().map(Bytes::as_ref).unwrap_or_default())?;
        Ok(Box::pin(async move {
            match way {
                Way::Again => self.again(lost, turn).await,
                Way::On(rest) => self.go_on(lost, turn, &rest).await,
            }
        }))
    }

    async fn again(mut self: Box<Self>, lost: ReplicaId, turn: Turn) -> Result<Resumed, Refusal> {
        let mut ticket = Ticket::default();
        ticket.failed_on(lost);
        // What was lost is asked again only where there is no other, even if others are out of rotation for a moment.
        let alone = !self.dispatcher.any(&self.ask.want.model, &|replica| *replica != lost);
        let may = |replica: &ReplicaId| alone || *replica != lost;
        let relay = self.dispatcher.stream(&self.ask, turn, ticket, &may).await?;
        self.splice = self.kept.splice_again();
        Ok(self.resumed(relay, "asked_again"))
    }

    async fn go_on(mut self: Box<Self>, lost: ReplicaId, turn: Turn, rest: &Rest) -> Result<Resumed, Refusal> {
        let model = self.ask.want.model.clone();
        let kin = self.kin.clone().ok_or(Refusal::NoReplica)?;
        let dispatcher = Arc::clone(&self.dispatcher);
        let runtime = dispatcher.runtimes.get(kin.runtime()).map_err(|_| Refusal::NoReplica)?;
        let (Some(way), Some(tokenize)) = (&runtime.continuation, &runtime.tokenize) else {
            return Err(Refusal::NoReplica);
        };
        let until = Instant::now() + COMES_BACK.min(dispatcher.hold);
        let mut uncounted = 0;
        let (relay, sent) = loop {
            let refusal = match self.go_on_now(lost, turn, rest, &kin, (way, tokenize)).await {
                Ok(answered) => break answered,
                Err(refusal) => refusal,
            };
            uncounted += usize::from(matches!(refusal, Refusal::Uncounted));
            // All others were lost a moment ago too, as when this machine stood still or was cut off: not they are dead.
            let passes = dispatcher.may_come_back(&kin, &model, lost)
                || (matches!(refusal, Refusal::Uncounted) && uncounted < COUNTS);
            if matches!(turn, Turn::AtOnce) || Instant::now() >= until || !passes {
                return Err(refusal);
            }
            dispatcher.pool.connected(&model, RETURNS).await;
        };
        self.splice = self.kept.splice(rest, sent);
        Ok(self.resumed(relay, "continued"))
    }

    /// Asks those for the rest that can go on with it now; and how many tokens of the text they were sent.
    async fn go_on_now(
        &self,
        lost: ReplicaId,
        turn: Turn,
        rest: &Rest,
        kin: &Kin,
        (way, tokenize): (&Continuation, &Tokenize),
    ) -> Result<(Box<Relay>, u64), Refusal> {
        let (dispatcher, model) = (&self.dispatcher, &self.ask.want.model);
        let mut ticket = Ticket::default();
        ticket.failed_on(lost);
        let able = dispatcher.able(kin, model, &mut ticket);
        if able.is_empty() {
            return Err(Refusal::NoReplica);
        }
        let sent = dispatcher.count(&self.ask, &able, tokenize, rest).await.ok_or(Refusal::Uncounted)?;
        let ask = self.ask.with_body(rest.request(way, sent));
        let directory = dispatcher.handle.directory();
        let may = |id: &ReplicaId| {
            let able = |replica: &Replica| kin.goes_on_at(replica, model);
            *id != lost && directory.read(|directory| directory.replica(id).is_some_and(able))
        };
        let relay = dispatcher.stream(&ask, turn, ticket, &may).await?;
        Ok((relay, sent))
    }

    fn resumed(mut self: Box<Self>, relay: Box<Relay>, how: &'static str) -> Resumed {
        let replica = relay.replica();
        if let Some(replica) = replica {
            self.kin = self.dispatcher.kin(replica, &self.ask.want.model);
        }
        tracing::info!(
            replica = replica.map(tracing::field::display),
            how,
            losses = self.losses,
            request_id = self.ask.id.to_str().ok(),
            "stream goes on elsewhere"
        );
        let whom = replica.map(|replica| format!(" by {replica}")).unwrap_or_default();
        let comment = format!(": {}{whom}\n\n", how.replace('_', " ")).into();
        Resumed { keep: self, relay, how, comment }
    }
}

impl Ask {
    fn with_body(&self, body: Bytes) -> Self {
        let ask_usage = request::peek(&body).ok().and_then(|peek| peek.ask_usage);
        Self {
            method: self.method.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            body: Payload::Whole(body),
            memory: None,
            want: self.want.clone(),
            asked: self.asked.clone(),
            model_at: None,
            fallbacks: Vec::new(),
            pinned: None,
            owner: self.owner,
            ask_usage,
            account: self.account.clone(),
            dialect: self.dialect,
            id: self.id.clone(),
            since: Instant::now(),
        }
    }
}

impl Dispatcher {
    fn kin(&self, replica: ReplicaId, model: &ModelId) -> Option<Kin> {
        self.handle.directory().read(|directory| Kin::of(directory.replica(&replica)?, model))
    }

    /// Those that may go on, connected ones first, but for those of `ticket`; which gets all others.
    fn able(&self, kin: &Kin, model: &ModelId, ticket: &mut Ticket) -> Vec<ReplicaId> {
        let mut able = Vec::new();
        self.handle.directory().read(|directory| {
            for replica in directory.replicas(model) {
                if !kin.goes_on_at(replica, model) {
                    ticket.failed_on(replica.id);
                } else if !ticket.tried.contains(&replica.id) {
                    able.push((!replica.reachability.is_connected(), replica.id));
                }
            }
        });
        able.sort_by_key(|(away, _)| *away);
        able.into_iter().map(|(_, id)| id).collect()
    }

    /// The stream that `ask` asks for, by one that `may` be asked.
    async fn stream(
        &self,
        ask: &Ask,
        turn: Turn,
        mut ticket: Ticket,
        may: &(dyn Fn(&ReplicaId) -> bool + Sync),
    ) -> Result<Box<Relay>, Refusal> {
        let answer = match turn {
            Turn::InLine => {
                self.first_answer(ask, ticket, may).await.map_err(|why| Refusal::Failed(why.to_string()))?
            }
            Turn::AtOnce => {
                let lease = self.pool.second(&ask.want, &ticket.tried).filter(|lease| may(&lease.replica()));
                let lease = lease.ok_or(Refusal::NoReplica)?;
                let outcome = self.ask_beside(ask, lease, &mut ticket.tried, may).await;
                outcome.answer.map_err(|_| Refusal::Failed("another replica failed as well".to_owned()))?
            }
        };
        if answer.status() == StatusCode::OK && answer.body().is_event_stream() {
            return Ok(Box::new(answer.into_body()));
        }
        Err(Refusal::Failed(format!("another replica answered {} instead of a stream", answer.status())))
    }

    /// Whether another replica than `lost` has the same and was there a moment ago, but is not connected now, or has not been
    /// heard since.
    fn may_come_back(&self, kin: &Kin, model: &ModelId, lost: ReplicaId) -> bool {
        let another = |directory: &Directory| {
            let mut kin = directory.replicas(model).filter(|other| other.id != lost && kin.is_of(other, model));
            kin.any(|other| other.unconfirmed || !other.reachability.is_connected())
        };
        self.pool.was_reachable(model) && self.handle.directory().read(another)
    }

    /// How many tokens the text has that `rest` goes on from, by one of those who may. One that does not answer soon is
    /// not waited for alone: the client's stream stands still meanwhile.
    async fn count(&self, ask: &Ask, able: &[ReplicaId], way: &Tokenize, rest: &Rest) -> Option<u64> {
        let body = rest.count(way, ask.want.model.as_str());
        let mut others = able.iter().take(COUNTERS);
        let mut asked = FuturesUnordered::new();
        loop {
            let next = others.next();
            asked.extend(next.map(|replica| self.count_at(*replica, ask, way, body.clone())));
            let patience = if next.is_some() { COUNT_ALONE } else { COUNT };
            match time::timeout(patience, asked.next()).await {
                Ok(Some(Some(count))) => return Some(count),
                Ok(None) => return None,
                Err(_) if next.is_none() => return None,
                // It can't say, or takes its time.
                Ok(Some(None)) | Err(_) => {}
            }
        }
    }

    async fn count_at(&self, replica: ReplicaId, ask: &Ask, way: &Tokenize, body: Bytes) -> Option<u64> {
        self.connect(replica.peer).await.ok()?;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("/engine{}", way.path).parse().ok()?;
        let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.headers_mut() = headers::to_engine(&HeaderMap::from_iter([json]), replica, &ask.want.model, &ask.id);
        let answer = self.handle.hop().send(replica.peer, request).await.ok()?;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let answer = Limited::new(answer.into_body(), COUNT_BYTES).collect().await.ok()?;
        continuation::counted(way, &answer.to_bytes())
    }
}

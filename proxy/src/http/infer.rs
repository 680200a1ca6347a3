//! From a request that is let in to a replica's answer: its body read, its model known, its names resolved.

use super::{
    Door, Story,
    answer::{Body, Guarded},
    endpoint::{self, Dialect, Inference, Payload as Kind},
    engine_error, headers, step_of, stream,
};
use crate::{
    auth::Auth,
    balance::Want,
    dispatch::Ask,
    errors::{Error, engine::Said},
    keys::{self, Grant},
    late::Priority,
    limits::estimate,
    meter::Meter,
    prompt::{self, Prompt},
    request::{
        self, Peek,
        body::{self, Share, inflate},
        form::{self, Form},
        payload::Payload,
    },
    responses,
    upload::Upload,
};
use bytes::Bytes;
use dunlin_protocol::{
    endpoint::Work,
    hop::AskUsage,
    id::{ModelId, ReplicaId},
};
use http::{HeaderMap, HeaderValue, Response, header, request::Parts};
use std::{net::IpAddr, ops::Range, pin::pin, sync::Arc, time::Instant};

/// Bodies from here on are looked into on a thread of their own, so that nobody else waits the milliseconds it takes.
const PEEK_ELSEWHERE: usize = 256 << 10;

/// One request on its way, but for its body.
pub(super) struct Incoming {
    pub(super) parts: Parts,
    /// The client's, where it has one.
    pub(super) address: Option<IpAddr>,
    /// What its key grants; `None` where no key is asked for.
    pub(super) grant: Option<Arc<Grant>>,
    pub(super) id: HeaderValue,
    /// When its head had come.
    pub(super) since: Instant,
}

/// What its body says.
struct Wanted {
    /// The only replica that may be asked.
    pinned: Option<ReplicaId>,
    owner: u64,
    model: ModelId,
    model_at: Option<Range<usize>>,
    prompt: Prompt,
    stream: bool,
    ask_usage: Option<AskUsage>,
    tenant: u64,
    memory: Option<Share>,
    meter: Option<Arc<Meter>>,
}

impl Door {
    /// The answer of a replica of the model that the body names.
    pub(super) async fn infer<B>(
        self: &Arc<Self>,
        endpoint: &'static Inference,
        request: Incoming,
        body: &mut B,
        story: &mut Story,
    ) -> Result<Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        match endpoint.payload {
            Kind::Json => self.infer_json(endpoint, request, body, story).await,
            Kind::Form => self.infer_form(endpoint, request, body, story).await,
        }
    }

    async fn infer_json<B>(
        self: &Arc<Self>,
        endpoint: &'static Inference,
        mut request: Incoming,
        body: &mut B,
        story: &mut Story,
    ) -> Result<Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let (body, memory) = self.read(&mut request.parts.headers, body, request.address).await?;
        let Peek { model, model_at, stream, previous, prompt, longest, ask_usage } = peek(body.clone()).await?;
        story.model = Some(model.clone());
        let grant = request.grant.clone();
        let tokens = || estimate::tokens(body.len(), longest, endpoint.work == Work::Generates);
        let meter = self.metered(grant.as_ref(), &model, tokens, request.since).await?;
        let (tenant, owner) = (prompt::hash(memory.tenant()), responses::tag(memory.tenant()));
        let pinned = match previous.filter(|_| endpoint.dialect == Dialect::Responses) {
            Some(id) => {
                // One that builds on nothing is answered by nobody, and counts not.
                let place = self.place(&id, owner).await;
                Some(place.inspect_err(|error| unserved(meter.as_ref(), error))?.replica())
            }
            None => None,
        };
        let memory = Some(memory);
        let wanted =
            Wanted { pinned, owner, model, model_at, prompt, stream, ask_usage, tenant, memory, meter: meter.clone() };
        let mut ask = self.ask(endpoint, request, Payload::Whole(body), wanted, story)?;
        let (path, model) = (ask.path.path().to_owned(), ask.want.model.clone());
        let answered = if stream {
            stream::answer(self.dispatcher.clone(), ask, self.silence).await
        } else {
            self.dispatcher.dispatch(&mut ask).await.map(|answer| answer.map(|relay| Body::Relay(Box::new(relay))))
        };
        let response = self.settled(answered, meter.as_ref())?;
        story.step = step_of(&response);
        let response = shaped(response, endpoint, &path, &model).await;
        Ok(self.guarded(response, grant.as_ref(), stream.then_some(endpoint.dialect)))
    }

    /// The request goes out as soon as its model is known; what is still to come follows.
    async fn infer_form<B>(
        self: &Arc<Self>,
        endpoint: &'static Inference,
        request: Incoming,
        body: &mut B,
        story: &mut Story,
    ) -> Result<Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let head = &request.parts.headers;
        if let Some(coding) = inflate::coding(head).map_err(Error::Encoding)? {
            return Err(Error::Encoding(format!("{coding:?}").to_ascii_lowercase()));
        }
        let form = Form::of(head.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default())?;
        let named = headers::model(head)?;
        let (grant, since) = (request.grant.clone(), request.since);
        let tenant = self.auth.tenant(head, request.address);
        let upload = Upload::new(&tenant, body.size_hint().exact(), &self.uploads)?;
        let (answer, path, model, received) = {
            let mut receiving = pin!(upload.receive(body, form, named.as_ref(), &self.uploads));
            let mut received = false;
            let model = match named.clone() {
                Some(model) => model,
                None => tokio::select! {
                    biased;
                    done = receiving.as_mut() => {
                        done?;
                        received = true;
                        upload.model().await.ok_or(form::Error::NoModel)?
                    }
                    model = upload.model() => model.ok_or(form::Error::NoModel)?,
                },
            };
            story.model = Some(model.clone());
            // What an upload takes, its engine counts.
            let meter = self.metered(grant.as_ref(), &model, || 0, since).await?;
            let wanted = Wanted {
                meter: meter.clone(),
                pinned: None,
                owner: responses::tag(&tenant),
                model,
                model_at: None,
                prompt: Prompt::default(),
                stream: false,
                ask_usage: None,
                tenant: prompt::hash(&tenant),
                memory: None,
            };
            let mut ask = self.ask(endpoint, request, Payload::Upload(upload.clone(), None), wanted, story)?;
            let (path, model) = (ask.path.path().to_owned(), ask.want.model.clone());
            let answer = {
                let mut answering = Box::pin(self.dispatcher.dispatch(&mut ask));
                loop {
                    tokio::select! {
                        biased;
                        done = receiving.as_mut(), if !received => {
                            done?;
                            received = true;
                        }
                        answer = answering.as_mut() => break self.settled(answer, meter.as_ref())?,
                    }
                }
            };
            // What an engine makes of the beginning is no answer before the whole has turned out to be right.
            if !received && answer.status().is_success() {
                receiving.await?;
                received = true;
            }
            (answer, path, model, received)
        };
        let response = answer.map(|relay| Body::Relay(Box::new(relay)));
        story.step = step_of(&response);
        let response = shaped(response, endpoint, &path, &model).await;
        if !received {
            body::discard(body).await;
        }
        Ok(self.guarded(response, grant.as_ref(), None))
    }

    /// Takes a request from the limits of its key, if that opens the model. `tokens`: an estimate of what it may use.
    pub(super) async fn metered(
        &self,
        grant: Option<&Arc<Grant>>,
        model: &ModelId,
        tokens: impl FnOnce() -> i64,
        since: Instant,
    ) -> Result<Option<Arc<Meter>>, Error> {
        if !keys::allows(grant, model) {
            return Err(Error::ModelNotAllowed(model.clone()));
        }
        let Some(grant) = grant else { return Ok(None) };
        self.meters.admit(grant, model, tokens, since).await.map(Some)
    }

    /// Says what is left to the key; a request that no replica could be had for counts against no limit.
    pub(super) fn settled<B>(
        &self,
        answered: Result<Response<B>, Error>,
        meter: Option<&Arc<Meter>>,
    ) -> Result<Response<B>, Error> {
        let mut response = answered.inspect_err(|error| unserved(meter, error))?;
        if let Some(meter) = meter {
            meter.tell(response.headers_mut());
        }
        Ok(response)
    }

    /// An answer that ends when its key is revoked for now and not only for new requests.
    fn guarded(&self, response: Response<Body>, grant: Option<&Arc<Grant>>, events: Option<Dialect>) -> Response<Body> {
        let (Some(grant), Auth::Keys(keeper, _)) = (grant, &self.auth) else { return response };
        response.map(|body| Body::Guarded(Box::new(Guarded::new(body, keeper.keys().clone(), &grant.key.id, events))))
    }

    fn ask(
        &self,
        endpoint: &'static Inference,
        request: Incoming,
        body: Payload,
        wanted: Wanted,
        story: &mut Story,
    ) -> Result<Ask, Error> {
        let Incoming { parts, id, since, grant, .. } = request;
        let Wanted { pinned, owner, model: asked, model_at, mut prompt, stream, ask_usage, tenant, memory, meter } =
            wanted;
        let priority = grant.map_or_else(Priority::default, |grant| Priority(grant.key.priority));
        let model = self.names.resolve(&asked).clone();
        let fallbacks = if pinned.is_none() { self.names.fallbacks(&model).to_vec() } else { Vec::new() };
        story.model = Some(model.clone());
        prompt.session = headers::session(&parts.headers).or(prompt.session);
        let path = endpoint::target(&parts.uri);
        let mut ask = Ask {
            method: parts.method,
            path,
            headers: parts.headers,
            body,
            memory,
            want: Want { model: asked.clone(), tenant, priority, prompt: Arc::new(prompt), stream },
            asked,
            model_at,
            fallbacks,
            pinned,
            owner,
            ask_usage,
            account: meter.as_ref().map(Meter::account),
            dialect: endpoint.dialect,
            id,
            since,
        };
        if ask.asked != model {
            ask.rename(&model)?;
        }
        Ok(ask)
    }

    async fn read<B>(
        &self,
        headers: &mut HeaderMap,
        incoming: &mut B,
        address: Option<IpAddr>,
    ) -> Result<(Bytes, Share), Error>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let coding = inflate::coding(headers).map_err(Error::Encoding)?;
        let (body, share) = body::read(incoming, self.auth.tenant(headers, address), &self.bodies).await?;
        headers.remove(header::CONTENT_ENCODING);
        // It is read as JSON whatever its sender calls it: `curl -d` says that it is a form, which some engines refuse.
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match coding {
            None => Ok((body, share)),
            Some(coding) => Ok(inflate::inflated(body, coding, self.bodies.body, share).await?),
        }
    }
}

/// No replica has answered: counts against no limit.
fn unserved(meter: Option<&Arc<Meter>>, error: &Error) {
    if let Some(meter) = meter {
        meter.unserved(!matches!(error, Error::ModelNotFound { .. }));
    }
}

/// Reads what must be known of the body.
async fn peek(body: Bytes) -> Result<Peek, request::Error> {
    if body.len() < PEEK_ELSEWHERE {
        return request::peek(&body);
    }
    let peeked = tokio::task::spawn_blocking(move || request::peek(&body)).await;
    // The thread ends early only with the process.
    peeked.unwrap_or(Err(request::Error::Empty))
}

async fn shaped(response: Response<Body>, endpoint: &Inference, path: &str, model: &ModelId) -> Response<Body> {
    let (status, dialect) = (response.status(), endpoint.dialect);
    let said = Said { status, body: &[], dialect, path, model: model.as_str() };
    engine_error::shaped(response, said).await
}

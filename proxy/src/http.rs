//! The front door's HTTP: from a request's head to the answer's.

pub(crate) mod answer;
pub(crate) mod endpoint;
pub(crate) mod headers;
mod models;
pub(crate) mod serve;
pub(crate) mod sse;
mod stream;

use crate::{
    auth::Auth,
    balance::Want,
    dispatch::{Ask, Dispatcher},
    errors::Error,
    late::Priority,
    metrics::Metrics,
    prompt,
    request::{
        self, Peek,
        body::{self, Share},
    },
    route::Step,
};
use answer::Body;
use bytes::Bytes;
use dunlin_protocol::id::ModelId;
use endpoint::{Dialect, Endpoint};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, uri::PathAndQuery};
use rand::rngs::SmallRng;
use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// Bodies from here on are looked into on a thread of their own, so that nobody else waits the milliseconds it takes.
const PEEK_ELSEWHERE: usize = 256 << 10;

/// All that answering one request takes.
pub(crate) struct Door {
    pub(crate) auth: Auth,
    pub(crate) bodies: body::Bounds,
    /// One for each request that may be in flight.
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) silence: Duration,
    /// When the proxy started, unix seconds: what `/v1/models` gives as `created`.
    pub(crate) started: u64,
    pub(crate) rng: Mutex<SmallRng>,
}

/// What is said of a request in metrics and in the log once it is answered.
#[derive(Default)]
struct Story {
    model: Option<ModelId>,
    step: Option<Step>,
}

impl Door {
    /// Answers one request. Every error has become an answer.
    /// `address` is the client's, where it has one.
    pub(crate) async fn answer<B>(self: Arc<Self>, request: Request<B>, address: Option<IpAddr>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let since = Instant::now();
        let id = headers::request_id(request.headers(), &mut *self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        let client = Origin::of(request.headers());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let mut story = Story::default();
        let mut response = if headers::is_preflight(&method) {
            preflight(request.headers())
        } else {
            self.answer_or_refuse(request, address, &id, since, &mut story).await
        };
        client.allow(response.headers_mut(), matches!(self.auth, Auth::LocalOnly));
        let status = response.status();
        self.metrics.answered(story.model.as_ref(), status, story.step);
        tracing::debug!(request_id = id.to_str().ok(), %method, path = uri.path(), status = status.as_u16(), ms = since.elapsed().as_millis(), "answered");
        response.headers_mut().insert(headers::REQUEST_ID, id);
        response
    }

    async fn answer_or_refuse<B>(
        self: &Arc<Self>,
        request: Request<B>,
        address: Option<IpAddr>,
        id: &HeaderValue,
        since: Instant,
        story: &mut Story,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        let endpoint = Endpoint::of(request.method(), request.uri().path());
        let dialect = endpoint.as_ref().map_or(Dialect::OpenAi, Endpoint::dialect);
        let (parts, mut incoming) = request.into_parts();
        let answered = match self.admit(endpoint, &parts) {
            Err(error) => Err(error),
            Ok(Endpoint::Inference(_)) => match self.requests.clone().try_acquire_owned() {
                Err(_) => Err(Error::Overloaded),
                Ok(permit) => match self.read(&parts.headers, &mut incoming, address).await {
                    Ok(body) => {
                        let answered = self.infer(parts, body, dialect, id.clone(), since, story).await;
                        answered.map(|answer| answer.map(|body| body.counted(permit)))
                    }
                    Err(error) => Err(error),
                },
            },
            Ok(endpoint) => self.read_only(&endpoint),
        };
        match answered {
            Ok(response) => response,
            Err(error) => {
                if !matches!(error, Error::Body(body::Error::TooSlow | body::Error::Broken)) {
                    body::discard(&mut incoming).await;
                }
                error.response(dialect)
            }
        }
    }

    fn admit(&self, endpoint: Result<Endpoint, Error>, parts: &http::request::Parts) -> Result<Endpoint, Error> {
        let open = endpoint.as_ref().is_ok_and(Endpoint::is_open);
        if !open || matches!(self.auth, Auth::LocalOnly) {
            let checked = self.auth.check(&parts.uri, &parts.headers);
            checked.inspect_err(|error| self.metrics.auth_failure(error.label()))?;
        }
        let endpoint = endpoint?;
        headers::check_size(&parts.headers)?;
        Ok(endpoint)
    }

    async fn read<B>(
        &self,
        headers: &HeaderMap,
        incoming: &mut B,
        address: Option<IpAddr>,
    ) -> Result<(Bytes, Share), Error>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        refuse_compressed(headers)?;
        Ok(body::read(incoming, self.auth.tenant(headers, address), &self.bodies).await?)
    }

    async fn infer(
        self: &Arc<Self>,
        parts: http::request::Parts,
        (body, memory): (Bytes, Share),
        dialect: Dialect,
        id: HeaderValue,
        since: Instant,
        story: &mut Story,
    ) -> Result<Response<Body>, Error> {
        let Peek { model, stream: streams, mut prompt, ask_usage } = peek(body.clone()).await?;
        story.model = Some(model.clone());
        prompt.session = headers::session(&parts.headers).or(prompt.session);
        let tenant = prompt::hash(memory.tenant());
        let want = Want { model, tenant, priority: Priority::default(), prompt: Arc::new(prompt), stream: streams };
        let path = parts.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let ask = Ask {
            method: parts.method,
            path,
            headers: parts.headers,
            body,
            memory: Some(memory),
            want,
            ask_usage,
            account: None,
            dialect,
            id,
            since,
        };
        let response = if streams {
            stream::answer(self.dispatcher.clone(), ask, self.silence).await?
        } else {
            let answer = self.dispatcher.dispatch(&ask).await?;
            answer.map(|relay| Body::Relay(Box::new(relay)))
        };
        story.step = step_of(&response);
        Ok(response)
    }

    /// The text for Prometheus.
    pub(crate) fn metrics_page(&self) -> String {
        let directory = self.dispatcher.handle.directory();
        directory.read(|d| self.metrics.encode(d.all_replicas().map(|replica| replica.state)))
    }

    fn read_only(&self, endpoint: &Endpoint) -> Result<Response<Body>, Error> {
        let directory = self.dispatcher.handle.directory();
        Ok(match endpoint {
            Endpoint::Models => json(StatusCode::OK, directory.read(|d| models::list(d, self.started)).to_string()),
            Endpoint::Model(id) => match directory.read(|d| models::one(d, id, self.started)) {
                Some(model) => json(StatusCode::OK, model.to_string()),
                None => return Err(Error::ModelNotFound { model: id.clone() }),
            },
            Endpoint::Ready => self.ready(),
            Endpoint::Metrics => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                with_type(StatusCode::OK, kind, self.metrics_page())
            }
            Endpoint::Health | Endpoint::Inference(_) => json(StatusCode::OK, r#"{"status":"ok"}"#),
        })
    }

    /// Ready when a request could find a replica.
    fn ready(&self) -> Response<Body> {
        let models = self.dispatcher.handle.directory().read(models::count);
        let (status, said) = match models {
            0 => (StatusCode::SERVICE_UNAVAILABLE, "no replica is ready"),
            _ => (StatusCode::OK, "ready"),
        };
        json(status, serde_json::json!({"status": said, "models": models}).to_string())
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

fn refuse_compressed(headers: &HeaderMap) -> Result<(), Error> {
    let encoding = headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    match encoding {
        None | Some(b"" | b"identity") => Ok(()),
        Some(other) => Err(Error::Encoding(String::from_utf8_lossy(&other[..other.len().min(32)]).into_owned())),
    }
}

fn step_of(response: &Response<Body>) -> Option<Step> {
    let named = response.headers().get(headers::ROUTE)?;
    [Step::Fresh, Step::Stale, Step::RoundRobin].into_iter().find(|step| named == step.as_str())
}

fn preflight(client: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    headers::preflight(response.headers_mut(), client);
    response
}

/// A browser's origin, kept while the request is on its way.
struct Origin(HeaderMap);

impl Origin {
    fn of(client: &HeaderMap) -> Self {
        let origin = client.get(header::ORIGIN).cloned();
        Self(origin.map(|origin| (header::ORIGIN, origin)).into_iter().collect())
    }

    fn allow(&self, headers: &mut HeaderMap, local_only: bool) {
        headers::allow_origin(headers, &self.0, local_only);
    }
}

fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    with_type(status, "application/json", body)
}

fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

//! The front door's HTTP: from a request's head to the answer's.

pub(crate) mod answer;
pub(crate) mod endpoint;
mod engine_error;
pub(crate) mod headers;
mod infer;
mod models;
mod near;
mod openapi;
pub(crate) mod serve;
pub(crate) mod sse;
mod stored;
mod stream;

use crate::{
    auth::{
        self, Auth,
        failures::Failures,
        forwarded::{self, Network},
    },
    dispatch::Dispatcher,
    errors::Error,
    keys::{self, Grant},
    meter::Meters,
    metrics::Metrics,
    names::Names,
    request::body,
    route::Step,
    upload,
};
use answer::Body;
use bytes::Bytes;
use dunlin_protocol::id::ModelId;
use endpoint::{Dialect, Endpoint};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use infer::Incoming;
use rand::rngs::SmallRng;
use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// All that answering one request takes.
pub(crate) struct Door {
    pub(crate) auth: Auth,
    pub(crate) meters: Meters,
    pub(crate) failures: Mutex<Failures>,
    /// Who is believed about where a request came from.
    pub(crate) trusted: Vec<Network>,
    pub(crate) bodies: body::Bounds,
    /// One for each request that may be in flight.
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) uploads: upload::Bounds,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) names: Arc<Names>,
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
        let address = address.map(|peer| forwarded::client(peer, request.headers(), &self.trusted));
        let id = headers::request_id(request.headers(), &mut *self.rng.lock().unwrap_or_else(PoisonError::into_inner));
        let client = Origin::of(request.headers());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let mut story = Story::default();
        let in_chunks = headers::is_in_chunks(&request);
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
        if in_chunks {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
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
        // Who waits for the word to send a body is not given it for one that nobody wants.
        let waits = parts.headers.contains_key(header::EXPECT);
        let answered = match self.admit(endpoint, &parts, address, since) {
            Err(error) => Err(error),
            Ok((Endpoint::Inference(endpoint), grant)) => match self.requests.clone().try_acquire_owned() {
                Err(_) => Err(Error::Overloaded),
                Ok(permit) => {
                    let request = Incoming { parts, address, grant, id: id.clone(), since };
                    let answered = self.infer(endpoint, request, &mut incoming, story).await;
                    answered.map(|answer| answer.map(|body| body.counted(permit)))
                }
            },
            Ok((Endpoint::Stored(stored), grant)) => match self.requests.clone().try_acquire_owned() {
                Err(_) => Err(Error::Overloaded),
                Ok(permit) => {
                    let request = Incoming { parts, address, grant, id: id.clone(), since };
                    let answered = self.stored(stored, request, story).await;
                    answered.map(|answer| answer.map(|body| body.counted(permit)))
                }
            },
            Ok((endpoint, grant)) => self.read_only(&endpoint, grant.as_ref()),
        };
        match answered {
            Ok(response) => response,
            Err(error) => {
                if !waits && !matches!(error, Error::Body(body::Error::TooSlow | body::Error::Broken)) {
                    body::discard(&mut incoming).await;
                }
                self.helped(error).response(dialect)
            }
        }
    }

    /// The error of a model that there is none of, with the names that may have been meant.
    fn helped(&self, error: Error) -> Error {
        let Error::ModelNotFound { model, .. } = error else { return error };
        let near = self.dispatcher.handle.directory().read(|directory| {
            let served = directory.all_replicas().flat_map(|replica| &replica.models).map(|served| served.id.as_str());
            let aliases = self.names.aliases().map(|(alias, _)| alias.as_str());
            near::near(model.as_str(), aliases.chain(served)).into_iter().map(str::to_owned).collect()
        });
        Error::ModelNotFound { model, near }
    }

    fn admit(
        &self,
        endpoint: Result<Endpoint, Error>,
        parts: &http::request::Parts,
        address: Option<IpAddr>,
        since: Instant,
    ) -> Result<(Endpoint, Option<Arc<Grant>>), Error> {
        let open = endpoint.as_ref().is_ok_and(Endpoint::is_open);
        let mut grant = None;
        if !open || matches!(self.auth, Auth::LocalOnly) {
            let checked = self.auth.check(&parts.uri, &parts.headers);
            grant = checked.inspect_err(|error| self.metrics.auth_failure(error.label())).map_err(|error| {
                // Whoever tries keys is not answered for ever.
                let tried = matches!(error, auth::Error::Wrong | auth::Error::Revoked | auth::Error::Expired);
                let address = address.filter(|_| tried);
                let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                let too_many = address.and_then(|address| failures.failed(address, since));
                too_many.map_or(Error::Auth(error), Error::TooManyFailures)
            })?;
        }
        let endpoint = endpoint?;
        headers::check_length(&parts.headers)?;
        headers::check_size(&parts.headers)?;
        Ok((endpoint, grant))
    }

    /// The text for Prometheus.
    pub(crate) fn metrics_page(&self) -> String {
        let directory = self.dispatcher.handle.directory();
        directory.read(|d| self.metrics.encode(d.all_replicas().map(|replica| replica.state)))
    }

    fn read_only(&self, endpoint: &Endpoint, grant: Option<&Arc<Grant>>) -> Result<Response<Body>, Error> {
        let directory = self.dispatcher.handle.directory();
        let may = |model: &ModelId| keys::allows(grant, model);
        Ok(match endpoint {
            Endpoint::Models => {
                json(StatusCode::OK, directory.read(|d| models::list(d, &self.names, may, self.started)).to_string())
            }
            Endpoint::Model(id) if !may(id) => return Err(Error::ModelNotAllowed(id.clone())),
            Endpoint::Model(id) => match directory.read(|d| models::one(d, &self.names, id, self.started)) {
                Some(model) => json(StatusCode::OK, model.to_string()),
                None => return Err(Error::ModelNotFound { model: id.clone(), near: Vec::new() }),
            },
            Endpoint::Ready => self.ready(),
            Endpoint::Metrics => {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                with_type(StatusCode::OK, kind, self.metrics_page())
            }
            Endpoint::OpenApi => json(StatusCode::OK, openapi::document().to_string()),
            Endpoint::Health | Endpoint::Inference(_) | Endpoint::Stored(_) => {
                json(StatusCode::OK, r#"{"status":"ok"}"#)
            }
        })
    }

    /// Ready when a request could get in and find a replica.
    fn ready(&self) -> Response<Body> {
        let models = self.dispatcher.handle.directory().read(models::count);
        let (status, said) = match models {
            _ if !self.auth.is_ready() => {
                (StatusCode::SERVICE_UNAVAILABLE, "the keys were not fetched from another proxy yet")
            }
            0 => (StatusCode::SERVICE_UNAVAILABLE, "no replica is ready"),
            _ => (StatusCode::OK, "ready"),
        };
        json(status, serde_json::json!({"status": said, "models": models}).to_string())
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

//! The demo engine's routes.

use super::{
    answer::Events,
    body::{self, Body, Died, Stream},
    config::{Adapter, Config},
    embeddings,
    error::Error,
    faults::{Faults, Strike, Switch},
    metrics::Metrics,
    models::Models,
    request::{Endpoint, Request},
    scheduler::{Need, Scheduler},
    server::Line,
    text::mix,
    tokens,
};
use ::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Largest request body.
const BODY_BYTES: usize = 64 * 1024 * 1024;
/// Says that this is no real engine, on every answer.
pub(super) const DEMO: &str = "x-dunlin-demo";

/// All that the routes share.
#[derive(Debug)]
pub(super) struct Engine {
    config: Config,
    models: Models,
    metrics: Arc<Metrics>,
    scheduler: Arc<Scheduler>,
    switch: Switch,
    /// Numbers requests; begins where no earlier process has.
    ids: AtomicU64,
    last: Mutex<Option<Recorded>>,
}

/// The last inference request, for tests that look at what arrives.
#[derive(Debug, Clone, Serialize)]
struct Recorded {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Engine {
    pub(super) fn new(config: Config) -> Self {
        let metrics = Arc::new(Metrics::new());
        Self {
            models: Models::new(&config),
            scheduler: Arc::new(Scheduler::new(&config, Arc::clone(&metrics))),
            metrics,
            switch: Switch::new(config.faults.clone()),
            ids: AtomicU64::new(since_1970().as_micros().try_into().unwrap_or(0)),
            last: Mutex::default(),
            config,
        }
    }

    /// `prefix-` and the caller's own id or a new one.
    fn id(&self, prefix: &str, headers: &HeaderMap) -> String {
        match headers.get("x-request-id").and_then(|id| id.to_str().ok()) {
            Some(id) => format!("{prefix}-{id}"),
            None => format!("{prefix}-{:016x}", mix(self.ids.fetch_add(1, Relaxed))),
        }
    }

    fn record(&self, parts: &Parts, body: &Bytes) {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let recorded = Recorded {
            path: parts.uri.to_string(),
            headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: String::from_utf8_lossy(body).into_owned(),
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorded);
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

type Answer = Result<Response<Body>, Error>;

/// Answers one request.
///
/// # Errors
/// The engine dies, as ordered: the connection is cut with no answer.
pub(super) async fn handle(
    engine: Arc<Engine>,
    line: Line,
    request: hyper::Request<Incoming>,
) -> Result<Response<Body>, Died> {
    let (parts, body) = request.into_parts();
    let answer = match (&parts.method, parts.uri.path()) {
        (&Method::GET, path) => get(&engine, path).await,
        (&Method::POST, "/v1/chat/completions") => {
            return infer(&engine, line, Endpoint::Chat, parts, body).await;
        }
        (&Method::POST, "/v1/completions") => {
            return infer(&engine, line, Endpoint::Completions, parts, body).await;
        }
        (&Method::POST, "/v1/embeddings") => return embed(&engine, line, parts, body).await,
        (&Method::POST, path) => post(&engine, path, body).await,
        _ => not_allowed(),
    };
    Ok(finished(answer))
}

fn finished(answer: Answer) -> Response<Body> {
    let mut response = answer.unwrap_or_else(|error| json(error.status(), error.body()));
    let headers = response.headers_mut();
    headers.insert(DEMO, HeaderValue::from_static("1"));
    headers.insert(header::SERVER, HeaderValue::from_static("dunlin-demo"));
    response
}

fn whole(status: StatusCode, kind: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Some(bytes.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    whole(status, "application/json", bytes)
}

fn ok(value: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, serde_json::to_vec(value).unwrap_or_default()))
}

fn not_found() -> Answer {
    Ok(json(StatusCode::NOT_FOUND, "{\"detail\":\"Not Found\"}"))
}

fn not_allowed() -> Answer {
    Ok(json(StatusCode::METHOD_NOT_ALLOWED, "{\"detail\":\"Method Not Allowed\"}"))
}

async fn get(engine: &Engine, path: &str) -> Answer {
    match path {
        "/health" | "/ping" => {
            let well = !engine.switch.get().unhealthy;
            let mut response = Response::new(Body::Whole(None));
            *response.status_mut() = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            Ok(response)
        }
        "/version" => ok(&serde_json::json!({
            "version": concat!(env!("CARGO_PKG_VERSION"), "-demo"), "slots": engine.config.slots,
        })),
        "/load" => ok(&serde_json::json!({ "server_load": engine.metrics.running.load(Relaxed) })),
        "/v1/models" => Ok(json(StatusCode::OK, engine.models.list(since_1970().as_secs()))),
        "/metrics" => metrics(engine).await,
        "/demo/faults" => ok(&engine.switch.get()),
        "/demo/last" if engine.config.record => ok(&*engine.last.lock().unwrap_or_else(PoisonError::into_inner)),
        "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings" | "/tokenize" | "/detokenize" => not_allowed(),
        _ => not_found(),
    }
}

async fn metrics(engine: &Engine) -> Answer {
    let faults = engine.switch.get();
    if faults.metrics_delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(faults.metrics_delay_ms)).await;
    }
    if faults.no_metrics {
        return not_found();
    }
    let text = engine.metrics.render(&engine.config, engine.models.first(), since_1970().as_secs());
    Ok(whole(StatusCode::OK, "text/plain; version=1.0.0; charset=utf-8", text))
}

async fn post(engine: &Engine, path: &str, body: Incoming) -> Answer {
    if !matches!(
        path,
        "/tokenize" | "/detokenize" | "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" | "/demo/faults"
    ) {
        return not_found();
    }
    let bytes = read(body).await?;
    match path {
        "/tokenize" => ok(&tokens::tokenize(&engine.models, engine.config.context, &bytes)?),
        "/detokenize" => ok(&tokens::detokenize(&engine.models, &bytes)?),
        "/v1/load_lora_adapter" => {
            let adapter: Adapter = serde_json::from_slice(&bytes)?;
            Ok(whole(StatusCode::OK, "text/plain; charset=utf-8", engine.models.load(adapter)?))
        }
        "/v1/unload_lora_adapter" => {
            let name: AdapterName = serde_json::from_slice(&bytes)?;
            Ok(whole(StatusCode::OK, "text/plain; charset=utf-8", engine.models.unload(&name.lora_name)?))
        }
        _ => {
            let faults: Faults = serde_json::from_slice(&bytes)?;
            faults.check(engine.config.may_exit)?;
            engine.switch.set(faults);
            ok(&engine.switch.get())
        }
    }
}

#[derive(serde::Deserialize)]
struct AdapterName {
    lora_name: String,
}

async fn read(body: Incoming) -> Result<Bytes, Error> {
    let collected = Limited::new(body, BODY_BYTES).collect().await.map_err(|error| {
        let too_large = error.is::<LengthLimitError>();
        if too_large { Error::TooLarge { limit: BODY_BYTES } } else { Error::EmptyBody }
    })?;
    let bytes = collected.to_bytes();
    if bytes.is_empty() { Err(Error::EmptyBody) } else { Ok(bytes) }
}

/// Reads an inference request, unless a fault strikes it first.
async fn receive(engine: &Engine, parts: &Parts, body: Incoming) -> Result<(Bytes, Option<Strike>), Error> {
    let json = |kind: &HeaderValue| kind.to_str().is_ok_and(|kind| kind.starts_with("application/json"));
    if !parts.headers.get(header::CONTENT_TYPE).is_some_and(json) {
        return Err(Error::ContentType);
    }
    let bytes = read(body).await?;
    if engine.config.record {
        engine.record(parts, &bytes);
    }
    match engine.switch.strike() {
        Some(Strike::Status(status)) => Err(Error::Ordered(status)),
        Some(Strike::HangBeforeHeaders) => std::future::pending().await,
        strike => Ok((bytes, strike)),
    }
}

async fn infer(
    engine: &Engine,
    line: Line,
    endpoint: Endpoint,
    parts: Parts,
    body: Incoming,
) -> Result<Response<Body>, Died> {
    let (bytes, strike) = match receive(engine, &parts, body).await {
        Ok(received) => received,
        Err(error) => return Ok(finished(Err(error))),
    };
    let begun = begin(engine, endpoint, &bytes);
    drop(bytes);
    let (job, waiting) = match begun {
        Ok(begun) => begun,
        Err(error) => return Ok(finished(Err(error))),
    };
    let prefix = if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" };
    let id = engine.id(prefix, &parts.headers);
    let created = since_1970().as_secs();
    let speed = engine.config.speed;
    if job.stream {
        let events = Events::new(&job, &id, created);
        let stream = Stream::new(&job, waiting, events, strike, speed, line);
        let mut response = Response::new(Body::Stream(Box::new(stream)));
        let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return Ok(finished(Ok(response)));
    }
    match body::whole(&job, waiting, &id, created, strike, speed).await {
        Ok(bytes) => Ok(finished(Ok(json(StatusCode::OK, bytes)))),
        Err(death) => {
            let _ = line.die(death);
            Err(Died)
        }
    }
}

fn begin(
    engine: &Engine,
    endpoint: Endpoint,
    bytes: &[u8],
) -> Result<(super::request::Job, super::scheduler::Waiting), Error> {
    let mut request: Request = serde_json::from_slice(bytes)?;
    let resolved = engine.models.resolve(request.model.take())?;
    let mut job = request.check(endpoint, resolved, engine.config.context)?;
    let need = Need {
        prompt_tokens: job.prompt_tokens,
        prompt: std::mem::take(&mut job.prompt),
        adapter: job.adapter.clone(),
    };
    let waiting = engine.scheduler.queue(need)?;
    Ok((job, waiting))
}

async fn embed(engine: &Engine, line: Line, parts: Parts, body: Incoming) -> Result<Response<Body>, Died> {
    let (bytes, strike) = match receive(engine, &parts, body).await {
        Ok(received) => received,
        Err(error) => return Ok(finished(Err(error))),
    };
    if let Some(Strike::Die { death, .. }) = strike {
        let _ = line.die(death);
        return Err(Died);
    }
    let size = engine.config.embedding_size;
    let answer = embeddings::answer(&engine.models, &engine.scheduler, engine.config.speed, size, &bytes).await;
    Ok(finished(answer.map(|bytes| json(StatusCode::OK, bytes))))
}

//! The admin API: what `dunlin keys`, `tenants`, `prices` and `usage` do, over HTTP on a listener of its own, for keys of
//! its own. No page of a browser is meant to use it, so that it allows none.

mod places;

use crate::{
    audit::Actor,
    auth,
    auth::failures::Failures,
    control::{self, Rooms},
    keys::Keys,
};
use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use dunlin_node::clock;
use dunlin_protocol::key::KeyKind;
use http::{StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use places::Places;
use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// Clients at the same time; when there are more, the one goes that has asked nothing for longest.
const CLIENTS: usize = 64;
/// Largest body of a request.
const BODY: usize = 256 << 10;
/// Longest that a client may take for a request's head, and the whole of a request here.
const HEAD: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// After an accept that failed.
const AGAIN: Duration = Duration::from_millis(50);
/// Under which all paths stand.
pub(crate) const PREFIX: &str = "/admin/v1";
/// The document that describes them.
pub(crate) const OPENAPI: &str = include_str!("admin/openapi.json");

/// The admin API, listening already.
pub(crate) struct Admin {
    listener: TcpListener,
    router: Router,
}

/// Who may come in.
#[derive(Clone)]
struct Gate {
    keys: Keys,
    failures: Arc<Mutex<Failures>>,
}

impl Admin {
    pub(crate) fn new(listener: TcpListener, rooms: Rooms) -> Self {
        let gate = Gate { keys: rooms.keeper.keys().clone(), failures: Arc::default() };
        let guarded = control::keys_routes(rooms).layer(middleware::from_fn(move |request: Request, next: Next| {
            let gate = gate.clone();
            async move { gate.let_in(request, next).await }
        }));
        let described = || async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) };
        let router = Router::new()
            .nest(PREFIX, guarded)
            .route(&format!("{PREFIX}/openapi.json"), get(described))
            .fallback(|| async { refusal(StatusCode::NOT_FOUND, &format!("unknown path; see {PREFIX}/openapi.json")) })
            .layer(middleware::map_response(shaped))
            .layer(DefaultBodyLimit::max(BODY));
        Self { listener, router }
    }

    /// Answers until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let places = Arc::new(Mutex::new(Places::new(CLIENTS)));
        let clients = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a client of the admin API could not be accepted");
                    time::sleep(AGAIN).await;
                    continue;
                }
            };
            let end = CancellationToken::new();
            // Closed at once when everybody is being answered.
            let Some((number, ended)) = table(&places).come(end.clone(), Instant::now()) else { continue };
            if let Some(ended) = ended {
                ended.cancel();
            }
            let router = self.router.clone().layer(axum::Extension(address.ip()));
            let client = Client { router, places: places.clone(), number };
            let stop = shutdown.clone();
            clients.spawn(async move {
                tokio::select! {
                    () = end.cancelled() => tracing::debug!("an idle client of the admin API made room for another"),
                    () = client.serve(stream, &stop) => {}
                }
            });
        }
        clients.close();
        let _ = time::timeout(HEAD, clients.wait()).await;
    }
}

/// One connection. Its place is free again when it is dropped.
struct Client {
    router: Router,
    places: Arc<Mutex<Places<CancellationToken>>>,
    number: u64,
}

impl Client {
    async fn serve(&self, stream: TcpStream, stop: &CancellationToken) {
        let mut connection = std::pin::pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .serve_connection(TokioIo::new(stream), service_fn(|request| self.answer(request)))
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection of the admin API ended");
        }
    }

    async fn answer(&self, request: http::Request<Incoming>) -> Result<Response, Infallible> {
        table(&self.places).asks(self.number);
        let answer = self.router.clone().oneshot(request.map(Body::new)).await;
        table(&self.places).answered(self.number, Instant::now());
        answer
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        table(&self.places).gone(self.number);
    }
}

fn table<E>(places: &Mutex<Places<E>>) -> MutexGuard<'_, Places<E>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    async fn let_in(&self, mut request: Request<Body>, next: Next) -> Response {
        // Pages of browsers say where they come from.
        if request.headers().contains_key(header::ORIGIN) {
            return refusal(StatusCode::FORBIDDEN, "the admin API takes no requests of web pages");
        }
        let key = auth::key(request.headers());
        let admitted = key.map(|key| self.keys.admit(key, KeyKind::Admin, clock::unix_s()));
        match admitted {
            Some(Ok(grant)) => {
                request.extensions_mut().insert(Actor::Key(grant.key.id.as_str().into()));
                time::timeout(ANSWER, next.run(request))
                    .await
                    .unwrap_or_else(|_| refusal(StatusCode::SERVICE_UNAVAILABLE, "it took too long"))
            }
            _ => self.refuse(request.extensions().get::<IpAddr>().copied()),
        }
    }

    fn refuse(&self, address: Option<IpAddr>) -> Response {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = address.and_then(|address| failures.failed(address, Instant::now())) {
            let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, "too many requests with wrong keys");
            let seconds = header::HeaderValue::from(wait.as_secs() + 1);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
            return response;
        }
        let told = "send a key of the admin API as `Authorization: Bearer admin-dunlin-...`; `dunlin keys create --admin` makes \
                    one";
        let mut response = refusal(StatusCode::UNAUTHORIZED, told);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        response
    }
}

/// The library's own refusals, of a body that is no JSON or a wrong method, in the shape of all others.
async fn shaped(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    if !(status.is_client_error() || status.is_server_error()) || kind == Some(b"application/json") {
        return response;
    }
    let (head, body) = response.into_parts();
    let said = axum::body::to_bytes(body, BODY).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let message = if said.is_empty() { status.canonical_reason().unwrap_or("refused") } else { said.as_ref() };
    let mut response = refusal(status, message);
    if let Some(allow) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allow.clone());
    }
    response
}

fn refusal(status: StatusCode, message: &str) -> Response {
    (status, axum::Json(serde_json::json!({"error": {"message": message}}))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every path and method that is answered is described, and no other.
    #[test]
    fn the_description_is_that_of_the_routes() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().filter(|name| *name != "parameters") {
                described.push(format!("{} {path}", method.to_uppercase()));
            }
        }
        described.sort();
        let mut real: Vec<String> =
            control::ROUTES.iter().map(|(method, path)| format!("{method} {PREFIX}{path}")).collect();
        real.push(format!("GET {PREFIX}/openapi.json"));
        real.sort();
        assert_eq!(described, real);
    }

    /// Whatever is referred to is there.
    #[test]
    fn the_description_is_whole() {
        fn check(value: &serde_json::Value, document: &serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(|reference| reference.as_str()) {
                        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
                    }
                    fields.values().for_each(|value| check(value, document));
                }
                serde_json::Value::Array(all) => all.iter().for_each(|value| check(value, document)),
                _ => {}
            }
        }
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        check(&document, &document);
    }
}

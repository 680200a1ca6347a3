//! Pages for machines over HTTP: one request a connection, few connections, little time.

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Requests at once; more wait to be accepted.
const CONNECTIONS: usize = 16;
/// A whole request, from the connection to the last byte.
const DEADLINE: Duration = Duration::from_secs(10);
/// After an accept that failed because the process has no file left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What is answered to `GET` of the only path.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// Answers `GET path` with a page of its time, and nothing else, until dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    path: &'static str,
    page: impl Fn() -> Answer + Send + Sync + 'static,
) {
    let page = Arc::new(page);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut guests = JoinSet::new();
    loop {
        while guests.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = Arc::clone(&page);
                guests.spawn(async move {
                    // Who is too slow is cut off, and asks again.
                    let _ = timeout(DEADLINE, connection(stream, path, &*page)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(path, %error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, path: &str, page: &(impl Fn() -> Answer + Sync)) {
    let answer = |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(&request, path, page)) };
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(error) = connection.await {
        tracing::debug!(path, %error, "a connection broke off");
    }
}

fn answer(request: &Request<Incoming>, path: &str, page: impl Fn() -> Answer) -> Response<Full<bytes::Bytes>> {
    let Answer { status, kind, text } = if (request.method(), request.uri().path()) == (&http::Method::GET, path) {
        page()
    } else {
        let text = format!("GET {path} is all there is here\n");
        Answer { status: StatusCode::NOT_FOUND, kind: "text/plain", text }
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

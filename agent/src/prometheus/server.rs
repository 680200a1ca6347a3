//! The page over HTTP: one request a connection, few connections, little time.

use super::Page;
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

/// Scrapes at once; more wait to be accepted.
const CONNECTIONS: usize = 16;
/// A whole scrape, from the connection to the last byte.
const DEADLINE: Duration = Duration::from_secs(10);
/// After an accept that failed because the process has no file left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves the page until dropped.
pub(crate) async fn serve(listener: TcpListener, page: Page) {
    let page = Arc::new(page);
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut scrapes = JoinSet::new();
    loop {
        while scrapes.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = Arc::clone(&page);
                scrapes.spawn(async move {
                    // A scraper that is too slow is cut off, and asks again.
                    let _ = timeout(DEADLINE, scrape(stream, &page)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a scrape could not be accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn scrape(stream: TcpStream, page: &Page) {
    let answer = |request: Request<Incoming>| async move { Ok::<_, Infallible>(answer(&request, page)) };
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "scrape broke off");
    }
}

fn answer(request: &Request<Incoming>, page: &Page) -> Response<Full<bytes::Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&http::Method::GET, "/metrics") => {
            (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", page.text())
        }
        _ => (StatusCode::NOT_FOUND, "text/plain", "GET /metrics is all there is here\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

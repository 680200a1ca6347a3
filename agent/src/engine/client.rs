//! HTTP/1.1 towards engines: pooled connections, a deadline and a size limit on everything that the agent asks itself.

use super::EngineUrl;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        self,
        connect::{HttpConnector, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use std::time::Duration;

/// Unused connections close before the engine closes them: uvicorn and llama.cpp do so after 5 s.
const IDLE: Duration = Duration::from_secs(4);
/// An engine is near; a connection that takes longer will not come.
const CONNECT: Duration = Duration::from_secs(3);
/// Connections kept for reuse with one engine: as many as one hop has streams.
const IDLE_CONNECTIONS: usize = 1024;
/// Longest head of an engine's answer that is read at all, bytes (hyper itself would take over 400 KB). Also the most
/// that is read or written at once, which is held for every answer that nobody reads.
const HEAD_BYTES: usize = 64 * 1024;
/// Most headers in one answer; also hyper's default.
const HEADERS: usize = 100;
/// Bytes that the kernel may hold of what an engine sent. Left to itself it takes up to 6 MB for each answer that nobody
/// reads; a quarter of one is enough for an engine on the same network.
const RECEIVE: usize = 256 << 10;

/// Whether the engine closes the connection behind this answer though it says that it keeps it: `llama-server` (b10068)
/// does so after each stream. The next request on that connection would be lost if it came before the end was seen.
fn closes_afterwards(headers: &HeaderMap) -> bool {
    let starts_with =
        |name, start: &str| headers.get(name).is_some_and(|value| value.as_bytes().starts_with(start.as_bytes()));
    starts_with(header::SERVER, "llama.cpp") && starts_with(header::CONTENT_TYPE, "text/event-stream")
}

/// Why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there, or the connection could not be made: the engine has seen nothing.
    #[error("cannot connect to the engine: {}", cause(.0))]
    Connect(#[source] legacy::Error),
    /// The connection broke, or what came is not HTTP.
    #[error("lost the engine: {}", cause(.0))]
    Lost(#[source] legacy::Error),
    /// The answer's body broke off.
    #[error("the engine's answer broke off: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    #[error("no answer from the engine within {} ms", .0.as_millis())]
    Deadline(Duration),
    /// The answer is longer than it may be.
    #[error("the engine's answer has over {0} bytes")]
    TooLarge(usize),
    /// Not a path.
    #[error("cannot ask the engine: {0}")]
    Request(#[from] http::Error),
}

impl Error {
    /// Whether the engine cannot have seen anything of the request.
    #[must_use]
    pub fn unsent(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Request(_))
    }
}

/// What is at the bottom of it. Those above say only that a client failed.
fn cause(error: &legacy::Error) -> &dyn std::error::Error {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

impl From<legacy::Error> for Error {
    fn from(error: legacy::Error) -> Self {
        if error.is_connect() { Self::Connect(error) } else { Self::Lost(error) }
    }
}

/// An answer with the first piece of its body, which is not empty; `None` when the body is.
pub type Begun = (Response<Incoming>, Option<Bytes>);

/// An answer read whole.
#[derive(Debug)]
pub struct Answer {
    /// Status of the answer.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// A pooled client, shared by all engines of an agent: connections are pooled for each engine, so that one that hangs
/// holds up no other. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    inner: legacy::Client<HttpConnector, axum::body::Body>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// A client with an empty pool.
    #[must_use]
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_recv_buffer_size(Some(RECEIVE));
        let inner = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http1_max_buf_size(HEAD_BYTES)
            .http1_max_headers(HEADERS)
            .build(connector);
        Self { inner }
    }

    /// Sends `request`; ends when the answer's headers are there. The body streams. Dropping the future or the body
    /// closes the connection, by which an engine sees that nobody waits any more.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Lost`].
    pub async fn send(&self, mut request: Request<axum::body::Body>) -> Result<Response<Incoming>, Error> {
        let used = capture_connection(&mut request);
        let answer = self.inner.request(request).await?;
        if closes_afterwards(answer.headers())
            && let Some(connection) = used.connection_metadata().as_ref()
        {
            connection.poison();
        }
        Ok(answer)
    }

    /// Sends `request`; ends when the first piece of the answer's body is there too. A head alone says little: web
    /// frameworks send it before an engine has begun.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Lost`], [`Error::Body`].
    pub async fn begin(&self, request: Request<axum::body::Body>) -> Result<Begun, Error> {
        let mut answer = self.send(request).await?;
        while let Some(frame) = answer.body_mut().frame().await {
            let piece = frame.map_err(|error| Error::Body(error.into()))?.into_data();
            // Nobody reads an engine's trailers.
            if let Some(piece) = piece.ok().filter(|piece| !piece.is_empty()) {
                return Ok((answer, Some(piece)));
            }
        }
        Ok((answer, None))
    }

    /// `GET path`, read whole: at most `limit` bytes within `deadline`.
    ///
    /// # Errors
    /// Any [`Error`]. A status is not an error.
    pub async fn get(&self, engine: &EngineUrl, path: &str, deadline: Duration, limit: usize) -> Result<Answer, Error> {
        let request = Request::builder().method(Method::GET).uri(engine.join(path)?).body(axum::body::Body::empty())?;
        self.whole(request, deadline, limit).await
    }

    /// `POST path` with a JSON body, read whole like [`Client::get`].
    ///
    /// # Errors
    /// Any [`Error`]. A status is not an error.
    pub async fn post_json(
        &self,
        engine: &EngineUrl,
        path: &str,
        body: &serde_json::Value,
        deadline: Duration,
        limit: usize,
    ) -> Result<Answer, Error> {
        self.post(engine, path, "application/json", body.to_string(), deadline, limit).await
    }

    /// `POST path` with a body of the content type `kind`, read whole like [`Client::get`].
    ///
    /// # Errors
    /// Any [`Error`]. A status is not an error.
    pub async fn post(
        &self,
        engine: &EngineUrl,
        path: &str,
        kind: &str,
        body: impl Into<axum::body::Body>,
        deadline: Duration,
        limit: usize,
    ) -> Result<Answer, Error> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(engine.join(path)?)
            .header(header::CONTENT_TYPE, kind)
            .body(body.into())?;
        self.whole(request, deadline, limit).await
    }

    async fn whole(
        &self,
        request: Request<axum::body::Body>,
        deadline: Duration,
        limit: usize,
    ) -> Result<Answer, Error> {
        let exchange = async {
            let (head, body) = self.send(request).await?.into_parts();
            let body = Limited::new(body, limit).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() { Error::TooLarge(limit) } else { Error::Body(error) }
            })?;
            Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(Error::Deadline(deadline)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Answers the first request of each connection as `server` and closes at the second.
    async fn serve(server: &'static str) -> EngineUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    assert!(stream.read(&mut request).await.unwrap() > 0);
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nServer: {server}\r\n\
                         Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n: a\n\n\r\n0\r\n\r\n"
                    );
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    let _ = stream.read(&mut request).await;
                });
            }
        });
        EngineUrl::loopback(port).unwrap()
    }

    #[tokio::test]
    async fn a_connection_that_llama_cpp_will_close_is_not_used_again() {
        let ask_twice = async |server| {
            let (client, engine) = (Client::new(), serve(server).await);
            let ask = || client.get(&engine, "/", Duration::from_secs(2), 1024);
            (ask().await.is_ok(), ask().await.is_ok())
        };
        assert_eq!(ask_twice("llama.cpp").await, (true, true));
        // Others keep what they say that they keep: the stand-in's trick shows that the connection is used again.
        assert_eq!(ask_twice("another").await, (true, false));
    }
}

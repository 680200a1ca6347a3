//! The command line's side.

use super::SOCKET;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::UnixStream, task::JoinSet};

/// Largest JSON answer.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Longest wait for the head of an answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why the node did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No node runs with this state directory.
    #[error("no dunlin is running with the state directory {}; start one with `dunlin up`", .0.display())]
    NotRunning(PathBuf),
    /// The socket may not be opened, or failed.
    #[error(
        "the node can't be asked at {}: {cause}; be the user that runs it, or name its directory with --home DIR (DUNLIN_HOME)",
        path.display()
    )]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The connection broke.
    #[error("the node hung up: {0}")]
    Http(#[from] hyper::Error),
    /// The answer is too large, or broke off.
    #[error("the node's answer broke off or is too large: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    #[error("the node does not answer")]
    Timeout,
    /// The node refused.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// What the node said.
        message: String,
    },
    /// Not the JSON that was expected: another version answers.
    #[error("the node's answer is not understood ({0}); is it another version of dunlin?")]
    Json(#[from] serde_json::Error),
    /// The request could not be made.
    #[error("request: {0}")]
    Request(#[from] http::Error),
}

/// A connection to the node of a state directory. One request at a time.
pub struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Ends with the client.
    _connection: JoinSet<()>,
}

impl Client {
    /// Connects to the node that runs with the state directory `home`.
    ///
    /// # Errors
    /// [`Error::NotRunning`], or the socket may not be opened.
    pub async fn connect(home: &Path) -> Result<Self, Error> {
        let path = home.join(SOCKET);
        let stream = UnixStream::connect(&path).await.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning(home.to_owned()),
            _ => Error::Io { path, cause },
        })?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "control connection");
            }
        });
        Ok(Self { sender, _connection: tasks })
    }

    /// `GET path`, JSON back.
    ///
    /// # Errors
    /// The node hung up, refused, or answered something else.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Error> {
        self.json(Method::GET, path, Bytes::new()).await
    }

    /// `POST path` with a JSON body, JSON back.
    ///
    /// # Errors
    /// The node hung up, refused, or answered something else.
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, Error> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        self.json(Method::POST, path, body).await
    }

    /// Any method with a JSON body, JSON back.
    ///
    /// # Errors
    /// The node hung up, refused, or answered something else.
    pub async fn send<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = Bytes::from(serde_json::to_vec(body)?);
        self.json(method, path, body).await
    }

    /// `DELETE path`, JSON back.
    ///
    /// # Errors
    /// The node hung up, refused, or answered something else.
    pub async fn delete<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Error> {
        self.json(Method::DELETE, path, Bytes::new()).await
    }

    /// Any request; the answer's body as it streams in. Errors of the node are [`Error::Refused`].
    ///
    /// # Errors
    /// The node hung up or refused.
    pub async fn stream(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
        let mut request = Request::builder().method(method).uri(path).header(http::header::HOST, "dunlin");
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body))?;
        let exchange = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let response = tokio::time::timeout(DEADLINE, exchange).await.map_err(|_| Error::Timeout)??;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = whole(response).await?;
        Err(Error::Refused { status, message: message(status, &body) })
    }

    async fn json<T: DeserializeOwned>(&mut self, method: Method, path: &str, body: Bytes) -> Result<T, Error> {
        let response = self.stream(method, path, body).await?;
        Ok(serde_json::from_slice(&whole(response).await?)?)
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes, Error> {
    Ok(Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(Error::Body)?.to_bytes())
}

fn message(status: StatusCode, body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let told = json.as_ref().and_then(|json| json.pointer("/error/message")?.as_str());
    let text = String::from_utf8_lossy(body);
    match told {
        Some(message) => message.to_owned(),
        None if text.trim().is_empty() => format!("the node answered {status}"),
        None => text.trim().to_owned(),
    }
}

//! The command line's HTTP client: one request on one connection, to an endpoint over TCP or to this machine's node
//! over its control socket.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, StatusCode, Uri, body::Incoming, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use std::{path::PathBuf, time::Duration};
use tokio::net::{TcpStream, UnixStream};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest body that is read whole.
const BODY_BYTES: usize = 16 << 20;

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The node of this machine, which asks for no key: the socket's mode is the guard.
    Socket(PathBuf),
    /// An endpoint, and the key that it asks for.
    Endpoint {
        /// `http://host:port[/prefix]`
        url: Uri,
        /// Sent as a bearer token.
        key: Option<String>,
    },
}

impl Target {
    /// Checks the URL of an endpoint; a path of `/v1` at its end is taken off, as SDKs want it there and we don't.
    pub(crate) fn endpoint(url: &str, key: Option<String>) -> Result<Self> {
        let text = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let text = text.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let uri: Uri = text.parse().with_context(|| format!("{url:?} is not a URL"))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            bail!("{url:?}: only http://HOST:PORT is spoken here");
        }
        Ok(Self::Endpoint { url: uri, key })
    }

    /// Sends a request and gives the answer with its body still to come.
    pub(crate) async fn send(&self, method: hyper::Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let request = Request::builder().method(method).header(header::CONTENT_TYPE, "application/json");
        match self {
            Self::Socket(path_of_socket) => {
                let stream = UnixStream::connect(path_of_socket).await?;
                let request = request.uri(path).header(header::HOST, "dunlin").body(Full::new(body))?;
                exchange(TokioIo::new(stream), request).await
            }
            Self::Endpoint { url, key } => {
                let host = url.host().unwrap_or_default();
                let port = url.port_u16().unwrap_or(80);
                let connecting = TcpStream::connect((host.trim_matches(['[', ']']), port));
                let stream = tokio::time::timeout(CONNECT, connecting)
                    .await
                    .with_context(|| format!("{host}:{port} did not answer within {} s", CONNECT.as_secs()))?
                    .with_context(|| format!("can't reach {host}:{port}"))?;
                stream.set_nodelay(true)?;
                let mut request = request.uri(format!("{}{path}", url.path().trim_end_matches('/')));
                request = request.header(header::HOST, format!("{host}:{port}"));
                if let Some(key) = key {
                    request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
                }
                exchange(TokioIo::new(stream), request.body(Full::new(body))?).await
            }
        }
    }

    /// Sends a request and reads the whole JSON answer; an error status becomes an error with the answer's own words.
    pub(crate) async fn json<T: serde::de::DeserializeOwned>(
        &self,
        method: hyper::Method,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<T> {
        let response = self.send(method, path, serde_json::to_vec(body)?.into()).await?;
        let status = response.status();
        let body = whole(response.into_body()).await?;
        if !status.is_success() {
            bail!(message(status, &body));
        }
        serde_json::from_slice(&body).with_context(|| format!("unexpected answer to {path}"))
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(stream).await?;
    // Ends by itself when the response's body has been read or dropped.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender.send_request(request).await?)
}

/// Reads a body of bounded size.
pub(crate) async fn whole(body: Incoming) -> Result<Bytes> {
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => bail!("could not read the answer: {error}"),
    }
}

/// The words of an OpenAI-shaped error, or the start of whatever came instead.
pub(crate) fn message(status: StatusCode, body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = parsed.as_ref().and_then(|v| {
        let error = v.get("error").unwrap_or(v);
        error.get("message").unwrap_or(error).as_str().map(str::to_owned)
    });
    let said = said.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned());
    if said.is_empty() { format!("status {status}") } else { format!("{said} ({})", status.as_u16()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked() {
        for good in ["127.0.0.1:8480", "http://x:1/v1", "http://[::1]:8480/", "http://host/prefix"] {
            assert!(Target::endpoint(good, None).is_ok(), "{good}");
        }
        for bad in ["https://x", "ftp://x", "http://", "", "http://a b"] {
            assert!(Target::endpoint(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_are_quoted_in_their_own_words() {
        let body = br#"{"error":{"message":"no such model","type":"x"}}"#;
        assert_eq!(message(StatusCode::NOT_FOUND, body), "no such model (404)");
        assert_eq!(message(StatusCode::BAD_GATEWAY, b"<html>"), "<html> (502)");
        assert_eq!(message(StatusCode::BAD_GATEWAY, b""), "status 502 Bad Gateway");
    }
}

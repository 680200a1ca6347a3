//! A plain HTTP client of the endpoint.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::Value;
use std::{net::SocketAddr, time::Duration};

pub(crate) const CHAT: &str = "/v1/chat/completions";

#[derive(Clone)]
pub(crate) struct Client {
    inner: legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>,
    endpoint: SocketAddr,
    key: Option<String>,
}

/// An answer read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The body broke off.
    pub(crate) broken: bool,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// `error.code`.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("no error code: {:?}", self.body)).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", self.headers)).to_str().unwrap()
    }
}

impl Client {
    pub(crate) fn new(endpoint: SocketAddr, key: Option<&str>) -> Self {
        let inner = legacy::Client::builder(TokioExecutor::new()).build_http();
        Self { inner, endpoint, key: key.map(str::to_owned) }
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.endpoint))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.body(Full::new(body.into())).unwrap()
    }

    /// Sends and returns at the answer's head.
    pub(crate) async fn begin(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        tokio::time::timeout(Duration::from_secs(20), self.inner.request(request)).await.expect("no answer").unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        read(self.begin(request).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, "")).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(self.request(Method::POST, path, body)).await
    }

    /// A chat of one answer in one piece.
    pub(crate) async fn chat(&self, model: &str) -> Answer {
        self.post(CHAT, format!(r#"{{"model":"{model}","messages":[]}}"#)).await
    }

    /// A chat whose answer streams, read to its end.
    pub(crate) async fn stream(&self, model: &str) -> Answer {
        self.post(CHAT, format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#)).await
    }

    /// A chat whose answer streams, at its head.
    pub(crate) async fn begin_stream(&self, model: &str) -> Response<Incoming> {
        let body = format!(r#"{{"model":"{model}","messages":[],"stream":true}}"#);
        self.begin(self.request(Method::POST, CHAT, body)).await
    }
}

pub(crate) async fn read(response: Response<Incoming>) -> Answer {
    let (parts, mut incoming) = response.into_parts();
    let (mut body, mut broken) = (Vec::new(), false);
    let reading = async {
        while let Some(frame) = incoming.frame().await {
            match frame {
                Ok(frame) => body.extend_from_slice(frame.data_ref().map_or(&[], |piece| piece)),
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the answer never ended");
    Answer { status: parts.status, headers: parts.headers, body: body.into(), broken }
}

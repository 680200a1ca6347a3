//! The engine's part, played: answers on the agent's routes as the test says, and remembers what it was asked.

use crate::mesh;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use dunlin_node::Handle;
use dunlin_protocol::hop::{FAULT, Fault, LOAD, RETRY_SAFE};
use futures::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Decides by what is asked, and by how many were asked before.
pub(crate) type Decide = dyn Fn(&Asked, usize) -> Play + Send + Sync;

/// How requests are answered.
#[derive(Clone)]
pub(crate) enum Play {
    /// Status, content type, body.
    Say(StatusCode, &'static str, Bytes),
    /// Events, one each so often; `true`: the end is clean, else the stream breaks.
    Stream(Vec<&'static str>, Duration, bool),
    /// Events, one after the other, with a pause before the one of this number; the end is clean.
    Pause(Vec<&'static str>, usize, Duration),
    /// The beginning of a JSON answer, and then a broken stream.
    Half(&'static str),
    /// The head at once, and then nothing.
    HeadOnly,
    /// Nothing at all.
    Hang,
    /// The agent's own refusal, of which the engine has seen nothing.
    Refuse(Fault),
    /// The agent's own refusal, with its status and whether another may be asked.
    RefuseAs(Fault, StatusCode, &'static str),
    /// The same with this length, bytes, in its head.
    Short(&'static str, usize),
    /// Answers after a while.
    Slow(Duration),
    /// As this decides.
    By(Arc<Decide>),
}

pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

struct Inner {
    play: Mutex<Play>,
    slots: usize,
    asked: Mutex<Vec<Asked>>,
    now: AtomicUsize,
    most: AtomicUsize,
    handle: OnceLock<Handle>,
}

#[derive(Clone)]
pub(crate) struct Engine(Arc<Inner>);

/// Counts a request while it is answered, however that ends.
struct InFlight(Arc<Inner>);
impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Engine {
    /// Refuses, as an agent does, what is more than `slots` at once.
    pub(crate) fn with_slots(slots: usize, play: Play) -> Self {
        Self(Arc::new(Inner {
            play: Mutex::new(play),
            slots,
            asked: Mutex::default(),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            handle: OnceLock::new(),
        }))
    }

    pub(crate) fn new(play: Play) -> Self {
        Self::with_slots(usize::MAX, play)
    }

    /// Says `text` as JSON.
    pub(crate) fn saying(text: &'static str) -> Self {
        Self::new(Play::Say(StatusCode::OK, "application/json", Bytes::from_static(text.as_bytes())))
    }

    pub(crate) fn play(&self, play: Play) {
        *self.0.play.lock().unwrap() = play;
    }

    pub(crate) fn asked(&self) -> usize {
        self.0.asked.lock().unwrap().len()
    }

    pub(crate) fn last<T>(&self, look: impl FnOnce(&Asked) -> T) -> T {
        look(self.0.asked.lock().unwrap().last().expect("never asked"))
    }

    /// Requests being answered.
    pub(crate) fn now(&self) -> usize {
        self.0.now.load(Ordering::SeqCst)
    }

    /// Most at once so far.
    pub(crate) fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    pub(crate) fn belongs_to(&self, handle: &Handle) {
        let _ = self.0.handle.set(handle.clone());
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().fallback(answer).layer(axum::extract::DefaultBodyLimit::disable()).with_state(self.0.clone())
    }
}

async fn answer(State(engine): State<Arc<Inner>>, request: Request) -> Response {
    let now = engine.now.fetch_add(1, Ordering::SeqCst) + 1;
    let in_flight = InFlight(engine.clone());
    if now > engine.slots {
        return load(&engine, refusal(Fault::Full));
    }
    engine.most.fetch_max(now, Ordering::SeqCst);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let asked = Asked { path: parts.uri.to_string(), headers: parts.headers, body };
    let mut play = engine.play.lock().unwrap().clone();
    let before = engine.asked.lock().unwrap().len();
    if let Play::By(by) = play {
        play = by(&asked, before);
    }
    engine.asked.lock().unwrap().push(asked);
    let response = match play {
        Play::Say(status, kind, body) => said(status, kind, Body::from(body)),
        Play::Refuse(fault) => refusal(fault),
        Play::RefuseAs(fault, status, retry_safe) => {
            let mut refused = refusal(fault);
            *refused.status_mut() = status;
            refused.headers_mut().insert(RETRY_SAFE, http::HeaderValue::from_static(retry_safe));
            refused
        }
        Play::Hang => std::future::pending().await,
        // What it decides is no decision.
        Play::By(_) => unreachable!(),
        Play::Half(text) => half(text),
        Play::Short(text, length) => {
            let mut response = half(text);
            response.headers_mut().insert("content-length", length.into());
            response
        }
        Play::HeadOnly => events(stream::pending().boxed(), in_flight),
        Play::Slow(time) => {
            tokio::time::sleep(time).await;
            said(StatusCode::OK, "application/json", Body::from("{\"slow\":true}"))
        }
        Play::Pause(pieces, at, pause) => {
            let paced = stream::iter(pieces.into_iter().enumerate()).then(move |(nth, piece)| async move {
                tokio::time::sleep(if nth == at { pause } else { Duration::from_millis(5) }).await;
                Ok(Bytes::from_static(piece.as_bytes()))
            });
            events(paced.boxed(), in_flight)
        }
        Play::Stream(pieces, gap, clean) => {
            let end = (!clean).then(|| Err(std::io::Error::other("died")));
            let pieces = pieces.into_iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).chain(end);
            let paced = stream::iter(pieces).then(move |piece| async move {
                tokio::time::sleep(gap).await;
                piece
            });
            events(paced.boxed(), in_flight)
        }
    };
    load(&engine, response)
}

fn half(text: &'static str) -> Response {
    let pieces = [Ok(Bytes::from_static(text.as_bytes())), Err(std::io::Error::other("died"))];
    let paced = stream::iter(pieces).then(|piece| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        piece
    });
    said(StatusCode::OK, "application/json", Body::from_stream(paced))
}

fn said(status: StatusCode, kind: &str, body: Body) -> Response {
    Response::builder().status(status).header("content-type", kind).header("x-engine", "yes").body(body).unwrap()
}

fn events(pieces: stream::BoxStream<'static, Result<Bytes, std::io::Error>>, in_flight: InFlight) -> Response {
    let counted = pieces.map(move |piece| {
        let _counts = &in_flight;
        piece
    });
    said(StatusCode::OK, "text/event-stream", Body::from_stream(counted))
}

fn refusal(fault: Fault) -> Response {
    Response::builder()
        .status(StatusCode::SERVICE_UNAVAILABLE)
        .header(FAULT, fault.as_str())
        .header(RETRY_SAFE, "yes")
        .body(Body::from("{}"))
        .unwrap()
}

/// The load as a real agent would say it.
fn load(engine: &Inner, mut response: Response) -> Response {
    if engine.slots == usize::MAX {
        return response;
    }
    if let Some(handle) = engine.handle.get() {
        let in_flight = engine.now.load(Ordering::SeqCst).min(engine.slots);
        let report = mesh::report(handle, engine.slots as u16, in_flight as u16);
        response.headers_mut().insert(LOAD, report.to_header().unwrap().parse().unwrap());
    }
    response
}

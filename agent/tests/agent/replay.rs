//! A server that answers what real engines answered, or what their documentation says, and changes it when told to.

use axum::{Router, body::Body, extract::State, response::Response};
use http::{Method, StatusCode, Uri};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, task::JoinHandle};

/// One answer: `curl -i` of it, or a body alone.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The path that a capture was asked at.
    pub(crate) asked: Option<String>,
}

impl Page {
    /// From `tests/data`.
    pub(crate) fn of(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let Some(captured) = text.strip_prefix("# curl ") else { return Self::body(text) };
        let (request, answer) = captured.split_once('\n').unwrap();
        let url = request.split(' ').next().unwrap().trim_start_matches("http://");
        let asked = url.find('/').map(|at| url[at..].to_owned());
        let (head, body) = answer.split_once("\r\n\r\n").or_else(|| answer.split_once("\n\n")).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let framing = ["content-length", "transfer-encoding", "connection", "keep-alive"];
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let headers = headers.filter(|(name, _)| !framing.contains(&name.as_str())).collect();
        Self { status, headers, body: body.into(), asked }
    }

    pub(crate) fn body(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, headers: Vec::new(), body: body.into(), asked: None }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::body("") }
    }
}

type Pages = Arc<Mutex<Shown>>;

#[derive(Default)]
struct Shown {
    pages: HashMap<String, Page>,
    asked: BTreeMap<String, usize>,
}

/// Ends with its connections when dropped.
pub(crate) struct Replay {
    pub(crate) port: u16,
    shown: Pages,
    task: JoinHandle<()>,
}

impl Replay {
    pub(crate) async fn start(pages: &[(&str, Page)]) -> Self {
        Self::start_at(0, pages).await
    }

    pub(crate) async fn start_at(port: u16, pages: &[(&str, Page)]) -> Self {
        let shown = Pages::default();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // The port may have been another stand-in's a moment ago.
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], port).into()).unwrap();
        let listener: TcpListener = socket.listen(64).unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shown));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let replay = Self { port, shown, task };
        pages.iter().for_each(|(path, page)| replay.show(path, page.clone()));
        replay
    }

    /// From now on.
    pub(crate) fn show(&self, path: &str, page: Page) {
        self.shown.lock().unwrap().pages.insert(path.to_owned(), page);
    }

    /// How often a path was asked for.
    pub(crate) fn asked(&self, path: &str) -> usize {
        self.shown.lock().unwrap().asked.get(path).copied().unwrap_or(0)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shown): State<Pages>, method: Method, uri: Uri) -> Response {
    let page = {
        let mut shown = shown.lock().unwrap();
        *shown.asked.entry(uri.path().to_owned()).or_default() += 1;
        shown.pages.get(uri.path()).cloned()
    };
    let missing = Page { status: 404, ..Page::body(r#"{"detail":"Not Found"}"#) };
    // A stand-in completes nothing, and says so in the way of an engine that can't.
    let page = page.unwrap_or(if method == Method::POST { Page::status(501) } else { missing });
    let mut response = Response::builder().status(StatusCode::from_u16(page.status).unwrap());
    for (name, value) in &page.headers {
        response = response.header(name, value);
    }
    response.body(Body::from(page.body)).unwrap()
}

/// A list of models as Ollama and most others give it.
pub(crate) fn models<'a>(owner: &str, names: impl IntoIterator<Item = &'a str>) -> Page {
    let entry = |name: &str| serde_json::json!({ "id": name, "object": "model", "created": 1, "owned_by": owner });
    let data: Vec<_> = names.into_iter().map(entry).collect();
    Page::body(serde_json::json!({ "object": "list", "data": data }).to_string())
}

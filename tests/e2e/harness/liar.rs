//! An engine that answers what a test says, byte for byte: a socket and a script, no HTTP library that would mend it.

use super::engine::free_address;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Longest that a connection is read in vain.
const IDLE: Duration = Duration::from_secs(60);
/// Questions that the script answers; whatever else is asked gets a proper answer.
const LIES_ON: &str = "/v1/chat/completions";
/// What a proper chat says.
pub(crate) const TRUTH: &str = "yes";

/// One step of an answer.
#[derive(Clone)]
pub(crate) enum Step {
    /// These bytes.
    Say(Vec<u8>),
    /// These again and again, as fast as they are read.
    Endless(Vec<u8>),
    /// The same with a pause before each.
    Repeat(Duration, Vec<u8>),
    /// Nothing, until the other side hangs up.
    Hang,
    /// The end of the connection.
    Close,
}

/// [`Step::Say`].
pub(crate) fn say(text: impl Into<Vec<u8>>) -> Step {
    Step::Say(text.into())
}

/// The head of an answer of this kind whose body comes in chunks.
pub(crate) fn chunked(kind: &str) -> Step {
    say(format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"))
}

/// One chunk.
pub(crate) fn chunk(text: &str) -> Step {
    say(format!("{:x}\r\n{text}\r\n", text.len()))
}

/// The end of all chunks.
pub(crate) fn end() -> Step {
    say("0\r\n\r\n")
}

/// A whole answer with a length.
pub(crate) fn whole(status: &str, kind: &str, body: &str) -> Step {
    let length = body.len();
    say(format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"))
}

/// A listener whose chats are answered by a script.
pub(crate) struct Liar {
    address: SocketAddr,
    inner: Arc<Inner>,
}

struct Inner {
    models: Vec<String>,
    script: Mutex<Option<Vec<Step>>>,
    asked: AtomicUsize,
    answering: AtomicUsize,
}

impl Liar {
    /// Serves these models, and lies about nothing yet.
    pub(crate) fn start(models: &[&str]) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).unwrap();
        let models = models.iter().map(|&model| model.to_owned()).collect();
        let (asked, answering) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let inner = Arc::new(Inner { models, script: Mutex::default(), asked, answering });
        let serving = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inner = serving.clone();
                std::thread::spawn(move || while inner.answer(&stream).is_some() {});
            }
        });
        Self { address, inner }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on chats are answered so.
    pub(crate) fn lie(&self, script: &[Step]) {
        *self.inner.script.lock().unwrap() = Some(script.to_vec());
    }

    /// From now on chats are answered as they should be.
    pub(crate) fn be_honest(&self) {
        *self.inner.script.lock().unwrap() = None;
    }

    /// Chats so far.
    pub(crate) fn asked(&self) -> usize {
        self.inner.asked.load(Ordering::SeqCst)
    }

    /// Chats being answered.
    pub(crate) fn answering(&self) -> usize {
        self.inner.answering.load(Ordering::SeqCst)
    }
}

/// Counts a chat while it is answered, however that ends.
struct Answering<'a>(&'a Inner);
impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Inner {
    /// One request; `None` at the end of the connection.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        stream.set_read_timeout(Some(IDLE)).ok()?;
        let (path, body) = request(stream)?;
        let list = || {
            let models: Vec<_> =
                self.models.iter().map(|id| serde_json::json!({"id": id, "object": "model"})).collect();
            serde_json::json!({"object": "list", "data": models}).to_string()
        };
        let step = match path.as_str() {
            LIES_ON => return self.chat(stream, body.contains("\"stream\":true")),
            "/v1/models" => whole("200 OK", "application/json", &list()),
            "/v1/completions" => whole("200 OK", "application/json", r#"{"choices":[{"text":"a"}]}"#),
            _ => whole("404 Not Found", "application/json", "{}"),
        };
        play(stream, step)
    }

    fn chat(&self, stream: &TcpStream, streams: bool) -> Option<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answering.fetch_add(1, Ordering::SeqCst);
        let _counts = Answering(self);
        let script = self.script.lock().unwrap().clone();
        let honest = || {
            if !streams {
                return vec![whole("200 OK", "application/json", &message(TRUTH))];
            }
            vec![chunked("text/event-stream"), chunk(&delta(TRUTH)), chunk(LAST), chunk(DONE), end()]
        };
        script.unwrap_or_else(honest).into_iter().try_for_each(|step| play(stream, step))
    }
}

fn request(stream: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, String::from_utf8(body).ok()?))
}

fn play(mut stream: &TcpStream, step: Step) -> Option<()> {
    match step {
        Step::Say(bytes) => stream.write_all(&bytes).ok(),
        Step::Endless(bytes) => loop {
            stream.write_all(&bytes).ok()?;
        },
        Step::Repeat(pause, bytes) => loop {
            std::thread::sleep(pause);
            stream.write_all(&bytes).ok()?;
        },
        Step::Hang => {
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|read| read > 0) {}
            None
        }
        Step::Close => {
            let _ = stream.shutdown(Shutdown::Both);
            None
        }
    }
}

/// A chat in one piece that says `text`.
pub(crate) fn message(text: &str) -> String {
    let message = serde_json::json!({"role": "assistant", "content": text});
    serde_json::json!({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
        .to_string()
}

/// An event that adds `text`.
pub(crate) fn delta(text: &str) -> String {
    let choice = serde_json::json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
    format!("data: {}\n\n", serde_json::json!({"id": "x", "choices": [choice]}))
}

/// The event that says why a chat ended.
pub(crate) const LAST: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// The last event.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

//! An engine that says again what a real one said: `agent/tests/data`.

use super::engine::free_address;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

/// Answers as long as the test runs.
pub(crate) struct Replay {
    pub(crate) address: SocketAddr,
}

impl Replay {
    /// The engine of this folder.
    pub(crate) fn start(engine: &'static str) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(&stream, engine));
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Which capture answers a request.
fn capture(method: &str, path: &str, asked: &Value) -> Option<&'static str> {
    let stream = asked["stream"] == true;
    let usage = asked["stream_options"]["include_usage"] == true;
    Some(match (method, path) {
        ("GET", "/v1/models") => "models",
        ("GET", "/health") => "health",
        ("GET", "/version") => "version",
        ("POST", "/v1/chat/completions") if asked["messages"].is_string() => "err_bad_type",
        ("POST", "/v1/chat/completions") if asked["max_tokens"] == 9999 => "err_context_too_long",
        ("POST", "/v1/chat/completions") if stream && usage => "chat_stream_usage",
        ("POST", "/v1/chat/completions") if stream => "chat_stream",
        ("POST", "/v1/chat/completions") => "chat",
        ("POST", "/v1/completions") if stream => "completions_stream",
        ("POST", "/v1/completions") => "completions",
        ("POST", "/v1/embeddings") => "embeddings",
        ("POST", "/v1/responses") if stream => "responses_stream",
        ("POST", "/v1/responses") => "responses",
        ("POST", "/v1/messages") if stream => "messages_anthropic_stream",
        ("POST", "/v1/messages") => "messages_anthropic",
        _ => return None,
    })
}

/// The head without what is about one connection, and the body, of a capture.
fn read(engine: &str, name: &str) -> Option<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("agent/tests/data").join(engine);
    let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).ok()?;
    let (_, answer) = text.split_once('\n')?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let framing = ["content-length", "transfer-encoding", "connection", "keep-alive"];
    let kept = |line: &&str| !framing.iter().any(|name| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
    let head: Vec<&str> = head.split("\r\n").filter(kept).collect();
    // A capture of a whole answer ends with a line break of its own.
    let body = if head.iter().any(|line| line.contains("event-stream")) { body } else { body.trim_end() };
    Some((head.join("\r\n"), body.as_bytes().to_vec()))
}

/// One request on a connection that closes then.
fn answer(stream: &TcpStream, engine: &str) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim_end().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let asked = serde_json::from_slice(&body).unwrap_or_default();
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let said = capture(method, path, &asked).and_then(|name| read(engine, name));
    let missing = || {
        ("HTTP/1.1 404 Not Found\r\ncontent-type: application/json".to_owned(), br#"{"detail":"Not Found"}"#.to_vec())
    };
    let (head, body) = said.unwrap_or_else(missing);
    let mut stream = stream;
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).ok()?;
    stream.write_all(&body).ok()
}

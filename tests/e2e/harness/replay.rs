//! Engines that say again what a real one said (`agent/tests/data`), and one that is played where there is no real one.

use super::{engine::free_address, played};
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

/// Whose answers, and how long each stream takes to begin.
#[derive(Clone, Copy)]
struct Part {
    engine: &'static str,
    late: Duration,
}

impl Replay {
    /// The engine of this folder.
    pub(crate) fn start(engine: &'static str) -> Self {
        Self::late(engine, Duration::ZERO)
    }

    /// As `start`, each stream beginning so late, its head included: an engine that reads a long prompt.
    pub(crate) fn late(engine: &'static str, late: Duration) -> Self {
        let listener = TcpListener::bind(free_address()).unwrap();
        let address = listener.local_addr().unwrap();
        let part = Part { engine, late };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(&stream, part));
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Which capture answers a request. `form`: what was sent, where that was no JSON.
fn capture(method: &str, path: &str, asked: &Value, form: &str) -> Option<&'static str> {
    let stream = asked["stream"] == true;
    let usage = asked["stream_options"]["include_usage"] == true;
    let field = |name: &str, value: &str| form.contains(&format!("name=\"{name}\"\r\n\r\n{value}\r\n"));
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
        ("POST", "/v1/audio/transcriptions") if form.contains("filename=\"hostname\"") => "err_notaudio",
        ("POST", "/v1/audio/transcriptions") if field("response_format", "srt") => "tr_srt",
        ("POST", "/v1/audio/transcriptions") if field("stream", "true") => "tr_stream",
        ("POST", "/v1/audio/transcriptions") => "tr_json",
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
fn answer(stream: &TcpStream, part: Part) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        chunked |= lower.starts_with("transfer-encoding:") && lower.contains("chunked");
        if line.trim_end().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    if chunked {
        body = read_chunks(&mut reader)?;
    } else {
        reader.read_exact(&mut body).ok()?;
    }
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let form = if asked.is_null() { String::from_utf8_lossy(&body) } else { "".into() };
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let said = match part.engine {
        "played" => played::answer(path, &asked, &form),
        engine => capture(method, path, &asked, &form).and_then(|name| read(engine, name)),
    };
    let missing = || {
        ("HTTP/1.1 404 Not Found\r\ncontent-type: application/json".to_owned(), br#"{"detail":"Not Found"}"#.to_vec())
    };
    let (head, body) = said.unwrap_or_else(missing);
    if head.contains("event-stream") {
        std::thread::sleep(part.late);
    }
    let mut stream = stream;
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).ok()?;
    stream.write_all(&body).ok()
}

/// A body in chunks, as the agent sends one whose length it changes.
fn read_chunks(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

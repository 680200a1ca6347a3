//! An engine that keeps to the letter of no API: a thread that answers what it is told to.

use super::engine::free_address;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

/// Answers as long as the test runs.
pub(crate) struct OddEngine {
    pub(crate) address: SocketAddr,
}

impl OddEngine {
    /// `models` and `metrics` are what it says on `/v1/models` and `/metrics`; every question gets the same answer.
    pub(crate) fn start(models: &'static str, metrics: &'static str) -> Self {
        let address = free_address();
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || while answer(&stream, models, metrics).is_some() {});
            }
        });
        Self { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// One request on a connection that stays open; `None` at its end.
fn answer(stream: &TcpStream, models: &str, metrics: &str) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
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
    reader.read_exact(&mut vec![0; length]).ok()?;
    let body = match first.split(' ').nth(1)? {
        "/health" => "{}",
        "/v1/models" => models,
        "/metrics" => metrics,
        path if path.starts_with("/v1/responses") => {
            r#"{"id":"resp_x","object":"response","status":"completed","output":[]}"#
        }
        _ => {
            r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"yes"}}]}"#
        }
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut stream = stream;
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok()
}

//! A small HTTP/1.1 client over a blocking socket: shows the tests every byte and every way in which an answer ends.

use serde_json::Value;
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Silence after which a test gives up: far above every deadline that is tested.
const SILENCE: Duration = Duration::from_secs(60);

/// An endpoint with the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) key: Option<String>,
}

/// Status, headers, and a body still to be read.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

enum Body {
    Length(io::Take<BufReader<TcpStream>>),
    Chunked(Chunked),
    Close(BufReader<TcpStream>),
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Endpoint {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self { address, key: None }
    }

    /// Base URL for the SDKs.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Sends a request and reads the answer's head.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Answer> {
        let mut socket = TcpStream::connect_timeout(&self.address, SILENCE)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        socket.set_nodelay(true)?;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        if let Some(key) = &self.key {
            head += &format!("Authorization: Bearer {key}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
        socket.write_all(&[head.as_bytes(), body].concat())?;
        Answer::read(BufReader::new(socket))
    }

    pub(crate) fn get(&self, path: &str) -> io::Result<Whole> {
        self.send("GET", path, &[], b"")?.whole()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> io::Result<Whole> {
        self.start(path, body)?.whole()
    }

    /// As `post`, with the body still to come.
    pub(crate) fn start(&self, path: &str, body: &Value) -> io::Result<Answer> {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// A chat answered in one piece.
    pub(crate) fn chat(&self, model: &str, prompt: &str, max_tokens: u32) -> io::Result<Whole> {
        self.post("/v1/chat/completions", &chat_body(model, prompt, max_tokens, false))
    }

    /// A streamed chat.
    pub(crate) fn chat_stream(&self, model: &str, prompt: &str, max_tokens: u32) -> io::Result<Answer> {
        self.start("/v1/chat/completions", &chat_body(model, prompt, max_tokens, true))
    }
}

/// The body of a chat request.
pub(crate) fn chat_body(model: &str, prompt: &str, max_tokens: u32, stream: bool) -> Value {
    serde_json::json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
    })
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// One line without its end; an error when the connection ends first.
fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let whole = line.strip_suffix('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(whole.trim_end_matches('\r').to_owned())
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

impl Answer {
    fn read(mut reader: BufReader<TcpStream>) -> io::Result<Self> {
        let first = line(&mut reader)?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| malformed(&first))?;
        let mut headers = Vec::new();
        loop {
            let line = line(&mut reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let body = if find(&headers, "transfer-encoding") == Some("chunked") {
            Body::Chunked(Chunked { reader, left: 0, ended: false })
        } else if let Some(length) = find(&headers, "content-length") {
            Body::Length(reader.take(length.parse().map_err(|_| malformed(length))?))
        } else {
            Body::Close(reader)
        };
        Ok(Self { status, headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Reads the body to its end; an error when the connection breaks before it.
    pub(crate) fn whole(mut self) -> io::Result<Whole> {
        let mut body = Vec::new();
        self.read_to_end(&mut body)?;
        if let Body::Length(rest) = &self.body
            && rest.limit() > 0
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Whole { status: self.status, headers: self.headers, body })
    }

    /// Events of a stream, up to its end.
    pub(crate) fn events(self) -> Events {
        Events { lines: BufReader::with_capacity(1, self), comments: Vec::new() }
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.body {
            Body::Length(reader) => reader.read(buffer),
            Body::Chunked(reader) => reader.read(buffer),
            Body::Close(reader) => reader.read(buffer),
        }
    }
}

/// A chunked body. Ends with an error unless the last chunk says that it is the last.
struct Chunked {
    reader: BufReader<TcpStream>,
    left: u64,
    ended: bool,
}

impl Read for Chunked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            let size = line(&mut self.reader)?;
            let size = size.split(';').next().unwrap_or_default();
            self.left = u64::from_str_radix(size.trim(), 16).map_err(|_| malformed(size))?;
            if self.left == 0 {
                while !line(&mut self.reader)?.is_empty() {}
                self.ended = true;
                return Ok(0);
            }
        }
        let count = (&mut self.reader).take(self.left).read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 {
            line(&mut self.reader)?;
        }
        Ok(count)
    }
}

/// The `data` of server-sent events.
pub(crate) struct Events {
    lines: BufReader<Answer>,
    /// The comments between those that have come.
    pub(crate) comments: Vec<String>,
}

impl Iterator for Events {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = String::new();
            match self.lines.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            if let Some(comment) = line.trim_end().strip_prefix(": ") {
                self.comments.push(comment.to_owned());
            }
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                return Some(Ok(data.trim_start().to_owned()));
            }
        }
    }
}

impl Whole {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of a chat's answer.
    ///
    /// # Panics
    /// Another status than 200.
    #[track_caller]
    pub(crate) fn content(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
    }
}

/// How a streamed chat went.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    pub(crate) text: String,
    pub(crate) finish: Option<String>,
    pub(crate) done: bool,
    pub(crate) error: Option<String>,
}

impl Events {
    /// Reads a streamed chat to its end.
    pub(crate) fn collect_chat(self) -> Streamed {
        let mut streamed = Streamed::default();
        for event in self {
            match event {
                Ok(data) => streamed.take(&data),
                Err(error) => streamed.error = Some(error.to_string()),
            }
        }
        streamed
    }
}

impl Streamed {
    pub(crate) fn take(&mut self, data: &str) {
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in event: {data}"));
        if let Some(error) = event.get("error") {
            self.error = Some(error.to_string());
        }
        let choice = &event["choices"][0];
        self.text += choice["delta"]["content"].as_str().unwrap_or_default();
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
    }

    /// Whether nothing is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.done && self.finish.is_some() && self.error.is_none()
    }
}

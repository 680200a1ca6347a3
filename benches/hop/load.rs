//! The load generator: raw HTTP/1.1 over TCP on a thread of its own, as lean as it can be, because it shares the
//! machine with what it measures.

use anyhow::{Result, bail, ensure};
use serde_json::json;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// Events of one stream: its tokens. A chat has two more, the role and `[DONE]`.
pub const TOKENS: u32 = 64;
/// Tokens of an answer that isn't a stream: with them its body is about 1 KB.
const UNARY_TOKENS: u32 = 48;
/// Bytes of a request's body.
const REQUEST_BYTES: usize = 1024;
/// Receive buffer of clients that don't read: what piles up shall pile up before it.
const SMALL_BUFFER: u32 = 16 * 1024;
/// Different errors that are counted apart.
const DIFFERENT_ERRORS: usize = 16;
/// Longest that one answer may take before the run counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What every client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 1 KB there, about 1 KB back.
    Unary,
    /// 64 chunks.
    Stream,
}

/// A request as it goes over the wire.
pub fn request(model: &str, stream: bool, tokens: u32, key: Option<&str>) -> Vec<u8> {
    asking("Why do dunlins flock?", model, stream, tokens, key)
}

/// The same with another question.
pub fn asking(question: &str, model: &str, stream: bool, tokens: u32, key: Option<&str>) -> Vec<u8> {
    let body = |filler: &str| {
        json!({
            "model": model, "max_tokens": tokens, "ignore_eos": true, "stream": stream,
            "messages": [{"role": "user", "content": format!("{question} {filler}")}],
        })
        .to_string()
    };
    let filler = " wader".repeat((REQUEST_BYTES - body("").len()) / 6);
    let body = body(&filler);
    let authorization = key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         {authorization}content-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

impl Kind {
    pub fn request(self, model: &str, key: Option<&str>) -> Vec<u8> {
        match self {
            Self::Unary => request(model, false, UNARY_TOKENS, key),
            Self::Stream => request(model, true, TOKENS, key),
        }
    }
}

/// What a run saw.
#[derive(Default, Debug, Clone)]
pub struct Outcome {
    /// Whole answers.
    pub requests: u64,
    /// Events in them.
    pub events: u64,
    /// From sending a request to the first event with text, or to the whole answer, microseconds.
    pub first_us: Vec<u32>,
    /// Answers that were not 200 or broke off.
    pub errors: u64,
    /// Which, each as often as it came, up to [`DIFFERENT_ERRORS`].
    pub failures: BTreeMap<String, u64>,
    /// Whole answers with those of the warm-up: what processor time is divided by.
    pub all_requests: u64,
    /// Length of the run.
    pub elapsed: Duration,
}

impl Outcome {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64()
    }
    /// A quantile of the time to the first event, milliseconds.
    pub fn first_ms(&self, quantile: f64) -> f64 {
        let mut sorted = self.first_us.clone();
        sorted.sort_unstable();
        let index = ((sorted.len() as f64 * quantile) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(index).map_or(f64::NAN, |&us| f64::from(us) / 1000.0)
    }
    /// One more whole answer.
    pub fn answered(&mut self, one: &One) {
        self.requests += 1;
        self.events += u64::from(one.events);
        self.first_us.push(u32::try_from(one.first.as_micros()).unwrap_or(u32::MAX));
    }
    /// One more that was none.
    pub fn failed(&mut self, error: String) {
        self.errors += 1;
        self.count(error, 1);
    }
    fn count(&mut self, error: String, times: u64) {
        if self.failures.len() < DIFFERENT_ERRORS || self.failures.contains_key(&error) {
            *self.failures.entry(error).or_default() += times;
        }
    }
    /// What went wrong, to standard error.
    pub fn tell_failures(&self, name: &str) {
        for (error, times) in &self.failures {
            eprintln!("{name}: {times} x {error}");
        }
    }
    /// Adds another run of the same thing.
    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.events += other.events;
        self.first_us.extend(other.first_us);
        self.errors += other.errors;
        for (error, times) in other.failures {
            self.count(error, times);
        }
        self.all_requests += other.all_requests;
        self.elapsed += other.elapsed;
    }
}

/// Runs `clients` that each send one request after the other, for `duration` after a short warm-up.
pub fn run(target: SocketAddr, request: &[u8], clients: usize, duration: Duration) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let start = Instant::now() + duration / 5;
        let end = start + duration;
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            tasks.spawn(client(target, request.to_vec(), start, end));
        }
        let mut outcome = Outcome::default();
        while let Some(one) = tasks.join_next().await {
            outcome.add(one?);
        }
        outcome.elapsed = duration;
        Ok(outcome)
    })
}

/// One request on a connection of its own.
pub fn once(target: SocketAddr, request: &[u8]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, ask(target, &mut None, request, 1)).await??;
        Ok(())
    })
}

/// Sends a request every 20 ms until one is answered; how long that took.
pub fn first_answer(target: SocketAddr, request: &[u8], since: Instant) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        while since.elapsed() < PATIENCE {
            let request = request.to_vec();
            tasks.spawn(async move { ask(target, &mut None, &request, 1).await.is_ok() });
            let next = tokio::time::sleep(Duration::from_millis(20));
            tokio::pin!(next);
            // A request that failed leaves the rest of the wait to the clock.
            tokio::select! {
                () = &mut next => {}
                Some(Ok(true)) = tasks.join_next() => return Ok(since.elapsed()),
            }
        }
        bail!("no request was answered within {PATIENCE:?}")
    })
}

async fn client(target: SocketAddr, request: Vec<u8>, start: Instant, end: Instant) -> Outcome {
    let mut outcome = Outcome::default();
    let mut connection = None;
    while Instant::now() < end {
        let one = tokio::time::timeout(PATIENCE, ask(target, &mut connection, &request, TOKENS)).await;
        let now = Instant::now();
        outcome.all_requests += u64::from(matches!(one, Ok(Ok(_))));
        if now < start || now > end {
            continue;
        }
        match one {
            Ok(Ok(answer)) => outcome.answered(&answer),
            failed => {
                connection = None;
                outcome.failed(match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "no answer in time".to_owned(),
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    outcome
}

/// One answer.
pub struct One {
    /// To the first event with text, or to the whole answer.
    first: Duration,
    events: u32,
}

/// Sends a request and reads its answer whole, on `connection` if there is one. A stream must have so many tokens.
pub async fn ask(target: SocketAddr, connection: &mut Option<Connection>, request: &[u8], tokens: u32) -> Result<One> {
    let mut open = match connection.take().filter(Connection::is_open) {
        Some(open) => open,
        None => Connection::open(target).await?,
    };
    let sent = Instant::now();
    open.stream.write_all(request).await?;
    let head = open.head().await?;
    ensure!(head.status == 200, "status {}: {}", head.status, open.rest());
    let one = match head.length {
        Some(length) => {
            open.skip(length).await?;
            One { first: sent.elapsed(), events: 0 }
        }
        None => {
            let one = open.events(sent).await?;
            ensure!(one.events == tokens + 2, "{} events instead of {}", one.events, tokens + 2);
            one
        }
    };
    *connection = Some(open);
    Ok(one)
}

/// One keep-alive connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were looked at.
    at: usize,
}

struct Head {
    status: u16,
    /// `None` when the body is chunked.
    length: Option<usize>,
}

impl Connection {
    pub async fn open(target: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(16 * 1024), at: 0 })
    }

    /// With a small receive buffer, for a client that does not read.
    pub async fn open_small(target: SocketAddr) -> Result<Self> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
        let stream = socket.connect(target).await?;
        Ok(Self { stream, buffer: Vec::new(), at: 0 })
    }

    /// Whether the other end has not closed it: servers do that with connections that nobody has used for a while, and
    /// every client's pool looks before it sends on one.
    fn is_open(&self) -> bool {
        let unasked = self.stream.try_read(&mut [0]);
        unasked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the first bytes of the answer, no more.
    pub async fn begin(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await?;
        let head = self.head().await?;
        ensure!(head.status == 200, "status {}: {}", head.status, self.rest());
        Ok(())
    }

    /// Reads and forgets what comes.
    pub async fn drain(&mut self) -> Result<()> {
        loop {
            self.buffer.clear();
            self.at = 0;
            self.fill().await?;
        }
    }

    fn rest(&self) -> String {
        String::from_utf8_lossy(&self.buffer[self.at..]).chars().take(200).collect()
    }

    async fn fill(&mut self) -> Result<()> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the connection was closed in the middle of an answer");
        Ok(())
    }

    async fn head(&mut self) -> Result<Head> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
                let text = std::str::from_utf8(&unread[..end])?.to_ascii_lowercase();
                self.at += end + 4;
                let Some(status) = text.get(9..12).and_then(|digits| digits.parse().ok()) else {
                    bail!("not HTTP: {text}");
                };
                let header = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let length = header("content-length:").map(str::parse).transpose()?;
                ensure!(length.is_some() || header("transfer-encoding:") == Some("chunked"), "no length: {text}");
                return Ok(Head { status, length });
            }
            self.fill().await?;
        }
    }

    async fn skip(&mut self, mut length: usize) -> Result<()> {
        loop {
            let here = length.min(self.buffer.len() - self.at);
            self.at += here;
            length -= here;
            if length == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    /// Length of the next chunk.
    async fn chunk(&mut self) -> Result<usize> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(2).position(|window| window == b"\r\n") {
                let digits = std::str::from_utf8(&unread[..end])?;
                let length = usize::from_str_radix(digits, 16)?;
                self.at += end + 2;
                return Ok(length);
            }
            self.fill().await?;
        }
    }

    /// Reads a chunked body of events to its end.
    async fn events(&mut self, sent: Instant) -> Result<One> {
        let mut one = One { first: Duration::ZERO, events: 0 };
        let mut last = 0;
        loop {
            let mut left = self.chunk().await?;
            if left == 0 {
                // Trailers, if any, end with an empty line.
                while self.line().await? > 0 {}
                return Ok(one);
            }
            while left > 0 {
                if self.at == self.buffer.len() {
                    self.fill().await?;
                }
                let here = left.min(self.buffer.len() - self.at);
                for &byte in &self.buffer[self.at..self.at + here] {
                    if byte == b'\n' && last == b'\n' {
                        one.events += 1;
                        last = 0;
                        // The first is the role, which says nothing yet.
                        if one.events == 2 {
                            one.first = sent.elapsed();
                        }
                    } else {
                        last = byte;
                    }
                }
                self.at += here;
                left -= here;
            }
            self.skip(2).await?;
        }
    }

    /// Length of the next line, which is skipped.
    async fn line(&mut self) -> Result<usize> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.windows(2).position(|window| window == b"\r\n") {
                self.at += end + 2;
                return Ok(end);
            }
            self.fill().await?;
        }
    }
}

//! A server of files: ranges, redirects, and whatever else goes wrong on the way. What it answers is the test's to say.

use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Path and query.
    pub(crate) target: String,
    /// By their names in lower case.
    pub(crate) headers: HashMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte, and the one after the last, of what is asked for.
    pub(crate) fn range(&self, size: usize) -> Option<(usize, usize)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, (last.parse::<usize>().ok()? + 1).min(size)))
    }
}

/// What is answered.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Arc<Vec<u8>>,
    /// Which part of `body`.
    pub(crate) part: (usize, usize),
    /// Break off after so many bytes.
    pub(crate) cut: Option<usize>,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Arc::default(), part: (0, 0), cut: None }
    }

    pub(crate) fn text(text: &str) -> Self {
        let body = Arc::new(text.as_bytes().to_vec());
        Self { part: (0, body.len()), body, ..Self::status(200) }
    }

    pub(crate) fn redirect(to: &str) -> Self {
        Self::status(302).with("location", to)
    }

    /// A file, or the part that is asked for, as of the version that `tag` names.
    pub(crate) fn file(request: &Request, body: &Arc<Vec<u8>>, tag: &str) -> Self {
        let of_this_version = request.header("if-range").is_none_or(|wanted| wanted == tag);
        if request.header("if-match").is_some_and(|wanted| wanted != tag) {
            return Self::status(412);
        }
        let whole = Self { body: Arc::clone(body), part: (0, body.len()), ..Self::status(200) }.with("etag", tag);
        match request.range(body.len()).filter(|_| of_this_version) {
            Some((first, end)) if first < end => {
                let range = format!("bytes {first}-{}/{}", end - 1, body.len());
                Self { status: 206, part: (first, end), ..whole }.with("content-range", &range)
            }
            Some(_) => Self::status(416),
            None => whole,
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

struct Inner {
    answer: Box<Answer>,
    requests: Mutex<Vec<Request>>,
    served: AtomicU64,
    /// Bytes a second on each connection; 0 for no bound.
    pace: AtomicU64,
    ended: AtomicBool,
}

/// A running server; ends with the test.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
}

impl Hub {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            answer: Box::new(answer),
            requests: Mutex::default(),
            served: AtomicU64::new(0),
            pace: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.ended.load(Ordering::Relaxed) {
                    return;
                }
                let inner = Arc::clone(&serving);
                // A client that is killed breaks its connections: no news.
                std::thread::spawn(move || drop(serve(&inner, stream)));
            }
        });
        Self { address, inner }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Bytes of bodies that were sent.
    pub(crate) fn served(&self) -> u64 {
        self.inner.served.load(Ordering::Relaxed)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.inner.requests.lock().unwrap().clone()
    }

    /// Bytes a second on each connection.
    pub(crate) fn set_pace(&self, bytes: u64) {
        self.inner.pace.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(inner: &Inner, mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let request = Request { target, headers };
        inner.requests.lock().unwrap().push(request.clone());
        let Reply { status, headers, body, part, cut } = (inner.answer)(&request);
        let mut head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", part.1 - part.0);
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        let mut sent = 0;
        for piece in body[part.0..part.1].chunks(64 * 1024) {
            let piece = &piece[..piece.len().min(cut.map_or(usize::MAX, |cut| cut - sent))];
            stream.write_all(piece)?;
            sent += piece.len();
            inner.served.fetch_add(piece.len() as u64, Ordering::Relaxed);
            if cut == Some(sent) {
                return Ok(());
            }
            let pace = inner.pace.load(Ordering::Relaxed);
            if pace > 0 {
                std::thread::sleep(Duration::from_secs_f64(piece.len() as f64 / pace as f64));
            }
        }
    }
}

/// Bytes that nothing compresses and nobody mistakes for others, the same for the same seed.
pub(crate) fn content(seed: u64, bytes: usize) -> Arc<Vec<u8>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    Arc::new(content)
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Clients on one thread, as many as there have to be: each asks for a stream on a connection of its own.

use crate::harness::http::{Endpoint, chat_body};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time,
};

/// Answers of which the text is kept to be shown.
const SHOWN: usize = 5;
/// A refusal at once comes sooner, on a busy machine too.
const LATE: Duration = Duration::from_secs(2);
/// Longest that a client waits: far above every deadline of the proxy.
const PATIENCE: Duration = Duration::from_secs(90);

/// Lets this process open as many files as it may.
pub(crate) fn open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not, connections fail, and the test says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// What became of requests.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    pub(crate) asked: usize,
    /// Whole, to the last event.
    pub(crate) whole: usize,
    /// 429, with when to come back.
    pub(crate) refused: usize,
    /// Neither of them.
    pub(crate) other: usize,
    /// The first few of those.
    pub(crate) shown: Vec<String>,
    /// Of the refused, those that were told after more than [`LATE`].
    pub(crate) late: usize,
    slowest: Duration,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, whole, refused, late, other, slowest, .. } = self;
        write!(
            f,
            "{asked} asked, {whole} whole (the slowest in {slowest:.1?}), {refused} refused ({late} of them after more than \
             {LATE:?}), {other} else, the others still waiting"
        )
    }
}

/// One kind of client.
#[derive(Clone)]
pub(crate) struct Asker {
    address: SocketAddr,
    request: Arc<[u8]>,
}

impl Asker {
    /// Clients of `endpoint` that ask for `tokens` tokens.
    pub(crate) fn new(endpoint: &Endpoint, tokens: u32) -> Self {
        let body = chat_body("demo", "why do dunlins fly in flocks?", tokens, true).to_string();
        let (address, key) = (endpoint.address, endpoint.key.as_deref().unwrap_or_default());
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Self { address, request: request.into_bytes().into() }
    }

    /// `clients` that ask one question after another for `time`. What has not ended then doesn't count.
    pub(crate) fn closed(&self, clients: usize, time: Duration) -> Counts {
        self.run(time, async |counts| {
            let mut tasks = JoinSet::new();
            for _ in 0..clients {
                let (asker, counts) = (self.clone(), counts.clone());
                tasks.spawn(async move {
                    loop {
                        asker.ask(&counts).await;
                    }
                });
            }
            tasks.join_next().await;
        })
    }

    /// `rate` questions a second for `time`, whatever becomes of them.
    pub(crate) fn open(&self, rate: f64, time: Duration) -> Counts {
        self.run(time, async |counts| {
            let mut tasks = JoinSet::new();
            let mut due = time::interval(Duration::from_secs_f64(1.0 / rate));
            loop {
                due.tick().await;
                let (asker, counts) = (self.clone(), counts.clone());
                tasks.spawn(async move { asker.ask(&counts).await });
                while tasks.try_join_next().is_some() {}
            }
        })
    }

    fn run(&self, time: Duration, clients: impl AsyncFnOnce(Arc<Mutex<Counts>>)) -> Counts {
        let counts = Arc::<Mutex<Counts>>::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Whoever waits still hangs up at the end.
        let _ = runtime.block_on(async { time::timeout(time, clients(counts.clone())).await });
        drop(runtime);
        counts.lock().unwrap().clone()
    }

    async fn ask(&self, counts: &Mutex<Counts>) {
        counts.lock().unwrap().asked += 1;
        let since = Instant::now();
        let answer = time::timeout(PATIENCE, self.exchange()).await;
        let took = since.elapsed();
        let mut counts = counts.lock().unwrap();
        let said = match answer {
            Ok(Ok(answer)) => String::from_utf8_lossy(&answer).into_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        let (head, body) = said.split_once("\r\n\r\n").unwrap_or((&said, ""));
        if head.starts_with("HTTP/1.1 200 ") && body.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n") {
            counts.whole += 1;
            counts.slowest = counts.slowest.max(took);
        } else if head.starts_with("HTTP/1.1 429 ") && head.to_ascii_lowercase().contains("\r\nretry-after: ") {
            counts.refused += 1;
            counts.late += usize::from(took > LATE);
        } else {
            counts.other += 1;
            if counts.shown.len() < SHOWN {
                counts.shown.push(format!("after {took:?}: {said:.400}"));
            }
        }
    }

    async fn exchange(&self) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(&self.request).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

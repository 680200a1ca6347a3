//! Accepting clients: how many, how long each may take, and the end.

mod bare;
mod heads;
mod seldom;
pub mod tls;
mod unread;

use super::{Door, answer::Body};
use crate::{config::Config, files};
use bare::Bare;
use dunlin_node::hop::stall;
use heads::{Answered, Heads, Requests};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use seldom::Seldom;
use socket2::{SockRef, TcpKeepalive};
use std::{
    convert::Infallible,
    future, io,
    net::IpAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tls::Tls;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use unread::Unread;

/// How a client that begins so is spoken to in HTTP/2; what begins otherwise is HTTP/1.
/// Seen whole before hyper is let at it, since hyper sets no time for it.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Between two looks at a client that has sent a part of that.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// After an accept that failed because the process has no file left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Streams of one HTTP/2 client.
const HTTP2_STREAMS: u32 = 256;
/// Silence after which an HTTP/2 client is asked whether it is there.
const HTTP2_PING: Duration = Duration::from_secs(20);
/// A client that has vanished without a word is noticed after this long, so that its requests end.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Bytes that the kernel may hold for a client beyond what is under way to it. Left to itself it takes up to 4 MB for
/// each client that stopped reading, and the engine goes on working for nobody that much longer.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 64 << 10;
/// Bytes of one client's head, and of what is read or written at once.
const BUFFER: usize = 64 << 10;

/// The accepting side of one proxy.
pub(crate) struct Server {
    listener: TcpListener,
    door: Arc<Door>,
    tls: Option<Arc<Tls>>,
    connections: Arc<Semaphore>,
    first_head: Duration,
    head: Duration,
    idle: Duration,
    stalled: Duration,
    drain: Duration,
}

impl Server {
    /// Serves `door` on `listener`, through `tls` if there is one.
    pub(crate) fn new(listener: TcpListener, door: Arc<Door>, tls: Option<Arc<Tls>>, config: &Config) -> Self {
        let connections = Arc::new(Semaphore::new(files::make_room(config.connections).min(Semaphore::MAX_PERMITS)));
        let Config { first_head, head, idle, stalled, drain, .. } = *config;
        let first_head = first_head.min(head);
        Self { listener, door, tls, connections, first_head, head, idle, stalled, drain }
    }

    /// Accepts until `shutdown`; then lets what is in flight finish, for a while.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let clients = TaskTracker::new();
        let abort = CancellationToken::new();
        let (mut refused, mut failed) = (Seldom::default(), Seldom::default());
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => match self.connections.clone().try_acquire_owned() {
                    Ok(permit) => self.take(stream, address.ip(), permit, &clients, &shutdown, &abort),
                    // Closed at once: what waited in line here would wait for those who hold the connections.
                    Err(_) => {
                        self.door.metrics.refused_connections.inc();
                        if let Some(refused) = refused.count(Instant::now()) {
                            tracing::warn!(refused, "clients refused: as many are connected as may");
                        }
                    }
                },
                Err(error) => {
                    if let Some(failed) = failed.count(Instant::now()) {
                        tracing::warn!(%error, failed, "clients could not be accepted");
                    }
                    time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
        drop(self.listener);
        clients.close();
        if time::timeout(self.drain, clients.wait()).await.is_err() {
            tracing::warn!(clients = clients.len(), "ending with answers in flight");
            abort.cancel();
            clients.wait().await;
        }
    }

    fn take(
        &self,
        stream: TcpStream,
        address: IpAddr,
        permit: OwnedSemaphorePermit,
        clients: &TaskTracker,
        stop: &CancellationToken,
        abort: &CancellationToken,
    ) {
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "socket options");
        }
        let door = self.door.clone();
        let Self { first_head, head, idle, stalled, .. } = *self;
        let (stop, requests) = (stop.clone(), Requests::default());
        let tls = self.tls.clone();
        let client = Client { door, tls, address, first_head, head, idle, stalled, stop, requests, _permit: permit };
        let abort = abort.clone();
        clients.spawn(async move {
            client.door.metrics.connections.inc();
            tokio::select! {
                () = abort.cancelled() => {}
                () = client.serve(stream) => {}
            }
            client.door.metrics.connections.dec();
        });
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE / 3).with_retries(3);
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT)?;
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// One client's connection.
struct Client {
    door: Arc<Door>,
    tls: Option<Arc<Tls>>,
    address: IpAddr,
    first_head: Duration,
    head: Duration,
    idle: Duration,
    stalled: Duration,
    stop: CancellationToken,
    requests: Requests,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    async fn serve(&self, stream: TcpStream) {
        tokio::select! {
            () = self.says_nothing() => tracing::debug!("connection ended without a request"),
            () = self.serve_all(stream) => {}
        }
    }

    /// Ends when the first request's head is overdue.
    async fn says_nothing(&self) {
        time::sleep(self.first_head).await;
        if self.requests.count() > 0 {
            future::pending::<()>().await;
        }
    }

    async fn serve_all(&self, stream: TcpStream) {
        let served = match &self.tls {
            None => {
                let first = tokio::select! {
                    () = self.stop.cancelled() => return,
                    first = speaks_http2(&stream) => first,
                };
                match first {
                    Ok(true) => self.http2(self.socket(stream)).await,
                    Ok(false) => self.http1(self.socket(stream)).await,
                    Err(_) => return,
                }
            }
            Some(tls) => {
                let shaken = tokio::select! {
                    () = self.stop.cancelled() => return,
                    shaken = tls.acceptor().accept(self.socket(stream)) => shaken,
                };
                match shaken {
                    Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => self.http2(stream).await,
                    Ok(stream) => self.http1(stream).await,
                    Err(error) => {
                        tracing::debug!(%error, "no TLS connection came about");
                        return;
                    }
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn http1<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> hyper::Result<()> {
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // Counted from the end of the last answer.
                .header_read_timeout(self.idle)
                .max_buf_size(BUFFER)
                .serve_connection(
                    TokioIo::new(Bare::new(Heads::new(socket, self.requests.clone(), self.head))),
                    service_fn(|request| self.answer(request))
                )
        );
        tokio::select! {
            done = connection.as_mut() => return done,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }

    async fn http2<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> hyper::Result<()> {
        let (door, address, requests) = (self.door.clone(), self.address, self.requests.clone());
        // An answer that the client gives no room ends by itself: the others on the connection go on.
        let streams = stall::Guard::new(TaskTracker::new(), self.stalled);
        let mut connection = pin!(
            http2::Builder::new(streams)
                .timer(TokioTimer::new())
                .max_concurrent_streams(HTTP2_STREAMS)
                // A balancer in front whose users all hang up at once is no attacker: its connection carries others too.
                .max_pending_accept_reset_streams(Some(HTTP2_STREAMS as usize))
                .keep_alive_interval(HTTP2_PING)
                .max_header_list_size(BUFFER as u32)
                .serve_connection(
                    TokioIo::new(socket),
                    service_fn(move |request| {
                        let door = door.clone();
                        drop(requests.come());
                        async move {
                            let answer = door.answer(request, Some(address)).await;
                            // Its head waits for the client.
                            stall::note(stall::Body::Yielded);
                            Ok::<_, Infallible>(answer)
                        }
                    }),
                )
        );
        tokio::select! {
            done = connection.as_mut() => return done,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    }

    fn socket(&self, stream: TcpStream) -> Unread {
        Unread::new(stream, self.stalled)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Answered<Body>>, Infallible> {
        let until = self.requests.come();
        let answer = self.door.clone().answer(request, Some(self.address)).await;
        Ok(answer.map(|body| Answered { body, _until: until }))
    }
}

/// Whether the client's first bytes are HTTP/2's; leaves them to be read.
async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..seen] != HTTP2_PREFACE[..seen] {
            return Ok(false);
        }
        if seen == HTTP2_PREFACE.len() {
            return Ok(true);
        }
        time::sleep(LOOK_AGAIN).await;
    }
}

//! The demo engine's connections.

use super::{body::Died, faults::Death, http};
use bytes::Bytes;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Open connections; further ones wait in the kernel.
const CONNECTIONS: usize = 16 * 1024;
/// How long answers may still take once the engine was told to end.
const DRAIN: Duration = Duration::from_secs(5);
/// After a failed accept: file descriptors may have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One connection, seen from an answer that must cut it.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    reset: Arc<AtomicBool>,
}

impl Line {
    /// Ends an answer in the middle; the result is what its body says next.
    pub(super) fn die(&self, death: Death) -> Option<Result<Bytes, Died>> {
        match death {
            Death::CleanEnd | Death::Hang => None,
            Death::Close => Some(Err(Died)),
            Death::Reset => {
                self.reset.store(true, Relaxed);
                Some(Err(Died))
            }
            Death::Exit => {
                tracing::warn!("demo engine ends its process, as ordered");
                std::process::exit(1)
            }
        }
    }
}

/// A TCP connection that is reset instead of closed when its line says so.
struct Socket {
    stream: TcpStream,
    line: Line,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.line.reset.load(Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "demo engine could not reset a connection");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.reset.load(Relaxed) {
            // A FIN first would make a clean end of what shall look like a crash.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Accepts until `shutdown`, then lets what runs finish for a while.
pub(super) async fn serve(listener: TcpListener, engine: Arc<http::Engine>, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (stream, permit) = tokio::select! {
            () = shutdown.cancelled() => break,
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => (stream, permit),
                Err(error) => {
                    tracing::warn!(%error, "demo engine could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let engine = Arc::clone(&engine);
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            connection(stream, engine, shutdown).await;
            drop(permit);
        });
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, finished).await.is_err() {
        tracing::warn!("demo engine cut answers that took too long to end");
    }
}

async fn connection(stream: TcpStream, engine: Arc<http::Engine>, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "demo engine could not set nodelay");
    }
    let line = Line::default();
    let socket = Socket { stream, line: line.clone() };
    let service = service_fn(move |request| http::handle(Arc::clone(&engine), line.clone(), request));
    let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "demo engine's connection ended");
    }
}

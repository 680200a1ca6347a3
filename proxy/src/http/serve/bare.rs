//! Answers that hyper gives by itself, with a body put to them.
//!
//! What is no HTTP, or has a head larger than hyper's buffer, never becomes a request: hyper answers with a bare status
//! and closes. SDKs look for an error object. Those answers are therefore known by their bytes, on their way to the
//! socket, and replaced. Nothing else is: whatever the front door answers has an `x-request-id`.

use crate::{errors::Error, http::endpoint::Dialect, http::headers::MAX_BYTES};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// The longest such answer, bytes; what is longer is not looked at.
const BARE_BYTES: usize = 256;
const NO_BODY: &str = "content-length: 0\r\n";
/// How long, and how much, a client that was answered so may still send before its connection is closed. Closed with
/// bytes unread, it would be reset, and the answer might be lost.
const LINGER: Duration = Duration::from_secs(2);
const DISCARDED: usize = 4 << 20;

/// A socket whose bare answers get a body.
pub(super) struct Bare<S> {
    socket: S,
    /// The answer that goes out instead, and how much of it has.
    instead: Option<(Vec<u8>, usize)>,
    lingering: Option<Lingering>,
}

struct Lingering {
    left: usize,
    alarm: Pin<Box<Sleep>>,
}

impl<S> Bare<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, instead: None, lingering: None }
    }
}

/// The whole answer in place of hyper's.
fn with_body(written: &[u8]) -> Option<Vec<u8>> {
    if written.len() > BARE_BYTES || !written.starts_with(b"HTTP/1.") || !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?;
    let error = match head.get("HTTP/1.1 ".len()..)?.get(..3)? {
        "400" => Error::NotHttp,
        "414" => Error::Uri,
        "431" => Error::Headers(MAX_BYTES),
        _ => return None,
    };
    let bare = head.contains(NO_BODY) && !head.contains("x-request-id") && !head.contains("content-type");
    let body = error.json(Dialect::OpenAi);
    let told = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    bare.then(|| [head.replacen(NO_BODY, &told, 1).as_bytes(), &body].concat())
}

impl<S: AsyncWrite + Unpin> Bare<S> {
    /// Writes the other answer out; ready when all of it is.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((answer, written)) = &mut self.instead
            && *written < answer.len()
        {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, &answer[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *written += more,
            }
        }
        self.instead = None;
        self.lingering = Some(Lingering { left: DISCARDED, alarm: Box::pin(tokio::time::sleep(LINGER)) });
        Poll::Ready(Ok(()))
    }

    fn poll_replaced(&mut self, cx: &mut Context<'_>, bare: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            self.instead = Some((with_body(bare)?, 0));
        }
        // hyper offers the same bytes until it is told that they are written.
        Some(self.poll_instead(cx).map_ok(|()| bare.len()))
    }
}

impl<S: AsyncRead + Unpin> Bare<S> {
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Lingering { left, alarm }) = &mut self.lingering else { return Poll::Ready(()) };
        let mut space = [0; 8192];
        loop {
            let mut unwanted = ReadBuf::new(&mut space);
            match Pin::new(&mut self.socket).poll_read(cx, &mut unwanted) {
                Poll::Ready(Ok(())) if (1..=*left).contains(&unwanted.filled().len()) => {
                    *left -= unwanted.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return alarm.as_mut().poll(cx),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bare<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bare<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.poll_replaced(cx, buf) {
            Some(written) => written,
            None => Pin::new(&mut self.socket).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs
            && let Some(written) = self.poll_replaced(cx, only)
        {
            return written;
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        self.poll_linger(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_answers_get_a_body() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let answer = String::from_utf8(with_body(bare).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}", body.len())) && head.contains("connection: close"),
            "{head}"
        );
        assert!(body.contains("headers_too_large"), "{body}");
        for other in [
            "HTTP/1.1 400 Bad Request\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 400",
            "",
        ] {
            assert!(with_body(other.as_bytes()).is_none(), "{other}");
        }
    }
}

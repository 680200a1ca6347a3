//! Every number of the hop, in one place. Most of HTTP/2's limits are safeguards against strangers whose remedy is to
//! end the connection; on a connection that all requests between two members share, that remedy is the outage.
//! Sources: hyper 1.12 `proto/h2/{client,server}.rs`, h2 0.4.20 `proto/streams/{counts,streams,recv}.rs`.

use super::{client::Tasks, stall::Guard};
use hyper::{client, server};
use hyper_util::rt::TokioTimer;
use std::time::Duration;

/// Time for a ping's answer by hyper's count, which overlooks all else that comes in and, after this process was itself
/// stopped, looks at the clock before it reads. [`super::pulse`] watches instead.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// How HTTP/2 is spoken on the hop. [`Settings::default`] is what a mesh runs with; both ends should use the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a request that may be under way or unread.
    pub request_window: u32,
    /// Bytes of an answer that may be under way or unread. Times [`Settings::streams`] it bounds what readers who
    /// stopped reading can hold: about twice as much as it says when chunks are small, since h2 keeps some 250 bytes of
    /// its own with each (`proto/streams/buffer.rs`), in a table that never shrinks. One answer flows with no more than
    /// this in a round trip: 160 KiB/s at 200 ms, a thousand tokens a second.
    pub answer_window: u32,
    /// Bytes that all streams of a connection may have under way or unread. At least a window times `streams`, or
    /// else a few stalled readers stop everybody. Much more, since h2 ends a connection whose unread DATA frames of
    /// less than 256 bytes would take half of this if each counted as 256: with 64 MiB, 80 stalled readers of chunks
    /// of 20 bytes do that. Memory stays bounded by the streams' own windows.
    pub connection_window: u32,
    /// Concurrent streams that a server allows and a client assumes before it has heard from the server (hyper: 200
    /// and 100).
    pub streams: u32,
    /// Requests that one client has in flight on one connection, below `streams` since a stream that was cancelled
    /// counts until its end was sent.
    pub in_flight: usize,
    /// Bytes of one header list, counted as HTTP/2 does: name + value + 32 each (hyper: 16 KiB).
    pub header_list: u32,
    /// Streams reset by us of which frames may still come. Beyond it, a late frame is an error of the connection's
    /// budget below (h2: 50).
    pub reset_streams: usize,
    /// Streams that a server has not looked at yet and that the client has already reset. A server that was stopped
    /// for a moment finds many (h2: 20; beyond it the connection ends).
    pub pending_accept_resets: usize,
    /// Resets for frames on forgotten streams over the connection's **life**; `None` is unlimited (hyper: 1,024, then
    /// the connection ends).
    pub local_error_resets: Option<usize>,
    /// Silence after which either side sends a ping; the client also when nothing is in flight.
    pub ping: Duration,
    /// Silence after which nothing new is sent on a link, and requests that have no answer's head yet are given up.
    /// Counted in bytes that come in, not in answers to pings: these queue behind everything else on a busy link.
    pub suspect: Duration,
    /// Silence after which the link is closed, with all that is in flight.
    pub dead: Duration,
    /// How long a reader may leave an answer's next chunk untaken before the answer is aborted.
    pub stall: Duration,
    /// How long opening a substream and starting HTTP/2 on it may take, and how long a request waits for that.
    pub open: Duration,
    /// How long answers in flight are waited for when a server ends.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            request_window: 64 * 1024,
            answer_window: 32 * 1024,
            connection_window: 1024 * 1024 * 1024,
            streams: 1024,
            in_flight: 1000,
            header_list: 64 * 1024,
            reset_streams: 4096,
            pending_accept_resets: 4096,
            local_error_resets: None,
            ping: Duration::from_secs(1),
            suspect: Duration::from_secs(3),
            dead: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            open: Duration::from_secs(3),
            drain: Duration::from_secs(10),
        }
    }
}

impl Settings {
    pub(super) fn client(&self, tasks: Tasks) -> client::conn::http2::Builder<Tasks> {
        let mut builder = client::conn::http2::Builder::new(tasks);
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(self.answer_window)
            .initial_connection_window_size(self.connection_window)
            .initial_max_send_streams(self.streams as usize)
            .max_concurrent_reset_streams(self.reset_streams)
            .max_local_error_reset_streams(self.local_error_resets)
            .max_header_list_size(self.header_list)
            .max_send_buf_size(self.request_window as usize)
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(NEVER)
            .keep_alive_while_idle(true);
        builder
    }

    pub(super) fn server(&self, guard: Guard) -> server::conn::http2::Builder<Guard> {
        let mut builder = server::conn::http2::Builder::new(guard);
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(self.request_window)
            .initial_connection_window_size(self.connection_window)
            .max_concurrent_streams(self.streams)
            .max_pending_accept_reset_streams(self.pending_accept_resets)
            .max_local_error_reset_streams(self.local_error_resets)
            .max_header_list_size(self.header_list)
            .max_send_buf_size(self.answer_window as usize)
            // hyper pings only after a time in which nothing came in. A client that a slow stream keeps busy hears
            // something all the time and never pings: without pings of its own, the server would count it as silent.
            .keep_alive_interval(self.ping)
            .keep_alive_timeout(NEVER)
            .auto_date_header(false);
        builder
    }
}

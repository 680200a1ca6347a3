//! Lines that the agent hasn't got, bounded in bytes: the oldest go when it stays away too long.

use dunlin_protocol::{limits, pod::Lines};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};

/// Lines that wait for the agent, bytes.
const BACKLOG_BYTES: usize = 1024 * 1024;
/// What a line costs beside its text, bytes.
const LINE_OVERHEAD: usize = 48;
/// What a line costs in a frame beside its text, bytes: its length.
const FRAMED_OVERHEAD: usize = 8;
/// Of a frame, what lines may take.
const FRAME_BYTES: usize = limits::POD_FRAME_BYTES - 1024;

/// Written by the engine's pipes, read by the link to the agent.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    kept: Mutex<Kept>,
    written: Notify,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    bytes: usize,
    /// Number of the first line in `lines`.
    first: u64,
    /// Number of the first that was not sent over the present connection.
    unsent: u64,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, line: &str) {
        self.lock().push(line);
        self.written.notify_one();
    }

    /// What was sent must be sent again: the connection is another one.
    pub(super) fn rewind(&self) {
        let mut kept = self.lock();
        kept.unsent = kept.first;
    }

    /// The next lines to send, if there are any.
    pub(super) fn take(&self) -> Option<Lines> {
        self.lock().take()
    }

    /// Every line before `number` has arrived.
    pub(super) fn forget(&self, number: u64) {
        self.lock().forget(number);
        self.arrived.notify_waiters();
    }

    /// Ends when there may be something to send. Cancel-safe; for one caller.
    pub(super) async fn written(&self) {
        self.written.notified().await;
    }

    /// Ends when every line has arrived, or after `patience`.
    pub(super) async fn emptied(&self, patience: Duration) {
        let empty = async {
            loop {
                let arrived = self.arrived.notified();
                if self.lock().lines.is_empty() {
                    return;
                }
                arrived.await;
            }
        };
        let _ = timeout(patience, empty).await;
    }
}

impl Kept {
    fn push(&mut self, line: &str) {
        self.bytes += line.len() + LINE_OVERHEAD;
        self.lines.push_back(line.to_owned());
        while self.bytes > BACKLOG_BYTES && self.drop_first() {}
    }

    fn drop_first(&mut self) -> bool {
        let Some(line) = self.lines.pop_front() else { return false };
        self.bytes -= line.len() + LINE_OVERHEAD;
        self.first += 1;
        self.unsent = self.unsent.max(self.first);
        true
    }

    fn take(&mut self) -> Option<Lines> {
        let skip = usize::try_from(self.unsent - self.first).unwrap_or(usize::MAX);
        let mut left = FRAME_BYTES;
        let fits = |line: &&String| match left.checked_sub(line.len() + FRAMED_OVERHEAD) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let lines: Vec<String> =
            self.lines.iter().skip(skip).take(limits::POD_LINES).take_while(fits).cloned().collect();
        let first = self.unsent;
        self.unsent += lines.len() as u64;
        (!lines.is_empty()).then_some(Lines { first, lines })
    }

    fn forget(&mut self, number: u64) {
        // Nobody can have what was not sent.
        let number = number.min(self.unsent);
        while self.first < number && self.drop_first() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(backlog: &Backlog) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| backlog.take()).map(|lines| (lines.first, lines.lines.len())).collect()
    }

    #[test]
    fn what_has_not_arrived_is_sent_again() {
        let backlog = Backlog::default();
        (0..10).for_each(|n| backlog.push(&n.to_string()));
        assert_eq!(numbers(&backlog), [(0, 10)]);
        assert_eq!(numbers(&backlog), []);
        backlog.forget(4);
        backlog.rewind();
        assert_eq!(numbers(&backlog), [(4, 6)]);
        backlog.push("more");
        backlog.forget(99);
        assert_eq!(numbers(&backlog), [(10, 1)], "an agent cannot have what was not sent");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let backlog = Backlog::default();
        let line = "x".repeat(1000);
        (0..3000).for_each(|_| backlog.push(&line));
        let sent = numbers(&backlog);
        assert!(sent[0].0 > 1900 && sent[0].0 < 2100, "{:?}", sent[0]);
        assert_eq!(sent.last().map(|(first, count)| first + *count as u64), Some(3000));
        assert!(backlog.lock().bytes <= BACKLOG_BYTES);
        backlog.forget(3000);
        let kept = backlog.lock();
        assert_eq!((kept.bytes, kept.first), (0, 3000));
    }

    #[test]
    fn the_longest_lines_fit_into_a_frame() {
        let backlog = Backlog::default();
        (0..20).for_each(|_| backlog.push(&"x".repeat(limits::POD_LINE_BYTES)));
        while let Some(lines) = backlog.take() {
            let message = dunlin_protocol::pod::FromShim::Output(lines);
            assert!(dunlin_protocol::codec::encode(&message, limits::POD_FRAME_BYTES).is_ok());
        }
        assert_eq!(backlog.lock().unsent, 20);
    }
}

//! What goes on on one connection: written by its substreams, read by whoever judges the connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Signs of life and open substreams of one connection.
#[derive(Debug, Clone)]
pub(super) struct Traffic(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    since: Instant,
    /// Milliseconds after `since`, plus one; zero is never.
    heard: AtomicU64,
    open: AtomicUsize,
}

impl Default for Traffic {
    fn default() -> Self {
        Self(Arc::new(Inner { since: Instant::now(), heard: AtomicU64::new(0), open: AtomicUsize::new(0) }))
    }
}

impl Traffic {
    /// Notes that bytes came in.
    pub(super) fn hear(&self) {
        let ms = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.0.heard.fetch_max(ms + 1, Ordering::Relaxed);
    }

    /// When bytes last came in.
    pub(super) fn heard(&self) -> Option<Instant> {
        let ms = self.0.heard.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.0.since + Duration::from_millis(ms))
    }

    /// Substreams that are open.
    pub(super) fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    pub(super) fn opened(&self) {
        self.0.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

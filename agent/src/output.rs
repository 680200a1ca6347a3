//! What a launched engine writes to stdout and stderr: the newest part in memory, more of it in a rotated file. Both
//! outlive the engine, so that its last words can be read after a crash.

pub(crate) mod capture;
pub(crate) mod file;
pub mod ring;

use ring::{Line, Ring};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Output kept in memory for each engine, bytes.
pub const RING_BYTES: usize = 256 * 1024;

/// The captured output of one engine.
#[derive(Debug)]
pub struct Output {
    ring: Mutex<Ring>,
    /// Number of the next line: wakes those who follow.
    newest: watch::Sender<u64>,
}

impl Default for Output {
    fn default() -> Self {
        Self { ring: Mutex::new(Ring::new(RING_BYTES)), newest: watch::Sender::new(0) }
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub fn push(&self, text: &str) {
        let next = self.lock().push(text);
        self.newest.send_replace(next);
    }

    /// The last `count` lines.
    #[must_use]
    pub fn tail(&self, count: usize) -> Vec<Line> {
        self.lock().tail(count)
    }

    /// Lines from number `from` on that are still kept, at most `count`.
    #[must_use]
    pub fn since(&self, from: u64, count: usize) -> Vec<Line> {
        self.lock().since(from, count)
    }

    /// Ends with an error when the output is gone; changes whenever a line is added.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

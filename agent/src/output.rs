//! What a launched engine writes to stdout and stderr: the newest part in memory, more of it in a rotated file. Both
//! outlive the engine, so that its last words can be read after a crash.

pub(crate) mod capture;
pub(crate) mod file;
pub mod ring;
pub mod runs;

use ring::Line;
use runs::{Runs, Selection};
use std::{
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::watch;

/// Output kept in memory for each engine and run, bytes.
pub const RING_BYTES: usize = 256 * 1024;

/// How the line begins that marks a run's start.
pub(crate) const STARTED: &str = "[dunlin] engine started";

/// The captured output of one engine.
#[derive(Debug)]
pub struct Output {
    runs: Mutex<Runs>,
    /// Number of the next line: wakes those who follow.
    newest: watch::Sender<u64>,
}

impl Default for Output {
    fn default() -> Self {
        Self { runs: Mutex::new(Runs::new(RING_BYTES)), newest: watch::Sender::new(0) }
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line.
    pub fn push(&self, text: &str) {
        self.push_at(text, Instant::now());
    }

    fn push_at(&self, text: &str, at: Instant) {
        let next = self.lock().push(text, at);
        self.newest.send_replace(next);
    }

    /// What the engine wrote so far was its previous run.
    pub fn begin_run(&self) {
        self.lock().begin();
    }

    /// What an earlier agent kept in the file: the end of a run that nobody else remembers.
    pub(crate) fn restore(&self, written: &str, at: Instant) {
        let last_run = written.rfind(STARTED).and_then(|marker| written[..marker].rfind('\n').map(|end| end + 1));
        written[last_run.unwrap_or(0)..].lines().for_each(|line| self.push_at(line, at));
    }

    /// Numbers of the lines that are asked for.
    #[must_use]
    pub fn select(&self, selection: Selection) -> Range<u64> {
        self.lock().select(selection)
    }

    /// The last `count` lines.
    #[must_use]
    pub fn tail(&self, count: usize) -> Vec<Line> {
        let runs = self.lock();
        let range = runs.select(Selection { tail: Some(count), ..Selection::default() });
        runs.since(range.start, count)
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

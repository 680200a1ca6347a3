//! How far it has come, seen from outside while it goes on.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Counts of one run, shared by all its tasks.
#[derive(Debug, Default)]
pub struct Progress {
    files_done: AtomicU32,
    files: AtomicU32,
    bytes_done: AtomicU64,
    bytes: AtomicU64,
    problem: Mutex<Option<String>>,
}

/// The counts at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Files that are whole and checked.
    pub files_done: u32,
    /// All files.
    pub files: u32,
    /// Bytes that are here, of an earlier run too.
    pub bytes_done: u64,
    /// All bytes, as far as known.
    pub bytes: u64,
    /// What is tried again.
    pub problem: Option<String>,
}

impl Progress {
    /// The counts now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen {
            files_done: self.files_done.load(Relaxed),
            files: self.files.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            problem: self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    pub(crate) fn expect(&self, files: usize, bytes: u64) {
        self.files.store(u32::try_from(files).unwrap_or(u32::MAX), Relaxed);
        self.bytes.store(bytes, Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.files_done.fetch_add(1, Relaxed);
    }

    /// A file turned out to be so large.
    pub(crate) fn grew(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn got(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    /// Bytes that counted must come again.
    pub(crate) fn lost(&self, bytes: u64) {
        let _ = self.bytes_done.fetch_update(Relaxed, Relaxed, |done| Some(done.saturating_sub(bytes)));
    }

    pub(crate) fn problem(&self, problem: Option<String>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

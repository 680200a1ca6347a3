//! The directory as the parts of one process share it: a short lock, and a counter that readers can wait on.

use super::{Directory, Event};
use dunlin_protocol::id::PeerId;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::watch;

/// A clone-able view of the process's one directory.
#[derive(Debug, Clone)]
pub struct SharedDirectory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: Mutex<Directory>,
    changes: watch::Sender<u64>,
}

impl Default for SharedDirectory {
    fn default() -> Self {
        Self(Arc::new(Inner { directory: Mutex::default(), changes: watch::Sender::new(0) }))
    }
}

impl SharedDirectory {
    /// Looks at the directory under its lock. `read` must be quick and must not call back into the directory.
    pub fn read<T>(&self, read: impl FnOnce(&Directory) -> T) -> T {
        read(&self.lock())
    }

    /// Takes in what was learnt at `now`, and wakes those who wait for a change. Returns whether there was one.
    pub fn apply(&self, event: Event, now: Instant) -> bool {
        self.changing(|directory| directory.apply(event, now))
    }

    /// The same, of something that `source` handed over.
    pub fn apply_from(&self, source: PeerId, event: Event, now: Instant) -> bool {
        self.changing(|directory| directory.apply_from(source, event, now))
    }

    fn changing(&self, change: impl FnOnce(&mut Directory) -> bool) -> bool {
        let changed = change(&mut self.lock());
        if changed {
            self.count();
        }
        changed
    }

    /// Forgets what is past its time at `now`.
    pub fn expire(&self, now: Instant) {
        if self.lock().expire(now) {
            self.count();
        }
    }

    /// A counter that grows with each visible change: of replicas, reachability, or load.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn count(&self) {
        self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The directory holds no invariant that a panic in a reader could break, so a poisoned lock is taken all the same.
    fn lock(&self) -> MutexGuard<'_, Directory> {
        self.0.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

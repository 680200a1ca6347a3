//! What was used within the last 60 seconds: a sliding log. Pure.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// A limit by the minute is one in any time of this length.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Entries up to which each use has its own; beyond it, uses that follow each other closely share one and end with the
/// last of them, so that the log errs by a share of this many in the safe direction only.
const ENTRIES: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Entry {
    first: Instant,
    last: Instant,
    amount: i64,
}

/// Uses, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    entries: VecDeque<Entry>,
    sum: i64,
}

impl Log {
    /// Forgets what is older than the window.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.entries.front()
            && entry.last + WINDOW <= now
        {
            self.sum -= entry.amount;
            self.entries.pop_front();
        }
    }

    pub(super) fn sum(&self) -> i64 {
        self.sum
    }

    /// Notes a use.
    pub(super) fn add(&mut self, amount: i64, now: Instant) {
        if amount <= 0 {
            return;
        }
        self.sum += amount;
        let crowded = self.entries.len() >= ENTRIES;
        let shared = |entry: &Entry| crowded && now.saturating_duration_since(entry.first) < WINDOW / ENTRIES as u32;
        match self.entries.back_mut() {
            Some(entry) if entry.last == now || shared(entry) => {
                entry.amount += amount;
                entry.last = now;
            }
            _ => self.entries.push_back(Entry { first: now, last: now, amount }),
        }
    }

    /// Takes back a part of what was used at `at`.
    pub(super) fn refund(&mut self, at: Instant, amount: i64) {
        let holds = |entry: &&mut Entry| entry.first <= at && at <= entry.last;
        if let Some(entry) = self.entries.iter_mut().rev().take_while(|entry| entry.last >= at).find(holds) {
            let back = amount.clamp(0, entry.amount);
            entry.amount -= back;
            self.sum -= back;
        }
    }

    /// When so much of it will have been forgotten; `None` when there never is so much.
    pub(super) fn frees(&self, amount: i64) -> Option<Instant> {
        let mut freed = 0;
        self.entries.iter().find_map(|entry| {
            freed += entry.amount;
            (freed >= amount).then(|| entry.last + WINDOW)
        })
    }

    /// When all of it will have been forgotten.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.entries.back().map(|entry| entry.last + WINDOW)
    }
}

//! What is remembered between two looks, and may be lost: back-off, and pods that the watch has not shown yet.

use super::later;
use crate::settings::Patience;
use k8s_openapi::jiff::Timestamp;
use std::{collections::HashMap, time::Duration};

/// What is remembered about one Playground.
#[derive(Debug, Default)]
pub struct Memory {
    /// Pods that were created and not yet seen, by uid.
    unseen: HashMap<String, Timestamp>,
    /// Pods that could not be created, by name: how often, and when to try again.
    refused: HashMap<String, (u32, Timestamp)>,
    /// Replicas that ended, by ordinal: how often in a row, and when to try again.
    failed: HashMap<i32, (u32, Timestamp)>,
    /// Flavors that had no room in time, by ordinal.
    tried: HashMap<i32, usize>,
}

fn backoff(tries: u32, patience: &Patience) -> Duration {
    patience.retry.saturating_mul(1 << tries.min(16)).min(patience.retry_most)
}

impl Memory {
    /// A pod was created.
    pub fn created(&mut self, name: &str, uid: &str, now: Timestamp) {
        self.unseen.insert(uid.to_owned(), now);
        self.refused.remove(name);
    }

    /// A pod could not be created: when to try again.
    pub fn refused(&mut self, name: &str, now: Timestamp, patience: &Patience) {
        let tries = self.refused.get(name).map_or(0, |(tries, _)| *tries);
        self.refused.insert(name.to_owned(), (tries + 1, later(now, backoff(tries, patience))));
    }

    pub(super) fn not_before(&self, name: &str) -> Option<Timestamp> {
        self.refused.get(name).map(|(_, at)| *at)
    }

    /// Nothing is known of this name any more.
    pub fn forget(&mut self, name: &str) {
        self.refused.remove(name);
    }

    pub(super) fn seen(&mut self, uid: &str) {
        self.unseen.remove(uid);
    }

    pub(super) fn is_unseen(&mut self, uid: &str, now: Timestamp, limit: Duration) -> bool {
        let fresh = self.unseen.get(uid).is_some_and(|at| later(*at, limit) > now);
        if !fresh {
            self.unseen.remove(uid);
        }
        fresh
    }

    pub(super) fn failed(&mut self, ordinal: i32, now: Timestamp, patience: &Patience) {
        let times = self.failed.get(&ordinal).map_or(0, |(times, _)| *times);
        self.failed.insert(ordinal, (times + 1, later(now, backoff(times, patience))));
    }

    /// When a replica that ended may be replaced. At once, if it is not remembered why not.
    pub(super) fn replace_at(&self, ordinal: i32, now: Timestamp) -> Timestamp {
        self.failed.get(&ordinal).map_or(now, |(_, at)| *at)
    }

    pub(super) fn well(&mut self, ordinal: i32) {
        self.failed.remove(&ordinal);
    }

    pub(super) fn flavors_tried(&self, ordinal: i32) -> usize {
        self.tried.get(&ordinal).copied().unwrap_or(0)
    }

    pub(super) fn try_next_flavor(&mut self, ordinal: i32) {
        *self.tried.entry(ordinal).or_default() += 1;
    }

    pub(super) fn placed(&mut self, ordinal: i32) {
        self.tried.remove(&ordinal);
    }
}

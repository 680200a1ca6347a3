//! What a key costs each request, for `benches/limits.rs`: the functions that requests go through, with no mesh around them.

use crate::{
    auth,
    keys::{Grant, Keys},
    limits::{self, Limiter, Taken},
    meter,
};
use dunlin_node::clock;
use dunlin_protocol::{id::PeerId, key::KeyKind};
use http::HeaderMap;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Tokens that a request reserves, and those that it uses in truth.
const RESERVED: i64 = 300;
const USED: i64 = 200;

/// Keys, and the limits of all of them as one endpoint holds them: after the first request of each key its lease is warm.
pub struct Cost {
    keys: Keys,
    limiter: Mutex<Limiter>,
}

impl Cost {
    /// Nothing is used yet.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self { keys, limiter: Mutex::new(Limiter::new(PeerId::random(), 1, [], Instant::now())) }
    }

    fn grant(&self, head: &HeaderMap) -> Option<Arc<Grant>> {
        self.keys.admit(auth::key(head)?, KeyKind::Client, clock::unix_s()).ok()
    }

    /// A key is read from a request's head, found and compared. Whether it opens the endpoint.
    #[must_use]
    pub fn key(&self, head: &HeaderMap) -> bool {
        self.grant(head).is_some()
    }

    /// The same; then its limits are taken, what is left is written into the answer's head, and the limits are settled.
    /// Whether it passed.
    #[must_use]
    pub fn request(&self, head: &HeaderMap, answer: &mut HeaderMap) -> bool {
        let Some(grant) = self.grant(head) else { return false };
        let limiter = || self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, caps, now) = (&grant.key.id, limits::caps(&grant), Instant::now());
        let cost = [1, RESERVED, 1];
        let taken = limiter().take(key, &caps, &cost, false, now);
        let left = {
            let limiter = limiter();
            [0, 1].map(|kind| limiter.left(key, kind, now))
        };
        meter::tell(left, answer);
        limiter().ended(key, &cost, now, Some(USED), Instant::now());
        taken == Taken::Yes
    }
}

//! Engines that come up on this machine while the agent runs. Those that go away again are noticed by their replicas.

use crate::engine::{
    Client,
    discover::{Found, answers, found_at},
};
use dunlin_protocol::runtime::Catalogue;
use futures::future::join_all;
use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Between two rounds: a refused connection on loopback costs microseconds.
pub(crate) const ROUND: Duration = Duration::from_secs(1);
/// Pauses before what answers and is no engine is asked again: it may be one that still loads, or somebody else's server
/// that should be left in peace.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Looks at local ports again and again.
#[derive(Debug)]
pub(crate) struct Scout {
    places: Vec<Place>,
    client: Client,
    catalogue: Arc<Catalogue>,
}

#[derive(Debug)]
struct Place {
    port: u16,
    pause: Duration,
    not_before: Option<Instant>,
}

impl Scout {
    pub(crate) fn new(ports: BTreeSet<u16>, client: Client, catalogue: Arc<Catalogue>) -> Self {
        let place = |port| Place { port, pause: FIRST_PAUSE, not_before: None };
        Self { places: ports.into_iter().map(place).collect(), client, catalogue }
    }

    /// Engines that answer now at ports that are not `taken`.
    pub(crate) async fn round(&mut self, taken: &HashSet<u16>, now: Instant) -> Vec<Found> {
        let (client, catalogue) = (&self.client, &self.catalogue);
        let due = |place: &&mut Place| !taken.contains(&place.port) && place.not_before.is_none_or(|at| now >= at);
        let looks = self.places.iter_mut().filter(due).map(|place| async move {
            let Some(url) = answers(place.port).await else {
                (place.pause, place.not_before) = (FIRST_PAUSE, None);
                return None;
            };
            let found = found_at(client, url, catalogue).await;
            if found.is_none() {
                place.not_before = Some(now + place.pause);
                place.pause = (place.pause * 2).min(LONGEST_PAUSE);
            }
            found
        });
        join_all(looks).await.into_iter().flatten().collect()
    }
}

//! Look-ups of topics in the DHT: joined by topic, bounded in number, each record verified at most once.

use crate::{directory::SharedDirectory, handle::LookupError};
use dunlin_protocol::{
    id::{ReplicaId, Version},
    record::{self, RecordState, TopicRecord},
    topic::Topic,
};
use libp2p::kad::QueryId;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Look-ups under way at once.
const LOOK_UPS: usize = 64;
/// Of these, kept free of models, which clients name as they like: without proxies and agents nothing works.
const FOR_ROLES: usize = 8;
/// Callers that wait for one look-up.
const WAITERS: usize = 4096;
/// How long a look-up goes on after its first live record, to hear other storers.
const GRACE: Duration = Duration::from_millis(100);

/// Who waits for a look-up's end.
pub(crate) type Waiter = oneshot::Sender<Result<usize, LookupError>>;

/// The look-ups under way.
#[derive(Default)]
pub(crate) struct LookUps {
    running: HashMap<QueryId, LookUp>,
}

struct LookUp {
    topic: Topic,
    seen: HashMap<ReplicaId, Seen>,
    waiters: Vec<Waiter>,
    first_live: Option<Instant>,
}

struct Seen {
    version: Version,
    live: bool,
}

impl LookUps {
    /// Joins a look-up of `topic` under way, or starts one through `start`, which gives the query's id.
    pub(crate) fn join(&mut self, topic: Topic, waiter: Option<Waiter>, start: impl FnOnce(&Topic) -> QueryId) {
        if let Some(running) = self.running.values_mut().find(|running| running.topic == topic) {
            if let Some(waiter) = waiter {
                running.add(waiter);
            }
            return;
        }
        let most = if matches!(topic, Topic::Role(_)) { LOOK_UPS } else { LOOK_UPS - FOR_ROLES };
        if self.running.len() >= most {
            if let Some(waiter) = waiter {
                // An error means that the caller has gone.
                let _ = waiter.send(Err(LookupError::Busy));
            }
            return;
        }
        let query = start(&topic);
        let waiters = waiter.into_iter().collect();
        self.running.insert(query, LookUp { topic, seen: HashMap::new(), waiters, first_live: None });
    }

    /// Takes in the records that one storer returned. Returns those that are new, verified.
    pub(crate) fn found(
        &mut self,
        query: QueryId,
        value: &[u8],
        directory: &SharedDirectory,
        now: Instant,
    ) -> Vec<TopicRecord> {
        let Some(look_up) = self.running.get_mut(&query) else { return Vec::new() };
        let Ok(records) = record::decode_list(value) else {
            tracing::debug!(topic = %look_up.topic, "a storer returned something that is not a list of records");
            return Vec::new();
        };
        let mut fresh = Vec::new();
        for signed in records {
            let Ok(claimed) = signed.peek() else { continue };
            if claimed.topic != look_up.topic || look_up.has_seen(&claimed) {
                continue;
            }
            // Verifying is the dear part: what the directory has in this or a later version is only counted.
            let (known, outdated) = directory.read(|directory| {
                let known = directory.record_version(&claimed.topic, &claimed.replica);
                (known, directory.is_outdated(&claimed.replica.peer, claimed.version))
            });
            if outdated {
                continue;
            }
            if known.is_some_and(|known| known >= claimed.version) {
                look_up.note(&claimed, now);
                continue;
            }
            match record::verify(&signed) {
                Ok(verified) => {
                    look_up.note(&verified, now);
                    fresh.push(verified);
                }
                Err(error) => {
                    tracing::debug!(topic = %look_up.topic, replica = %claimed.replica, %error, "record refused");
                }
            }
        }
        fresh
    }

    /// Ends a look-up and answers those who wait. Returns its topic and the number of live records.
    pub(crate) fn finished(&mut self, query: QueryId) -> Option<(Topic, usize)> {
        let look_up = self.running.remove(&query)?;
        let live = look_up.seen.values().filter(|seen| seen.live).count();
        for waiter in look_up.waiters {
            // An error means that the caller has gone.
            let _ = waiter.send(Ok(live));
        }
        Some((look_up.topic, live))
    }

    /// Look-ups that found something long enough ago to be answered now.
    pub(crate) fn ripe(&self, now: Instant) -> Vec<QueryId> {
        let ripe = |look_up: &LookUp| look_up.first_live.is_some_and(|at| now.saturating_duration_since(at) >= GRACE);
        self.running.iter().filter(|(_, look_up)| ripe(look_up)).map(|(query, _)| *query).collect()
    }
}

impl LookUp {
    fn add(&mut self, waiter: Waiter) {
        if self.waiters.len() >= WAITERS {
            let _ = waiter.send(Err(LookupError::Busy));
            return;
        }
        self.waiters.push(waiter);
    }

    fn has_seen(&self, record: &TopicRecord) -> bool {
        self.seen.get(&record.replica).is_some_and(|seen| seen.version >= record.version)
    }

    fn note(&mut self, record: &TopicRecord, now: Instant) {
        let live = matches!(record.state, RecordState::Live { .. });
        self.seen.insert(record.replica, Seen { version: record.version, live });
        if live {
            self.first_live.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::{ModelId, PeerId, Role};
    use libp2p::kad::{self, store::MemoryStore};

    #[test]
    fn look_ups_of_models_leave_room_for_roles() {
        let own = PeerId::random();
        let mut kad = kad::Behaviour::new(own, MemoryStore::new(own));
        let mut look_ups = LookUps::default();
        let mut ask = |topic: Topic| {
            let (waiter, mut answer) = oneshot::channel();
            look_ups.join(topic, Some(waiter), |_| kad.get_closest_peers(PeerId::random()));
            !matches!(answer.try_recv(), Ok(Err(LookupError::Busy)))
        };
        let models = (0..LOOK_UPS).map(|n| Topic::Model(ModelId::new(&format!("m{n}")).unwrap()));
        assert_eq!(models.filter(|topic| ask(topic.clone())).count(), LOOK_UPS - FOR_ROLES);
        assert!(ask(Topic::Role(Role::Proxy)) && ask(Topic::Role(Role::Agent)));
    }
}

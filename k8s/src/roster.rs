//! Which pods are replicas: what the Playgrounds' statuses say as they are stored, and nothing else. Kept by the controller,
//! asked when a pod wants to join the mesh.

use dunlin_protocol::id::PeerId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, watch};

/// A replica as it is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Its pod's uid.
    pub uid: String,
    /// Its name, and its pod's.
    pub name: String,
    /// What clients call its model.
    pub model: String,
    /// Who speaks for it in the mesh.
    pub peer: Option<PeerId>,
    /// It drains, or has ended: nobody is let in for it any more.
    pub leaves: bool,
}

/// The record. Clones are the same one. As large as the statuses that it is made from.
#[derive(Debug, Clone, Default)]
pub struct Roster(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    table: Mutex<Table>,
    /// Counts what is put on record.
    stored: watch::Sender<u64>,
    /// A pod was bound to a peer, which is to be put on record.
    bound: Notify,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<String, Place>,
    /// Uids by namespace and name of the Playground.
    of: HashMap<(String, String), Vec<String>>,
}

#[derive(Debug)]
struct Place {
    namespace: String,
    recorded: Recorded,
    /// Who asked first, until that is on record.
    bound: Option<PeerId>,
}

impl Place {
    fn peer(&self) -> Option<PeerId> {
        self.recorded.peer.or(self.bound)
    }
}

impl Roster {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is stored of a Playground now.
    pub fn put(&self, namespace: &str, playground: &str, replicas: Vec<Recorded>) {
        let mut table = self.lock();
        let key = (namespace.to_owned(), playground.to_owned());
        let before = table.of.remove(&key).unwrap_or_default();
        let mut bound: HashMap<String, PeerId> =
            before.into_iter().filter_map(|uid| Some((uid.clone(), table.places.remove(&uid)?.bound?))).collect();
        let uids = replicas.iter().map(|recorded| recorded.uid.clone()).collect();
        for recorded in replicas {
            let bound = bound.remove(&recorded.uid);
            let place = Place { namespace: namespace.to_owned(), bound, recorded };
            table.places.insert(place.recorded.uid.clone(), place);
        }
        table.of.insert(key, uids);
        drop(table);
        self.0.stored.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// A Playground has gone.
    pub fn remove(&self, namespace: &str, playground: &str) {
        let mut table = self.lock();
        let uids = table.of.remove(&(namespace.to_owned(), playground.to_owned()));
        for uid in uids.into_iter().flatten() {
            table.places.remove(&uid);
        }
    }

    /// Nothing is known any more: somebody else leads.
    pub fn clear(&self) {
        *self.lock() = Table::default();
    }

    /// The replica whose pod this is, unless it is about to go.
    #[must_use]
    pub fn replica(&self, namespace: &str, uid: &str) -> Option<Recorded> {
        let table = self.lock();
        let place = table.places.get(uid).filter(|place| place.namespace == namespace)?;
        (!place.recorded.leaves).then(|| place.recorded.clone())
    }

    /// Who speaks for a pod.
    #[must_use]
    pub fn peer(&self, uid: &str) -> Option<PeerId> {
        self.lock().places.get(uid)?.peer()
    }

    /// Waits until `peer` is on record, and stored, as the one that speaks for a pod. `false` if another does, or the pod is
    /// on record no more. A caller that does not wait for the end may ask again: what was begun goes on.
    pub async fn bind(&self, uid: &str, peer: PeerId) -> bool {
        let mut stored = self.0.stored.subscribe();
        loop {
            stored.borrow_and_update();
            {
                let mut table = self.lock();
                let Some(place) = table.places.get_mut(uid) else { return false };
                if place.peer().is_some_and(|other| other != peer) {
                    return false;
                }
                if place.recorded.peer == Some(peer) {
                    return true;
                }
                place.bound = Some(peer);
            }
            self.0.bound.notify_one();
            if stored.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Waits until a pod was bound that is not on record yet.
    pub async fn bound(&self) {
        self.0.bound.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn recorded(uid: &str, peer: Option<PeerId>) -> Recorded {
        Recorded { uid: uid.to_owned(), name: "chat-0-1".to_owned(), model: "m".to_owned(), peer, leaves: false }
    }

    #[tokio::test]
    async fn a_pod_is_bound_once_that_is_stored_and_to_one_peer() {
        let roster = Roster::default();
        let (one, other) = (PeerId::random(), PeerId::random());
        assert!(!roster.bind("u", one).await, "on no record");
        roster.put("a", "chat", vec![recorded("u", None)]);
        let waits = timeout(Duration::from_millis(20), roster.bind("u", one)).await;
        assert!(waits.is_err(), "not stored yet");
        timeout(Duration::from_secs(1), roster.bound()).await.unwrap();
        assert_eq!(roster.peer("u"), Some(one));
        assert!(!roster.bind("u", other).await);
        // A status that was under way says nothing of it yet.
        roster.put("a", "chat", vec![recorded("u", None)]);
        assert_eq!(roster.peer("u"), Some(one));
        let (bound, ()) = tokio::join!(roster.bind("u", one), async {
            roster.put("a", "chat", vec![recorded("u", Some(one))]);
        });
        assert!(bound);
        assert!(!roster.bind("u", other).await);
        assert!(roster.replica("b", "u").is_none(), "another namespace's token");
        let leaves = Recorded { leaves: true, ..recorded("u", Some(one)) };
        roster.put("a", "chat", vec![leaves]);
        assert!(roster.replica("a", "u").is_none());
        roster.remove("a", "chat");
        assert_eq!(roster.peer("u"), None);
    }
}

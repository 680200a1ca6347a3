//! Short work beside the event loop: fetching from members over the hop, and storing on disk. Bounded, owned, ended
//! with the loop.

use crate::{
    hop::{self, Hop},
    info::{self, Puller},
    members::Members,
    routes::AGENTS_PATH,
    state::{KnownPeer, StateDir},
};
use bytes::Bytes;
use dunlin_protocol::{id::PeerId, limits, revocation::RevocationList};
use futures::future::BoxFuture;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// Tasks that run at once.
const RUNNING: usize = 32;
/// Tasks that wait. Beyond it the oldest is dropped: what it would have fetched is also refreshed by other ways.
const WAITING: usize = 4096;
/// Path of the revocation list on the hop.
pub(crate) const REVOCATIONS_PATH: &str = "/mesh/revocations";

/// What a task came to, where that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done.
    Done,
    /// A member was asked for its revocation list, and that had something new, or not.
    Revocations { peer: PeerId, news: bool },
    /// An agent was not reached.
    Untold(PeerId),
}

/// The tasks of one event loop.
#[derive(Default)]
pub(crate) struct Pulls {
    running: JoinSet<Outcome>,
    waiting: VecDeque<BoxFuture<'static, Outcome>>,
    /// Whether the revocation list is about to be stored, as it will be then.
    storing: Arc<AtomicBool>,
}

impl Pulls {
    /// Waits for one task to end; `None` when none runs. Cancel-safe.
    pub(crate) async fn finished(&mut self) -> Option<Outcome> {
        let outcome = self.running.join_next().await?.unwrap_or_else(|error| {
            tracing::error!(%error, "task ended badly");
            Outcome::Done
        });
        if let Some(next) = self.waiting.pop_front() {
            self.running.spawn(next);
        }
        Some(outcome)
    }

    /// Asks a member what it serves.
    pub(crate) fn info(&mut self, puller: Puller, peer: PeerId) {
        self.start(Box::pin(async move {
            puller.pull(peer).await;
            Outcome::Done
        }));
    }

    /// Says to an agent how many of them there are.
    pub(crate) fn tell_agents(&mut self, hop: Hop, peer: PeerId, agents: usize) {
        self.start(Box::pin(async move {
            let body = hop::Body::from(Bytes::from(agents.to_string()));
            match info::ask(&hop, peer, http::Method::PUT, AGENTS_PATH, body, 0).await {
                // An older version knows nothing of this, and goes by what it finds out itself.
                Ok(_) | Err(info::Error::Status(_)) => Outcome::Done,
                Err(error) => {
                    tracing::debug!(%peer, %error, "agent not told how many there are");
                    Outcome::Untold(peer)
                }
            }
        }));
    }

    /// Fetches a member's revocation list, if it is another one, and merges it.
    pub(crate) fn revocations(&mut self, hop: Hop, members: Members, peer: PeerId) {
        self.start(Box::pin(async move {
            let new = fetch_revocations(&hop, &members, peer).await.unwrap_or_else(|error| {
                tracing::debug!(%peer, %error, "revocation list not fetched");
                0
            });
            if new > 0 {
                tracing::debug!(%peer, new, "revocations fetched");
            }
            Outcome::Revocations { peer, news: new > 0 }
        }));
    }

    /// Stores the revocation list as it is when the task gets to it: one such task waits at most.
    pub(crate) fn store_revocations(&mut self, state: StateDir, members: Members) {
        if self.storing.swap(true, Ordering::AcqRel) {
            return;
        }
        let storing = Arc::clone(&self.storing);
        let newest = move || {
            // What is added from here on needs another task.
            storing.store(false, Ordering::Release);
            members.revocations()
        };
        self.store("revocations", move || state.store_revocations(newest));
    }

    /// Stores where peers were reached.
    pub(crate) fn store_peers(&mut self, state: StateDir, known: Vec<KnownPeer>) {
        self.store("known peers", move || state.store_known_peers(known));
    }

    fn store<E: std::fmt::Display + Send + 'static>(
        &mut self,
        what: &'static str,
        store: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) {
        // Not one of those that wait, of which the oldest may be dropped.
        self.running.spawn(async move {
            match tokio::task::spawn_blocking(store).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(what, %error, "not stored"),
                Err(error) => tracing::error!(what, %error, "not stored"),
            }
            Outcome::Done
        });
    }

    fn start(&mut self, task: BoxFuture<'static, Outcome>) {
        if self.running.len() < RUNNING {
            self.running.spawn(task);
            return;
        }
        if self.waiting.len() >= WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(task);
    }

    /// Lets what runs come to its end, at most `longest`.
    pub(crate) async fn drain(mut self, longest: Duration) {
        let all = async { while self.finished().await.is_some() {} };
        if tokio::time::timeout(longest, all).await.is_err() {
            tracing::debug!("tasks cut short at the end of the node");
        }
    }
}

/// Asks for a list with the name of the own one, which tells the other side whether it should ask back.
async fn fetch_revocations(hop: &Hop, members: &Members, peer: PeerId) -> Result<usize, info::Error> {
    let tag = members.revocations().version().entity_tag();
    let request = http::Request::get(REVOCATIONS_PATH).header(http::header::IF_NONE_MATCH, tag);
    let request = request.body(hop::Body::empty())?;
    let bytes = match info::send(hop, peer, request, limits::REVOCATION_LIST_BYTES).await {
        Err(info::Error::Status(http::StatusCode::NOT_MODIFIED)) => return Ok(0),
        answered => answered?,
    };
    let entries = RevocationList::decode(&bytes).map_err(|error| info::Error::Body(Box::new(error)))?;
    let members = members.clone();
    let merged = tokio::task::spawn_blocking(move || members.merge_revocations(entries).len()).await;
    merged.map_err(|error| info::Error::Body(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh;

    #[tokio::test]
    async fn one_store_waits_however_often_it_is_asked_for() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        mesh::create(&state, Default::default(), None, 1000).unwrap();
        let members = mesh::load(&state, 1000).unwrap().members;
        let mut pulls = Pulls::default();
        for _ in 0..100 {
            pulls.store_revocations(state.clone(), members.clone());
        }
        assert_eq!(pulls.running.len() + pulls.waiting.len(), 1);
        assert!(pulls.finished().await.is_some());
        assert!(home.path().join("revocations").exists());
        pulls.store_revocations(state, members);
        assert_eq!(pulls.running.len(), 1, "what changed since is stored as well");
    }
}

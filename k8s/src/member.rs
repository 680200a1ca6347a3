//! The orchestrator as a member of the mesh: what it sees of replicas there, and how their memberships end.

mod revoker;

pub use revoker::Revocations;

use crate::{mesh::Sight, roster::Roster, world::OwnPod};
use dunlin_node::{Handle, hop};
use dunlin_protocol::{announcement::ReplicaState, hop::ENGINES_PATH, id::PeerId};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Between two questions to a replica that does not serve yet.
const LOOK: Duration = Duration::from_secs(2);
/// The same to one that says that it serves, and that nothing else was heard of.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Of one agent.
const ANSWER: Duration = Duration::from_secs(3);
const ANSWER_BYTES: usize = 256 * 1024;
/// Replicas that are asked in one round: those that wait longest.
const ASKED: usize = 64;
/// What changes in the mesh is looked at together.
const TOGETHER: Duration = Duration::from_millis(250);

/// The orchestrator's view of the mesh. Cheap to clone.
#[derive(Clone)]
pub struct Member(Arc<Inner>);

struct Inner {
    handle: Handle,
    roster: Roster,
    /// This cluster's replicas that have joined.
    watched: Mutex<HashMap<PeerId, Seen>>,
    changed: Notify,
}

/// What is known of one peer.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Seen {
    /// Whether it serves, by what is gossiped or registered.
    listed: Option<bool>,
    /// Whether it serves, by its own word: all that an orchestrator has which has just begun to lead.
    told: bool,
    /// How far loading has come, per cent.
    progress: Option<i32>,
    asked: Option<Instant>,
}

impl Seen {
    fn serves(&self) -> bool {
        self.listed.unwrap_or(self.told)
    }

    /// Since when it should be asked, if it should.
    fn due(&self, now: Instant) -> Option<Instant> {
        let pause = match (self.listed, self.told) {
            (Some(true), _) => return None,
            (None, true) => LOOK_AGAIN,
            _ => LOOK,
        };
        let at = self.asked.map_or(now, |asked| asked + pause);
        (at <= now).then_some(at)
    }
}

/// What of an agent's answer counts here.
#[derive(Deserialize)]
struct Engine {
    state: ReplicaState,
    fetching: Option<Fetching>,
}

#[derive(Deserialize)]
struct Fetching {
    bytes_done: u64,
    bytes: u64,
    ended: bool,
}

impl Member {
    /// Sees what this node sees. Which pod is which peer stands in `roster`.
    #[must_use]
    pub fn new(handle: Handle, roster: Roster) -> Self {
        Self(Arc::new(Inner { handle, roster, watched: Mutex::default(), changed: Notify::new() }))
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<PeerId, Seen>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows what the mesh says, and asks replicas that don't serve yet how far they are, until `stop`.
    pub async fn watch(&self, stop: CancellationToken) {
        let follow = async {
            let mut changes = self.0.handle.directory().changed();
            loop {
                self.list();
                // Whatever changes meanwhile is seen at the end of the pause.
                sleep(TOGETHER).await;
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let ask = async {
            loop {
                self.ask_all().await;
                sleep(TOGETHER).await;
            }
        };
        stop.run_until_cancelled(async { tokio::join!(follow, ask) }).await;
    }

    /// Changes what is known of some peers, and tells if that shows.
    fn note(&self, change: impl Fn(&PeerId, &mut Seen)) {
        let mut shows = false;
        for (peer, seen) in self.watched().iter_mut() {
            let before = *seen;
            change(peer, seen);
            shows |= (before.serves(), before.progress) != (seen.serves(), seen.progress);
        }
        if shows {
            self.0.changed.notify_one();
        }
    }

    fn list(&self) {
        let watched: HashSet<PeerId> = self.watched().keys().copied().collect();
        let mut listed: HashMap<PeerId, bool> = HashMap::new();
        self.0.handle.directory().read(|directory| {
            for replica in directory.all_replicas().filter(|replica| watched.contains(&replica.id.peer)) {
                *listed.entry(replica.id.peer).or_default() |= replica.state == ReplicaState::Ready;
            }
        });
        self.note(|peer, seen| {
            if watched.contains(peer) {
                let listed = listed.get(peer).copied();
                // What it said before it was listed is old when it is so no more.
                seen.told &= seen.listed.is_none() || listed.is_some();
                seen.listed = listed;
            }
        });
    }

    async fn ask_all(&self) {
        let now = Instant::now();
        let mut due: Vec<(Instant, PeerId)> =
            self.watched().iter().filter_map(|(peer, seen)| Some((seen.due(now)?, *peer))).collect();
        due.sort_unstable();
        due.truncate(ASKED);
        let asked = due.iter().map(|(_, peer)| async move { (*peer, timeout(ANSWER, self.ask(*peer)).await) });
        let answers: HashMap<_, _> = futures::future::join_all(asked).await.into_iter().collect();
        self.note(|peer, seen| {
            let Some(answer) = answers.get(peer) else { return };
            seen.asked = Some(now);
            // Without an answer, its last word counts.
            if let Ok(Some((told, progress))) = answer {
                (seen.told, seen.progress) = (*told, *progress);
            }
        });
    }

    /// Whether an agent serves, and how far its weights have come.
    async fn ask(&self, peer: PeerId) -> Option<(bool, Option<i32>)> {
        self.0.handle.connect(peer).await.ok()?;
        let request = http::Request::builder().uri(ENGINES_PATH).body(hop::Body::empty()).ok()?;
        let answer = self.0.handle.hop().send(peer, request).await.ok()?;
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await.ok()?.to_bytes();
        let engines: Vec<Engine> = serde_json::from_slice(&body).ok()?;
        let serves = engines.iter().any(|engine| engine.state == ReplicaState::Ready);
        let fetching = engines.into_iter().find_map(|engine| engine.fetching).filter(|fetching| !fetching.ended);
        let percent = fetching.map(|it| it.bytes_done.saturating_mul(100) / it.bytes.max(1));
        Some((serves, percent.map(|percent| i32::try_from(percent.min(100)).unwrap_or(100))))
    }

    /// What is seen of the replica in this pod, whose peer is `known` from the record.
    #[must_use]
    pub fn sight(&self, pod: &OwnPod, known: Option<&str>) -> Sight {
        let Some(peer) = self.0.roster.peer(&pod.uid).or_else(|| known?.parse().ok()) else { return Sight::default() };
        let mut watched = self.watched();
        let is_new = !watched.contains_key(&peer);
        let seen = *watched.entry(peer).or_default();
        drop(watched);
        if is_new {
            // What was said before it was watched is in the directory.
            self.list();
        }
        let serving = seen.serves();
        Sight { serving, peer: Some(peer.to_string()), progress: seen.progress.filter(|_| !serving) }
    }

    /// Waits until something may be seen differently.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// A replica that has gone is not looked at any more.
    pub fn forget(&self, peer: &PeerId) {
        self.watched().remove(peer);
    }
}

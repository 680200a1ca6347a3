//! What is to be done for one Playground. Pure: facts in, a new status and a list of steps out.
//!
//! In three strokes: [`survey`] brings the record up to date, retires replicas and opens places for new ones; placement
//! fills these (`plan`); [`settle`] says which pods to create, and what to tell people.
//!
//! Two rules keep it safe when it is killed at any point. A pod is created only under a name that stands in the stored
//! status already; and only the uid that the status records is a replica, whatever a pod's labels and owners say.

mod conditions;
mod memory;
mod rollout;

pub use conditions::Trouble;
pub use memory::Memory;
pub(crate) use rollout::wait_of;

use crate::{
    mesh::Sight,
    names,
    plan::{Place, Tried},
    resources::{Phase, Playground, PlaygroundStatus, ReplicaState},
    revision::Wanted,
    settings::Patience,
    world::{OwnPod, Stage, Word},
};
use k8s_openapi::jiff::{Timestamp, Unit};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// How long a pod that was created may be missing from the watch before it counts as gone.
const UNSEEN: Duration = Duration::from_secs(60);

/// All that is known about one Playground.
pub struct Facts<'a> {
    /// Its name.
    pub name: &'a str,
    /// It.
    pub playground: &'a Playground,
    /// What its replicas shall be made from; or why that can't be told.
    pub wanted: Result<&'a Wanted, &'a Trouble>,
    /// Seconds that the flavors of that wait for room, in their order.
    pub waits: &'a [(String, Duration)],
    /// What the API server refused of what belongs to it, but for pods.
    pub refused: Option<&'a Trouble>,
    /// The pods that it controls, by uid.
    pub pods: &'a HashMap<String, OwnPod>,
    /// What the mesh sees.
    pub sight: &'a dyn Fn(&OwnPod, Option<&str>) -> Sight,
    /// How patient to be.
    pub patience: &'a Patience,
    /// The time.
    pub now: Timestamp,
}

/// A pod that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Its name.
    pub name: String,
    /// Its uid: another pod of that name is left alone.
    pub uid: String,
}

/// A record brought up to date, with places that are still empty.
#[derive(Debug, Default)]
pub struct Draft {
    /// The record.
    pub status: PlaygroundStatus,
    /// Pods that are to go.
    pub endings: Vec<Ending>,
    /// Peers whose pods have gone.
    pub revoked: Vec<String>,
    /// When to look again at the latest.
    pub again: Option<Timestamp>,
    /// Since when there has been no room for one more replica of an update.
    cramped: bool,
    retired: HashSet<String>,
}

impl Draft {
    /// The replicas that need a place: index into the record, and how many flavors were tried in vain.
    pub fn unplaced<'d>(&'d self, memory: &'d Memory) -> impl Iterator<Item = (usize, usize)> + 'd {
        let states = self.status.replica_states.iter().enumerate();
        let empty = states.filter(|(_, state)| state.flavor.is_none() && state.pod_uid.is_none());
        empty.map(|(index, state)| (index, memory.flavors_tried(state.ordinal)))
    }

    /// Nodes of the replicas of the wanted revision that stay, one entry for each.
    pub fn occupied(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        let stays = |state: &&ReplicaState| {
            state.revision == self.status.revision && !matches!(state.phase, Phase::Draining | Phase::Failed)
        };
        self.status.replica_states.iter().filter(stays).filter_map(|state| state.node.as_deref()).map(Arc::from)
    }

    /// Fills a place.
    pub fn fill(&mut self, index: usize, place: &Place, now: Timestamp) {
        let Some(state) = self.status.replica_states.get_mut(index) else { return };
        match place {
            Place::OnNode { flavor, node } => {
                state.flavor = Some(flavor.to_string());
                state.node = Some(node.to_string());
                set_phase(state, Phase::Placing, None, now);
            }
            Place::Provision { flavor, tried } => {
                state.flavor = Some(flavor.to_string());
                state.node = None;
                let told: Vec<String> = tried.iter().map(Tried::to_string).collect();
                let word = Word {
                    reason: Some("NoRoom".to_owned()),
                    message: Some(cut(&format!("no room: {}", told.join("; ")))),
                };
                set_phase(state, Phase::Pending, Some(word), now);
            }
        }
    }

    fn look_again(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Decision {
    /// The new status.
    pub status: PlaygroundStatus,
    /// Replicas whose pods are to be created, once the status is stored.
    pub births: Vec<ReplicaState>,
    /// Pods that are to go.
    pub endings: Vec<Ending>,
    /// Peers whose pods have gone.
    pub revoked: Vec<String>,
    /// Reason and message of what people should hear about, and whether it is bad.
    pub news: Vec<(bool, String, String)>,
    /// When to look again at the latest.
    pub again: Option<Timestamp>,
}

/// Brings the record up to date, retires replicas, and opens places for new ones.
#[must_use]
pub fn survey(facts: &Facts<'_>, status: PlaygroundStatus, memory: &mut Memory) -> Draft {
    let mut draft = Draft { status, ..Draft::default() };
    refresh(facts, &mut draft, memory);
    strays(facts, &mut draft);
    rollout::advance(facts, &mut draft, memory);
    draft
}

/// Says which pods to create, and what to tell people.
#[must_use]
pub fn settle(facts: &Facts<'_>, mut draft: Draft, memory: &Memory) -> Decision {
    let mut births = Vec::new();
    if facts.wanted.is_ok() {
        for state in draft.status.replica_states.clone() {
            let is_due = state.pod_uid.is_none() && state.flavor.is_some();
            match memory.not_before(&state.name).filter(|at| *at > facts.now) {
                Some(at) if is_due => draft.look_again(at),
                None if is_due => births.push(state),
                _ => {}
            }
        }
    }
    let news = conditions::tell(facts, &mut draft);
    Decision { status: draft.status, births, endings: draft.endings, revoked: draft.revoked, news, again: draft.again }
}

/// Whether two statuses differ only in how loading goes on, which can wait a little.
#[must_use]
pub fn is_only_news(before: &PlaygroundStatus, after: &PlaygroundStatus) -> bool {
    let bare = |status: &PlaygroundStatus| {
        let mut status = status.clone();
        for state in &mut status.replica_states {
            if matches!(state.phase, Phase::Placing | Phase::Pulling | Phase::Loading) {
                let kept = ReplicaState {
                    node: None,
                    progress: None,
                    message: None,
                    reason: None,
                    since: None,
                    ..state.clone()
                };
                *state = ReplicaState { phase: Phase::Placing, ..kept };
            }
        }
        for condition in &mut status.conditions {
            condition.message.clear();
        }
        status
    };
    bare(before) == bare(after)
}

fn refresh(facts: &Facts<'_>, draft: &mut Draft, memory: &mut Memory) {
    let mut states = std::mem::take(&mut draft.status.replica_states);
    states.retain_mut(|state| {
        let Some(uid) = state.pod_uid.clone() else { return true };
        let Some(pod) = facts.pods.get(&uid) else {
            if memory.is_unseen(&uid, facts.now, UNSEEN) {
                draft.look_again(later(facts.now, UNSEEN));
                return true;
            }
            draft.revoked.extend(state.peer_id.take());
            memory.forget(&state.name);
            return false;
        };
        memory.seen(&uid);
        observe(state, pod, facts, memory);
        // It was told to end, or that was only written down before this program was killed.
        if state.phase == Phase::Draining && !pod.ending() {
            draft.endings.push(Ending { name: pod.name.clone(), uid });
        }
        true
    });
    draft.status.replica_states = states;
}

fn observe(state: &mut ReplicaState, pod: &OwnPod, facts: &Facts<'_>, memory: &mut Memory) {
    let sight = (facts.sight)(pod, state.peer_id.as_deref());
    if pod.node.is_some() {
        state.node.clone_from(&pod.node);
        memory.placed(state.ordinal);
    }
    if sight.peer.is_some() {
        state.peer_id = sight.peer;
    }
    state.progress = sight.progress;
    if pod.ending() || state.phase == Phase::Draining {
        return set_phase(state, Phase::Draining, None, facts.now);
    }
    let word =
        |reason: &str, message: &str| Some(Word { reason: Some(reason.to_owned()), message: Some(message.to_owned()) });
    let told = |word: &Word| word.reason.is_some().then(|| word.clone());
    let (phase, word) = match &pod.stage {
        _ if sight.serving => (Phase::Ready, None),
        // What placement found out says more than the scheduler's count of nodes.
        Stage::Unbound { .. } if state.reason.as_deref() == Some("NoRoom") => {
            (Phase::Placing, Some(Word { reason: state.reason.clone(), message: state.message.clone() }))
        }
        Stage::Unbound { why } => (Phase::Placing, why.as_ref().and_then(|why| word("Unscheduled", why))),
        Stage::Pulling(word) => (Phase::Pulling, told(word)),
        Stage::Loading(word) => (Phase::Loading, told(word)),
        Stage::Up => (Phase::Loading, word("NotRegistered", "its agent is ready, and the mesh does not list it yet")),
        Stage::Ended(word) => (Phase::Failed, told(word)),
    };
    if phase == Phase::Failed && state.phase != Phase::Failed {
        memory.failed(state.ordinal, facts.now, facts.patience);
    }
    if phase == Phase::Ready {
        memory.well(state.ordinal);
    }
    set_phase(state, phase, word, facts.now);
}

/// Pods that name this Playground as their controller, and that it never recorded: left behind when this program was
/// killed, or put there by somebody. Neither may pass for a replica.
fn strays(facts: &Facts<'_>, draft: &mut Draft) {
    let recorded: HashSet<&str> =
        draft.status.replica_states.iter().filter_map(|state| state.pod_uid.as_deref()).collect();
    let strays = facts.pods.values().filter(|pod| !recorded.contains(pod.uid.as_str()) && !pod.ending());
    let mut endings: Vec<Ending> = strays.map(|pod| Ending { name: pod.name.clone(), uid: pod.uid.clone() }).collect();
    endings.sort_by(|a, b| a.name.cmp(&b.name));
    draft.endings.extend(endings);
}

fn set_phase(state: &mut ReplicaState, phase: Phase, word: Option<Word>, now: Timestamp) {
    if state.phase != phase || state.since.is_none() {
        state.since = Some(stamp(now));
    }
    let word = word.unwrap_or_default();
    state.phase = phase;
    state.reason = word.reason;
    state.message = word.message.map(|message| cut(&message));
}

/// A text that fits into a status.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= crate::resources::MESSAGE {
        return text.to_owned();
    }
    let kept: String = text.chars().take(crate::resources::MESSAGE / 4 - 4).collect();
    format!("{kept} ...")
}

/// A time as the API writes it, seconds.
#[must_use]
pub fn stamp(at: Timestamp) -> String {
    at.round(Unit::Second).unwrap_or(at).to_string()
}

fn since(state: &ReplicaState, now: Timestamp) -> Timestamp {
    state.since.as_deref().and_then(|since| since.parse().ok()).unwrap_or(now)
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(at)
}

/// The name under which the pods of a Playground are selected.
#[must_use]
pub fn selector(name: &str) -> String {
    format!("{}={name}", names::PLAYGROUND)
}

#[cfg(test)]
mod tests;

//! Which replicas go, and how many come: scaling, updates by surge, flavors that have no room.

use super::{Draft, Ending, Facts, Memory, later, set_phase, since};
use crate::{
    names,
    resources::{Phase, REPLICA_STATES, ReplicaState},
};
use k8s_openapi::jiff::Timestamp;
use std::{cmp::Reverse, time::Duration};

/// Rounds through all flavors after which waiting no longer doubles.
const ROUNDS: usize = 3;

pub(super) fn advance(facts: &Facts<'_>, draft: &mut Draft, memory: &mut Memory) {
    let Ok(wanted) = facts.wanted else { return };
    let revision = wanted.revision.name.clone();
    if draft.status.revision != revision {
        draft.status.revision.clone_from(&revision);
        draft.status.progressed_at = Some(super::stamp(facts.now));
    }
    let desired = facts.playground.spec.replicas;
    if draft.status.desired_replicas != desired {
        draft.status.desired_replicas = desired;
        draft.status.progressed_at = Some(super::stamp(facts.now));
    }
    draft.status.selector = super::selector(facts.name);
    replace_failed(facts, draft, memory);
    next_flavors(facts, draft, memory);
    let paused = facts.playground.spec.paused;
    retire(facts, draft, &revision, desired, paused);
    open(facts, draft, &revision, desired, paused);
}

fn is_live(state: &ReplicaState) -> bool {
    state.phase != Phase::Draining
}

/// Takes a replica out of the count, and its pod down.
fn drain(draft: &mut Draft, name: &str, now: Timestamp) {
    let Some(index) = draft.status.replica_states.iter().position(|state| state.name == name) else { return };
    let state = &mut draft.status.replica_states[index];
    match state.pod_uid.clone() {
        Some(uid) => {
            draft.endings.push(Ending { name: state.name.clone(), uid });
            set_phase(state, Phase::Draining, None, now);
        }
        // Should there be a pod of this name after all, it is not recorded, and goes as a stray.
        None => drop(draft.status.replica_states.remove(index)),
    }
    draft.retired.insert(name.to_owned());
}

fn replace_failed(facts: &Facts<'_>, draft: &mut Draft, memory: &Memory) {
    let failed = draft.status.replica_states.iter().filter(|state| state.phase == Phase::Failed);
    let failed: Vec<(String, i32)> = failed.map(|state| (state.name.clone(), state.ordinal)).collect();
    for (name, ordinal) in failed {
        let at = memory.replace_at(ordinal, facts.now);
        if at > facts.now {
            draft.look_again(at);
        } else {
            drain(draft, &name, facts.now);
        }
    }
}

/// A pod that no node took in its flavor's time makes room for one of the next flavor.
fn next_flavors(facts: &Facts<'_>, draft: &mut Draft, memory: &mut Memory) {
    if facts.waits.len() < 2 {
        return;
    }
    let unbound = |state: &&ReplicaState| {
        let pod = state.pod_uid.as_ref().and_then(|uid| facts.pods.get(uid));
        is_live(state) && pod.is_some_and(|pod| pod.node.is_none())
    };
    let waiting: Vec<ReplicaState> = draft.status.replica_states.iter().filter(unbound).cloned().collect();
    for state in waiting {
        let wait = facts.waits.iter().find(|(flavor, _)| Some(flavor) == state.flavor.as_ref()).map(|(_, wait)| *wait);
        let wait = wait.unwrap_or(facts.patience.flavor);
        let rounds = (memory.flavors_tried(state.ordinal) / facts.waits.len()).min(ROUNDS);
        let until = later(since(&state, facts.now), wait.saturating_mul(1 << rounds));
        if until > facts.now {
            draft.look_again(until);
            continue;
        }
        memory.try_next_flavor(state.ordinal);
        drain(draft, &state.name, facts.now);
    }
}

fn retire(facts: &Facts<'_>, draft: &mut Draft, revision: &str, desired: i32, paused: bool) {
    let desired_count = usize::try_from(desired).unwrap_or(0);
    let live =
        |draft: &Draft| draft.status.replica_states.iter().filter(|state| is_live(state)).cloned().collect::<Vec<_>>();
    let is_new = |state: &ReplicaState| state.revision == revision;
    // First those that help least: not ready, old, the highest ordinal.
    let by_use = |state: &ReplicaState| (state.phase == Phase::Ready, is_new(state), Reverse(state.ordinal));
    let mut all = live(draft);
    all.sort_by_key(by_use);
    let (new, old): (Vec<_>, Vec<_>) = all.iter().cloned().partition(is_new);
    if paused || old.is_empty() {
        let surplus = all.len().saturating_sub(desired_count);
        all.iter().take(surplus).for_each(|state| drain(draft, &state.name, facts.now));
        return;
    }
    let surplus = new.len().saturating_sub(desired_count);
    new.iter().take(surplus).for_each(|state| drain(draft, &state.name, facts.now));
    // Old ones that don't serve are missed by nobody.
    let (serving, idle): (Vec<_>, Vec<_>) = old.into_iter().partition(|state| state.phase == Phase::Ready);
    idle.iter().for_each(|state| drain(draft, &state.name, facts.now));
    let strategy = &facts.playground.spec.strategy;
    draft.cramped = is_cramped(facts, draft, &new);
    let bend = i32::from(draft.cramped && desired > 1 && strategy.max_unavailable == 0);
    let least = usize::try_from((desired - strategy.max_unavailable - bend).max(0)).unwrap_or(0);
    let available = serving.len() + new.iter().filter(|state| state.phase == Phase::Ready).count();
    let may_go = available.saturating_sub(least);
    serving.iter().take(may_go).for_each(|state| drain(draft, &state.name, facts.now));
    // Scaled down in the middle of an update: new ones that don't serve yet make way for old ones that do.
    let most = desired_count + usize::try_from(strategy.max_surge).unwrap_or(0);
    let rest = live(draft);
    let surplus = rest.len().saturating_sub(most);
    let mut late: Vec<_> = rest.into_iter().filter(|state| is_new(state) && state.phase != Phase::Ready).collect();
    late.sort_by_key(by_use);
    late.iter().take(surplus).for_each(|state| drain(draft, &state.name, facts.now));
}

/// Whether a replica of the new revision has waited too long for room, and none is on its way.
fn is_cramped(facts: &Facts<'_>, draft: &mut Draft, new: &[ReplicaState]) -> bool {
    let waits =
        |state: &&ReplicaState| matches!(state.phase, Phase::Pending | Phase::Placing) && state.pod_uid.is_some();
    if new.iter().any(|state| matches!(state.phase, Phase::Pulling | Phase::Loading)) {
        return false;
    }
    let Some(first) = new.iter().filter(waits).map(|state| since(state, facts.now)).min() else { return false };
    let until = later(first, facts.patience.surge);
    if until > facts.now {
        draft.look_again(until);
    }
    until <= facts.now
}

fn open(facts: &Facts<'_>, draft: &mut Draft, revision: &str, desired: i32, paused: bool) {
    let live: Vec<&ReplicaState> = draft.status.replica_states.iter().filter(|state| is_live(state)).collect();
    let new = live.iter().filter(|state| state.revision == revision).count();
    let updates = !paused && new < live.len();
    let surge = if updates { facts.playground.spec.strategy.max_surge } else { 0 };
    let count = |number: i32| usize::try_from(number.max(0)).unwrap_or(0);
    let missing = if paused { count(desired).saturating_sub(live.len()) } else { count(desired).saturating_sub(new) };
    let room = count(desired + surge).saturating_sub(live.len());
    let left = REPLICA_STATES.saturating_sub(draft.status.replica_states.len());
    let mut taken: Vec<i32> = live.iter().map(|state| state.ordinal).collect();
    for _ in 0..missing.min(room).min(left) {
        let ordinal = (0..).find(|ordinal| !taken.contains(ordinal)).unwrap_or_default();
        taken.push(ordinal);
        draft.status.attempts += 1;
        let attempt = draft.status.attempts;
        let mut state = ReplicaState {
            name: names::pod(facts.name, ordinal, attempt),
            ordinal,
            attempt,
            revision: revision.to_owned(),
            ..ReplicaState::default()
        };
        set_phase(&mut state, Phase::Pending, None, facts.now);
        draft.status.replica_states.push(state);
    }
}

/// How long a flavor waits for room.
#[must_use]
pub(crate) fn wait_of(seconds: Option<i64>, default: Duration) -> Duration {
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(default, Duration::from_secs)
}

//! What people are told: counts, and conditions whose messages name the next step.

use super::{Draft, Facts, cut, later, stamp};
use crate::resources::{Condition, Phase, PlaygroundStatus, ReplicaState};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Why a Playground can't be worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// One word.
    pub reason: &'static str,
    /// For people: what is wrong, and what to do.
    pub message: String,
}

impl Trouble {
    /// With one word, and a sentence.
    #[must_use]
    pub fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}

/// Fills counts and conditions in. Returns what is new enough for an Event.
pub(super) fn tell(facts: &Facts<'_>, draft: &mut Draft) -> Vec<(bool, String, String)> {
    let before = draft.status.conditions.clone();
    let ready_before = draft.status.ready_replicas;
    let status = &mut draft.status;
    let live = || status.replica_states.iter().filter(|state| state.phase != Phase::Draining);
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let ready = |state: &&ReplicaState| state.phase == Phase::Ready;
    let updated = |state: &&ReplicaState| state.revision == status.revision;
    let (replicas, ready_replicas) = (count(live().count()), count(live().filter(ready).count()));
    let updated_replicas = count(live().filter(updated).count());
    let updated_ready = count(live().filter(updated).filter(ready).count());
    status.replicas = replicas;
    status.ready_replicas = ready_replicas;
    status.updated_replicas = updated_replicas;
    status.observed_generation = facts.playground.metadata.generation.unwrap_or(0);
    let desired = facts.playground.spec.replicas;
    status.desired_replicas = desired;
    let complete = replicas == desired && updated_replicas == desired && updated_ready == desired;
    if ready_replicas > ready_before {
        status.progressed_at = Some(stamp(facts.now));
    }
    let tolerated = facts.playground.spec.strategy.max_unavailable;
    let available = ready_replicas >= (desired - tolerated).max(desired.min(1));
    let available_message = format!("{ready_replicas} of {desired} replicas serve");
    let available_reason = if desired == 0 {
        "NotNeeded"
    } else if available {
        "Serving"
    } else {
        "TooFewServe"
    };
    set(facts, status, "Available", available, available_reason, &available_message);
    let (going, reason, message) = progress(facts, draft, complete);
    set(facts, &mut draft.status, "Progressing", going, &reason, &message);
    let outdated = facts.wanted.is_ok_and(|wanted| wanted.outdated);
    let (reason, message) = if outdated {
        (
            "ModelOrRuntimeChanged",
            "the Model or the BackendRuntime has changed since: `kubectl annotate playground NAME dunlin.dev/restarted-at=$(date +%s) --overwrite` rolls it out",
        )
    } else {
        ("UpToDate", "")
    };
    set(facts, &mut draft.status, "Outdated", outdated, reason, message);
    news(facts, &before, &draft.status, complete)
}

fn set(facts: &Facts<'_>, status: &mut PlaygroundStatus, kind: &str, holds: bool, reason: &str, message: &str) {
    let word = if holds { "True" } else { "False" };
    let found = status.conditions.iter().position(|condition| condition.kind == kind);
    let index = found.unwrap_or_else(|| {
        status.conditions.push(Condition { kind: kind.to_owned(), ..Condition::default() });
        status.conditions.len() - 1
    });
    let condition = &mut status.conditions[index];
    if condition.status != word {
        condition.status = word.to_owned();
        condition.last_transition_time = stamp(facts.now);
    }
    condition.reason = reason.to_owned();
    condition.message = cut(message);
    condition.observed_generation = facts.playground.metadata.generation.unwrap_or(0);
}

/// Whether it goes on, the word for where it stands, and the sentence.
fn progress(facts: &Facts<'_>, draft: &mut Draft, complete: bool) -> (bool, String, String) {
    let told = |holds: bool, reason: &str, message: String| (holds, reason.to_owned(), message);
    if let Err(trouble) = facts.wanted {
        return told(false, trouble.reason, trouble.message.clone());
    }
    if let Some(trouble) = facts.refused {
        return told(false, trouble.reason, trouble.message.clone());
    }
    if complete {
        let word = if facts.playground.spec.replicas == 0 { "NotNeeded" } else { "Complete" };
        return told(true, word, "every replica is of the wanted revision and serves".to_owned());
    }
    let status = &draft.status;
    let troubled = |state: &&ReplicaState| state.reason.as_deref().is_some_and(|reason| weight(reason) > 0);
    let worst = status
        .replica_states
        .iter()
        .filter(troubled)
        .max_by_key(|state| weight(state.reason.as_deref().unwrap_or_default()));
    let worst = worst.map(|state| {
        let reason = state.reason.clone().unwrap_or_default();
        (reason, format!("replica {}: {}", state.name, state.message.clone().unwrap_or_default()))
    });
    if draft.cramped && facts.playground.spec.replicas == 1 && facts.playground.spec.strategy.max_unavailable == 0 {
        let why = worst.map(|(_, message)| message).unwrap_or_default();
        let message = format!(
            "there is no room for a second replica beside the one that serves: free hardware, or set strategy.maxUnavailable to 1 to replace it in place. {why}"
        );
        return told(false, "NoRoomForSurge", message);
    }
    let deadline = u64::try_from(facts.playground.spec.strategy.progress_deadline_seconds).unwrap_or(0);
    let from: Option<Timestamp> = status.progressed_at.as_deref().and_then(|at| at.parse().ok());
    let until = from.map(|from| later(from, Duration::from_secs(deadline)));
    if let Some((reason, message)) = worst {
        until.filter(|until| *until > facts.now).into_iter().for_each(|until| draft.look_again(until));
        return (false, reason, message);
    }
    match until {
        Some(until) if until > facts.now => draft.look_again(until),
        Some(_) if !facts.playground.spec.paused => {
            let message = format!(
                "no replica has become ready for {deadline} s: look at status.replicaStates and at the logs of the pods; `undo` goes back to the revision before"
            );
            return told(false, "ProgressDeadlineExceeded", message);
        }
        _ => {}
    }
    if facts.playground.spec.paused {
        return told(true, "Paused", "paused: replicas stay as they are; set paused to false to go on".to_owned());
    }
    let status = &draft.status;
    let message = format!(
        "{} of {} replicas are of the wanted revision, {} serve",
        status.updated_replicas, status.desired_replicas, status.ready_replicas
    );
    told(true, "Rolling", message)
}

/// How much a reason matters: the heaviest is told. 0 is no trouble.
fn weight(reason: &str) -> u8 {
    match reason {
        "QuotaExceeded" | "Refused" | "Invalid" => 6,
        "MissingConfig" | "ImagePull" | "ContainerError" => 5,
        "CrashLoop" | "FetchFails" => 4,
        "NoRoom" | "Unscheduled" => 3,
        "NameTaken" => 2,
        "Weights" | "NotRegistered" | "" => 0,
        // Of a pod that ended: whatever the kubelet called it.
        _ => 1,
    }
}

fn news(
    facts: &Facts<'_>,
    before: &[Condition],
    status: &PlaygroundStatus,
    complete: bool,
) -> Vec<(bool, String, String)> {
    let find = |list: &[Condition]| list.iter().find(|condition| condition.kind == "Progressing").cloned();
    let (was, Some(is)) = (find(before), find(&status.conditions)) else { return Vec::new() };
    let changed = was.as_ref().is_none_or(|was| was.reason != is.reason || was.status != is.status);
    if is.status == "False" && changed {
        return vec![(true, is.reason, is.message)];
    }
    // A first start that goes well is no news: its status says so.
    let rolled = facts.wanted.is_ok_and(|wanted| wanted.revision.number > 1);
    if complete && changed && rolled && was.is_some_and(|was| was.reason != "NotNeeded") {
        return vec![(
            false,
            "RolledOut".to_owned(),
            format!("every replica is of revision {} and serves", status.revision),
        )];
    }
    Vec::new()
}

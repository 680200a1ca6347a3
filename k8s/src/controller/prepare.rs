//! What has to be there before, and beside, the pods of a Playground: made where it is missing or was changed.

use super::{
    tables::{Sole, Tracked},
    work::Work,
};
use crate::{
    decide::Decision,
    manifest::{self, Making},
    names,
    revision::{self, Revision, Wanted},
    settings::Settings,
};
use serde_json::Value;
use std::sync::Arc;

/// What is there of a Playground's objects.
pub(super) struct There {
    pub policy: Option<Sole>,
    pub budget: Option<Sole>,
    /// Uid of the controller of the wanted revision's.
    pub config_map: Option<String>,
}

/// What has to be there before, and beside, the pods.
pub(super) fn prepare(
    work: &mut Work,
    tracked: &Tracked,
    there: &There,
    wanted: &Wanted,
    known: &[Arc<Revision>],
    settings: &Settings,
    decision: &Decision,
) -> Result<(), manifest::Error> {
    let owner = &tracked.owner;
    let finalizers = tracked.playground.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|name| name == names::FINALIZER) {
        work.finalizers = Some(finalizers.into_iter().chain([names::FINALIZER.to_owned()]).collect());
    }
    let making = Making { owner, revision: &wanted.revision, settings };
    if wanted.is_new {
        work.revision = Some((manifest::controller_revision(making)?, wanted.revision.clone()));
    }
    if there.config_map.as_ref() != Some(&owner.uid) {
        work.config_map = Some(manifest::config_map(making)?);
    }
    let policy = manifest::network_policy(owner)?;
    if differs(there.policy.as_ref(), owner, &policy, &policy.metadata) {
        work.policy = Some(policy);
    }
    let budget = manifest::disruption_budget(owner)?;
    if differs(there.budget.as_ref(), owner, &budget, &budget.metadata) {
        work.budget = Some(budget);
    }
    let stored = |name: &str| known.iter().find(|revision| revision.name == name);
    for state in &decision.births {
        let revision =
            if state.revision == wanted.revision.name { Some(&wanted.revision) } else { stored(&state.revision) };
        let Some(revision) = revision else { continue };
        let pod = manifest::pod(Making { revision, ..making }, state)?;
        work.births.push((state.clone(), Box::new(pod)));
    }
    let states = &decision.status.replica_states;
    let in_use = |name: &str| name == wanted.revision.name || states.iter().any(|state| state.revision == name);
    work.surplus = revision::surplus(known, in_use);
    Ok(())
}

/// Whether what is there lacks something that is wanted: a server adds fields of its own.
fn differs<K: serde::Serialize>(
    there: Option<&Sole>,
    owner: &manifest::Owner,
    wanted: &K,
    metadata: &kube::api::ObjectMeta,
) -> bool {
    let Some(there) = there else { return true };
    let applied = metadata.annotations.as_ref().and_then(|all| all.get(names::APPLIED));
    let spec = serde_json::to_value(wanted).map(|mut object| object["spec"].take()).unwrap_or_default();
    there.owner != owner.uid || Some(&there.applied) != applied || !includes(&there.spec, &spec)
}

fn includes(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(field, value)| whole.get(field).is_some_and(|found| includes(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| includes(whole, part))
        }
        (whole, part) => whole == part,
    }
}

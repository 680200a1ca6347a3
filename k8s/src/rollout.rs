//! Updates, as people steer them: where one stands, going back, starting anew, holding on.

use crate::{
    names,
    resources::{Phase, Playground, PlaygroundStatus},
    revision::{self, Revision},
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// Why an update could not be steered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// There is nothing to go back to.
    #[error("playground {0:?} has no revision before the present one")]
    NoneBefore(String),
    /// There is no such revision.
    #[error("playground {playground:?} has no revision {wanted:?}; it has: {choices}")]
    NoSuch {
        /// The Playground.
        playground: String,
        /// What was asked for.
        wanted: String,
        /// What there is, newest first.
        choices: String,
    },
    /// A revision that can't be written: a fault of this program.
    #[error("the revision can't be written: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Where an update stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The orchestrator has not seen the last change yet.
    Unseen,
    /// Every replica is of the wanted revision, and serves.
    Done,
    /// It goes on: sentence for people.
    Going(String),
    /// It does not: sentence for people.
    Stuck(String),
}

/// Where the update of a Playground stands.
#[must_use]
pub fn progress(playground: &Playground) -> Progress {
    let none = PlaygroundStatus::default();
    let status = playground.status.as_ref().unwrap_or(&none);
    if status.observed_generation < playground.metadata.generation.unwrap_or(0) {
        return Progress::Unseen;
    }
    let condition = status.conditions.iter().find(|condition| condition.kind == "Progressing");
    let Some(condition) = condition else { return Progress::Unseen };
    let draining = status.replica_states.iter().any(|state| state.phase == Phase::Draining);
    match (condition.status.as_str(), condition.reason.as_str()) {
        ("True", "Complete" | "NotNeeded") if !draining => Progress::Done,
        ("True", "Complete" | "NotNeeded") => {
            Progress::Going("the last replicas of before answer their last requests".to_owned())
        }
        ("True", _) => Progress::Going(condition.message.clone()),
        _ => Progress::Stuck(format!("{}: {}", condition.reason, condition.message)),
    }
}

/// The revisions of a Playground that are stored, newest first.
///
/// # Errors
/// The API server said no.
pub async fn history(client: &Client, namespace: &str, name: &str) -> Result<Vec<Revision>, Error> {
    let playground = Api::<Playground>::namespaced(client.clone(), namespace).get(name).await?;
    let uid = playground.uid().unwrap_or_default();
    let ours = ListParams::default().labels(&format!("{}={name}", names::PLAYGROUND));
    let stored = Api::<ControllerRevision>::namespaced(client.clone(), namespace).list(&ours).await?;
    let is_its = |object: &&ControllerRevision| object.owner_references().iter().any(|owner| owner.uid == uid);
    let read = |object: &ControllerRevision| {
        let data = object.data.as_ref().map(|data| data.0.clone()).unwrap_or_default();
        Revision::read(&object.name_any(), object.revision, &data)
    };
    let mut revisions: Vec<Revision> = stored.items.iter().filter(is_its).filter_map(read).collect();
    revisions.sort_by_key(|revision| std::cmp::Reverse(revision.number));
    Ok(revisions)
}

/// Goes back to a revision: the one before the present one, or the one called `to`. Returns its name.
///
/// The fields of the Playground become what they were, but for `replicas`, `paused`, `strategy` and `autoscaling`; the
/// Model and the BackendRuntime are used as they were then.
///
/// # Errors
/// There is no such revision, or the API server said no.
pub async fn undo(client: &Client, namespace: &str, name: &str, to: Option<&str>) -> Result<String, Error> {
    let playgrounds: Api<Playground> = Api::namespaced(client.clone(), namespace);
    let playground = playgrounds.get(name).await?;
    let current = playground.status.as_ref().map(|status| status.revision.clone()).unwrap_or_default();
    let history = history(client, namespace, name).await?;
    let chosen = match to {
        Some(to) => history.iter().find(|revision| revision.name == to || revision.number.to_string() == to),
        None => {
            let present =
                history.iter().find(|revision| revision.name == current).map_or(i64::MAX, |revision| revision.number);
            history.iter().find(|revision| revision.number < present)
        }
    };
    let Some(chosen) = chosen else {
        let Some(to) = to else { return Err(Error::NoneBefore(name.to_owned())) };
        let choices: Vec<String> =
            history.iter().map(|revision| format!("{} ({})", revision.number, revision.name)).collect();
        return Err(Error::NoSuch { playground: name.to_owned(), wanted: to.to_owned(), choices: choices.join(", ") });
    };
    let patch = undoing(&playground, chosen)?;
    playgrounds.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(chosen.name.clone())
}

/// What has to change for a Playground to be as it was in a revision.
fn undoing(playground: &Playground, to: &Revision) -> Result<Value, Error> {
    let was = serde_json::to_value(&to.snapshot.playground)?;
    let is = serde_json::to_value(revision::template(&playground.spec))?;
    let kept = ["replicas", "paused", "strategy", "autoscaling"];
    let mut spec = json!({});
    let (empty, mut gone) = (serde_json::Map::new(), Vec::new());
    let fields = |value: &Value| value.as_object().unwrap_or(&empty).clone();
    for (field, value) in fields(&was) {
        // What a map had in between has to go by name.
        spec[&field] = replacement(is.get(&field), &value);
    }
    gone.extend(fields(&is).into_iter().map(|(field, _)| field).filter(|field| was.get(field).is_none()));
    gone.into_iter().for_each(|field| spec[field] = Value::Null);
    if let Value::Object(map) = &mut spec {
        map.retain(|field, _| !kept.contains(&field.as_str()));
    }
    let annotations = json!({ names::UNDO_TO: to.name, names::RESTARTED_AT: to.snapshot.restarted_at });
    Ok(
        json!({ "metadata": { "annotations": annotations, "resourceVersion": playground.resource_version() }, "spec": spec }),
    )
}

/// A merge patch that makes `is` into `was`.
fn replacement(is: Option<&Value>, was: &Value) -> Value {
    let (Some(Value::Object(is)), Value::Object(was)) = (is, was) else { return was.clone() };
    let mut patch = serde_json::Map::new();
    for (field, value) in was {
        patch.insert(field.clone(), replacement(is.get(field), value));
    }
    for field in is.keys().filter(|field| !was.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// Replaces every replica, with the Model and the BackendRuntime as they are now. `at` is any text that is new.
///
/// # Errors
/// The API server said no.
pub async fn restart(client: &Client, namespace: &str, name: &str, at: &str) -> Result<(), Error> {
    let patch = json!({ "metadata": { "annotations": { names::RESTARTED_AT: at, names::UNDO_TO: null } } });
    let playgrounds: Api<Playground> = Api::namespaced(client.clone(), namespace);
    playgrounds.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Holds updates up, or lets them go on.
///
/// # Errors
/// The API server said no.
pub async fn pause(client: &Client, namespace: &str, name: &str, paused: bool) -> Result<(), Error> {
    let playgrounds: Api<Playground> = Api::namespaced(client.clone(), namespace);
    let patch = json!({ "spec": { "paused": paused } });
    playgrounds.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

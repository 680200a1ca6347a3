//! What a Playground's replicas shall be made from, by what is known now; or what is in the way, in words that name the next
//! step.

use super::tables::{Tables, Tracked};
use crate::{
    decide::Trouble,
    engine,
    revision::{self, Revision, Snapshot, Wanted},
};
use std::sync::Arc;

/// What the replicas of a Playground shall be made from, or what is in the way.
pub(super) fn wanted(tables: &Tables, tracked: &Tracked, known: &[Arc<Revision>]) -> Result<Wanted, Trouble> {
    if let Some(error) = &tracked.unreadable {
        let message = format!(
            "the Playground can't be read: {error}. Apply it again; the definitions (CRDs) may be older than it"
        );
        return Err(Trouble::new("Unreadable", message));
    }
    let now = snapshot(tables, tracked);
    let current = tracked.status.revision.as_str();
    let wanted = revision::wanted(&tracked.playground, &tracked.owner.name, current, now.as_ref().ok(), known);
    match (wanted, now) {
        (Some(wanted), _) => Ok(wanted),
        (None, Err(trouble)) => Err(trouble),
        (None, Ok(_)) => Err(Trouble::new("NoRevision", "no revision could be chosen".to_owned())),
    }
}

fn snapshot(tables: &Tables, tracked: &Tracked) -> Result<Snapshot, Trouble> {
    let spec = &tracked.playground.spec;
    let Some(model_name) = spec.main_model() else {
        return Err(Trouble::new("NoModel", "the Playground names no model: set spec.model".to_owned()));
    };
    let Some((model_name, model)) = tables.model(model_name) else {
        let near = near(model_name, tables.models.iter().map(|(name, _)| name.as_str()));
        return Err(Trouble::new(
            "ModelNotFound",
            format!(
                "there is no Model {model_name:?}, by name or by served name: create it, or correct spec.model{near}"
            ),
        ));
    };
    let model = model
        .as_ref()
        .map_err(|error| Trouble::new("BadModel", format!("the Model {model_name:?} can't be read: {error}")))?;
    let runtime_name = spec.runtime_name();
    let Some(runtime) = tables.runtimes.get(runtime_name) else {
        let near = near(runtime_name, tables.runtimes.iter().map(|(name, _)| name.as_str()));
        return Err(Trouble::new(
            "RuntimeNotFound",
            format!("there is no BackendRuntime {runtime_name:?}: create it, or correct spec.runtime.name{near}"),
        ));
    };
    let runtime = runtime.as_ref().map_err(|error| {
        Trouble::new("BadRuntime", format!("the BackendRuntime {runtime_name:?} can't be read: {error}"))
    })?;
    Ok(Snapshot::of(&tracked.playground, (model_name, &**model), (runtime_name, &**runtime)))
}

/// That an engine can be run on every flavor.
pub(super) fn check(snapshot: &Snapshot) -> Result<(), Trouble> {
    let flavors = snapshot.flavors().map_err(|name| {
        let all: Vec<&str> = snapshot.model.flavors.iter().map(|flavor| flavor.name.as_str()).collect();
        Trouble::new(
            "FlavorNotFound",
            format!(
                "the Model {:?} has no flavor {name:?}: correct spec.flavors; it has: {}",
                snapshot.model_name,
                all.join(", ")
            ),
        )
    })?;
    for flavor in flavors {
        let (model, runtime) = (&snapshot.model, &snapshot.runtime);
        engine::resolve(
            &snapshot.runtime_name,
            runtime,
            &snapshot.playground,
            flavor,
            &model.source,
            &model.served_name,
        )
        .map_err(|error| Trouble::new("BadRuntime", error.to_string()))?;
    }
    Ok(())
}

/// Some names that there are, for messages.
fn near<'n>(wanted: &str, names: impl Iterator<Item = &'n str>) -> String {
    let wanted = wanted.to_ascii_lowercase();
    let mut names: Vec<&str> = names.collect();
    names.sort_by_key(|name| (!name.contains(&wanted) && !wanted.contains(*name), *name));
    names.truncate(5);
    if names.is_empty() { String::new() } else { format!(". There are: {}", names.join(", ")) }
}

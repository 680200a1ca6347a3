//! Revisions: what replicas are made from, whole, so that an older one can be made again.

use crate::{
    names,
    resources::{BackendRuntimeSpec, Flavor, ModelSpec, Playground, PlaygroundSpec, Strategy},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Revisions of a Playground that are kept.
pub const KEPT: usize = 5;

/// What the replicas of one revision are made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The Playground, but for what does not change its replicas.
    pub playground: PlaygroundSpec,
    /// Value of the annotation that asks for a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
    /// Name of the Model.
    pub model_name: String,
    /// The Model as it was.
    pub model: ModelSpec,
    /// Name of the BackendRuntime.
    pub runtime_name: String,
    /// The BackendRuntime as it was.
    pub runtime: BackendRuntimeSpec,
}

/// A snapshot with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Revision {
    /// Name of its ControllerRevision.
    pub name: String,
    /// Counts up.
    pub number: i64,
    /// What replicas are made from.
    pub snapshot: Snapshot,
}

impl Revision {
    /// What is stored under this name, if its content is what the name says: the name ends in a hash of it.
    #[must_use]
    pub fn read(name: &str, number: i64, data: &serde_json::Value) -> Option<Self> {
        let (_, hash) = name.rsplit_once('-')?;
        let snapshot = serde_json::from_value(data.clone()).ok().filter(|_| names::hash(data) == hash)?;
        Some(Self { name: name.to_owned(), number, snapshot })
    }

    /// The last part of its name.
    #[must_use]
    pub fn hash(&self) -> &str {
        self.name.rsplit_once('-').map_or(self.name.as_str(), |(_, hash)| hash)
    }
}

/// The Playground, but for what does not change its replicas.
#[must_use]
pub fn template(spec: &PlaygroundSpec) -> PlaygroundSpec {
    PlaygroundSpec { replicas: 0, paused: false, strategy: Strategy::default(), autoscaling: None, ..spec.clone() }
}

impl Snapshot {
    /// What the replicas of this Playground would be made from now.
    #[must_use]
    pub fn of(playground: &Playground, model: (&str, &ModelSpec), runtime: (&str, &BackendRuntimeSpec)) -> Self {
        Self {
            playground: template(&playground.spec),
            restarted_at: annotation(playground, names::RESTARTED_AT),
            model_name: model.0.to_owned(),
            model: model.1.clone(),
            runtime_name: runtime.0.to_owned(),
            runtime: runtime.1.clone(),
        }
    }

    /// Whether it was made from this Playground as it is: only then may it go on without a new revision.
    #[must_use]
    pub fn is_of(&self, playground: &Playground) -> bool {
        self.playground == template(&playground.spec)
            && self.restarted_at == annotation(playground, names::RESTARTED_AT)
    }

    /// The name that its revision has.
    #[must_use]
    pub fn name(&self, playground: &str) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        names::revision(playground, &names::hash(&value))
    }

    /// The flavors that will do, best first: the Playground's choice of the Model's.
    ///
    /// # Errors
    /// The name of a flavor that the Model does not have.
    pub fn flavors(&self) -> Result<Vec<&Flavor>, String> {
        if self.playground.flavors.is_empty() {
            return Ok(self.model.flavors.iter().collect());
        }
        let find =
            |name: &String| self.model.flavors.iter().find(|flavor| flavor.name == *name).ok_or_else(|| name.clone());
        self.playground.flavors.iter().map(find).collect()
    }
}

/// An annotation of a Playground.
#[must_use]
pub fn annotation(playground: &Playground, name: &str) -> Option<String> {
    playground.metadata.annotations.as_ref()?.get(name).cloned()
}

/// What the replicas of a Playground shall be made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The revision.
    pub revision: Arc<Revision>,
    /// Whether it has to be stored first.
    pub is_new: bool,
    /// Whether the Model or the BackendRuntime have changed since it was made.
    pub outdated: bool,
}

/// Chooses it. `current` is the name in the status, `known` what is stored.
///
/// A change of the Playground makes a new revision, with the Model and the BackendRuntime as they are now. A change of
/// these alone only marks the present one as outdated. An undo goes back to a stored one while the Playground is as it
/// was then. A paused Playground stays with what it has. `None` when a new one is needed, and `now` can't be told.
#[must_use]
pub fn wanted(
    playground: &Playground,
    name: &str,
    current: &str,
    now: Option<&Snapshot>,
    known: &[Arc<Revision>],
) -> Option<Wanted> {
    let find = |name: &str| known.iter().find(|revision| revision.name == name);
    let changed = |revision: &Revision, now: &Snapshot| {
        revision.snapshot.model != now.model || revision.snapshot.runtime != now.runtime
    };
    let keep = |revision: &Arc<Revision>| {
        let outdated = now.is_some_and(|now| changed(revision, now));
        Some(Wanted { outdated, revision: revision.clone(), is_new: false })
    };
    let current = find(current);
    if let Some(current) = current.filter(|_| playground.spec.paused) {
        return keep(current);
    }
    let undone = annotation(playground, names::UNDO_TO);
    if let Some(undone) = undone.as_deref().and_then(find).filter(|revision| revision.snapshot.is_of(playground)) {
        return keep(undone);
    }
    if let Some(current) = current.filter(|revision| revision.snapshot.is_of(playground)) {
        return keep(current);
    }
    let now = now?;
    let number = known.iter().map(|revision| revision.number).max().unwrap_or(0) + 1;
    let revision_name = now.name(name);
    match find(&revision_name) {
        Some(stored) => keep(stored),
        None => Some(Wanted {
            revision: Arc::new(Revision { name: revision_name, number, snapshot: now.clone() }),
            is_new: true,
            outdated: false,
        }),
    }
}

/// Names of stored revisions that may go: all but the newest [`KEPT`] and those in use.
#[must_use]
pub fn surplus(known: &[Arc<Revision>], in_use: impl Fn(&str) -> bool) -> Vec<String> {
    let mut idle: Vec<&Arc<Revision>> = known.iter().filter(|revision| !in_use(&revision.name)).collect();
    idle.sort_by_key(|revision| std::cmp::Reverse(revision.number));
    let used = known.len() - idle.len();
    idle.into_iter().skip(KEPT.saturating_sub(used)).map(|revision| revision.name.clone()).collect()
}

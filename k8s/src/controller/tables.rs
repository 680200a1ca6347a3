//! What the leader knows, beside nodes and pods.

use crate::{
    decide::{Memory, Trouble},
    manifest::Owner,
    names,
    resources::{BackendRuntimeSpec, ModelSpec, Playground, PlaygroundSpec, PlaygroundStatus},
    revision::Revision,
    world::Cache,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{
    ResourceExt,
    api::{DynamicObject, ObjectMeta},
    runtime::watcher::Event,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::time::Instant;

/// Namespace and name.
pub(super) type Key = (Arc<str>, Arc<str>);

pub(super) fn key(namespace: Option<&str>, name: Option<&str>) -> Key {
    (namespace.unwrap_or_default().into(), name.unwrap_or_default().into())
}

pub(super) fn key_of(metadata: &ObjectMeta) -> Key {
    key(metadata.namespace.as_deref(), metadata.name.as_deref())
}

/// A Playground, and what is known about it.
pub(super) struct Tracked {
    pub owner: Owner,
    /// Without status and managed fields.
    pub playground: Playground,
    /// Why it can't be read, if it can't.
    pub unreadable: Option<String>,
    /// The newest version seen or written.
    pub version: String,
    /// What the server has.
    pub stored: PlaygroundStatus,
    /// What is known.
    pub status: PlaygroundStatus,
    pub written: Option<Instant>,
    pub memory: Memory,
    /// Name of the revision that was checked last, and what was found.
    pub checked: Option<(String, Result<(), Trouble>)>,
    /// Calls that failed in a row.
    pub failures: u32,
    /// What the API server refused when it was last asked, but for pods: those are told by replica.
    pub refused: Option<Trouble>,
}

/// What is there one of for a Playground, as it was last seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sole {
    /// Uid of its controller.
    pub owner: String,
    /// Hash of what was applied, and what is there.
    pub applied: String,
    pub spec: Value,
}

/// What an event means for Playgrounds.
#[derive(Default)]
pub(super) struct Changes {
    /// Those to look at.
    pub seen: Vec<Key>,
    /// Those that have gone, maybe for one of the same name.
    pub gone: Vec<Key>,
}

/// Everything by name.
#[derive(Default)]
pub(super) struct Tables {
    pub playgrounds: BTreeMap<Key, Tracked>,
    pub by_uid: BTreeMap<String, Key>,
    pub models: Cache<String, Result<Arc<ModelSpec>, String>>,
    pub runtimes: Cache<String, Result<Arc<BackendRuntimeSpec>, String>>,
    pub revisions: Cache<Key, (String, Arc<Revision>)>,
    /// By the uid of the Playground.
    pub revisions_of: BTreeMap<String, BTreeSet<Key>>,
    pub config_maps: Cache<Key, String>,
    pub policies: Cache<Key, Sole>,
    pub budgets: Cache<Key, Sole>,
    listing: BTreeSet<Key>,
    pub playgrounds_whole: bool,
}

impl Tables {
    /// Whether every list has been seen whole: before that nothing may be decided.
    pub(super) fn is_whole(&self) -> bool {
        self.playgrounds_whole
            && self.models.is_whole()
            && self.runtimes.is_whole()
            && self.revisions.is_whole()
            && self.config_maps.is_whole()
            && self.policies.is_whole()
            && self.budgets.is_whole()
    }

    /// Takes in a change of a Playground.
    pub(super) fn playground(&mut self, event: Event<DynamicObject>) -> Changes {
        let mut changes = Changes::default();
        match event {
            Event::Init => self.listing = self.playgrounds.keys().cloned().collect(),
            Event::InitApply(object) => {
                self.listing.remove(&key_of(&object.metadata));
                self.put(object, &mut changes);
            }
            Event::Apply(object) => self.put(object, &mut changes),
            Event::Delete(object) => self.drop_playground(&key_of(&object.metadata), &mut changes),
            Event::InitDone => {
                self.playgrounds_whole = true;
                let unlisted = std::mem::take(&mut self.listing);
                unlisted.iter().for_each(|key| self.drop_playground(key, &mut changes));
            }
        }
        changes
    }

    fn drop_playground(&mut self, key: &Key, changes: &mut Changes) {
        if let Some(gone) = self.playgrounds.remove(key) {
            self.by_uid.remove(&gone.owner.uid);
            changes.gone.push(key.clone());
        }
    }

    fn put(&mut self, object: DynamicObject, changes: &mut Changes) {
        let key = key_of(&object.metadata);
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        if self.playgrounds.get(&key).is_some_and(|known| known.owner.uid != uid) {
            self.drop_playground(&key, changes);
        }
        let number = |version: &str| version.parse::<u64>().unwrap_or(u64::MAX);
        let is_old = |known: &Tracked| number(&version) <= number(&known.version) && known.unreadable.is_none();
        if self.playgrounds.get(&key).is_some_and(is_old) {
            // An answer to a write of its own told of it already.
            return;
        }
        let (mut playground, unreadable) = match read::<Playground>(&object) {
            Ok(playground) => (playground, None),
            Err(error) => (nameless(&object.metadata), Some(error)),
        };
        playground.metadata.managed_fields = None;
        let stored = playground.status.take().unwrap_or_default();
        let same_spec = |known: &Tracked| {
            known.playground.spec == playground.spec
                && known.playground.metadata.annotations == playground.metadata.annotations
                && known.playground.metadata.finalizers == playground.metadata.finalizers
                && known.playground.metadata.deletion_timestamp == playground.metadata.deletion_timestamp
                && known.unreadable == unreadable
        };
        match self.playgrounds.get_mut(&key) {
            Some(known) => {
                let unchanged = same_spec(known) && known.stored == stored;
                known.playground = playground;
                known.unreadable = unreadable;
                known.version = version;
                // Who leads alone writes the status: what is known goes before what is read.
                known.stored = stored;
                changes.seen.extend((!unchanged).then_some(key));
            }
            None => {
                let owner = Owner::of(&playground);
                self.by_uid.insert(owner.uid.clone(), key.clone());
                let tracked = Tracked {
                    owner,
                    playground,
                    unreadable,
                    version,
                    status: stored.clone(),
                    stored,
                    written: None,
                    memory: Memory::default(),
                    checked: None,
                    failures: 0,
                    refused: None,
                };
                self.playgrounds.insert(key.clone(), tracked);
                changes.seen.push(key);
            }
        }
    }

    /// Takes in a change of a stored revision. Returns the uid of its Playground.
    pub(super) fn revision(&mut self, event: Event<ControllerRevision>) -> Option<String> {
        match event {
            Event::Init => self.revisions.begin(),
            Event::InitApply(object) | Event::Apply(object) => {
                let key = key_of(&object.metadata);
                let owner = controller(&object.metadata)?;
                let data = object.data.map(|data| data.0).unwrap_or_default();
                let Some(revision) = Revision::read(&key.1, object.revision, &data) else {
                    tracing::warn!(namespace = %key.0, name = %key.1, "a stored revision is not what its name says; ignored");
                    return None;
                };
                self.put_revision(key, owner.clone(), Arc::new(revision));
                return Some(owner);
            }
            Event::Delete(object) => self.drop_revision(&key_of(&object.metadata)),
            Event::InitDone => {
                for (key, (owner, _)) in self.revisions.finish() {
                    if let Some(keys) = self.revisions_of.get_mut(&owner) {
                        keys.remove(&key);
                    }
                }
            }
        }
        None
    }

    pub(super) fn put_revision(&mut self, key: Key, owner: String, revision: Arc<Revision>) {
        self.revisions_of.entry(owner.clone()).or_default().insert(key.clone());
        self.revisions.put(key, (owner, revision));
    }

    pub(super) fn drop_revision(&mut self, key: &Key) {
        let Some((owner, _)) = self.revisions.remove(key) else { return };
        if let Some(keys) = self.revisions_of.get_mut(&owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.revisions_of.remove(&owner);
            }
        }
    }

    /// The stored revisions of a Playground.
    pub(super) fn known(&self, uid: &str) -> Vec<Arc<Revision>> {
        let keys = self.revisions_of.get(uid).into_iter().flatten();
        keys.filter_map(|key| self.revisions.get(key)).map(|(_, revision)| revision.clone()).collect()
    }

    /// A Model by its name, or by the name that it serves.
    pub(super) fn model(&self, wanted: &str) -> Option<(&String, &Result<Arc<ModelSpec>, String>)> {
        let named = self.models.entry(wanted);
        let serves =
            |model: &Result<Arc<ModelSpec>, String>| model.as_ref().is_ok_and(|model| model.served_name == wanted);
        named.or_else(|| {
            let mut all: Vec<_> = self.models.iter().filter(|(_, model)| serves(model)).collect();
            all.sort_by_key(|(name, _)| *name);
            all.into_iter().next()
        })
    }
}

/// Follows a watch of objects with a spec.
pub(super) fn follow<S: DeserializeOwned>(
    table: &mut Cache<String, Result<Arc<S>, String>>,
    event: Event<DynamicObject>,
) {
    match event {
        Event::Init => table.begin(),
        Event::InitApply(object) | Event::Apply(object) => {
            let spec = serde_json::from_value(object.data["spec"].clone());
            table.put(object.name_any(), spec.map(Arc::new).map_err(|error| error.to_string()));
        }
        Event::Delete(object) => drop(table.remove(&object.name_any())),
        Event::InitDone => drop(table.finish()),
    }
}

/// Follows a watch of what there is one of.
pub(super) fn follow_sole<K: Serialize>(
    table: &mut Cache<Key, Sole>,
    event: Event<K>,
    metadata: impl Fn(&K) -> &ObjectMeta,
) -> Option<String> {
    match event {
        Event::Init => table.begin(),
        Event::InitApply(object) | Event::Apply(object) => {
            let sole = sole_of(&object, metadata(&object))?;
            let owner = sole.owner.clone();
            let before = table.put(key_of(metadata(&object)), sole.clone());
            return (before != Some(sole)).then_some(owner);
        }
        Event::Delete(object) => return table.remove(&key_of(metadata(&object))).map(|sole| sole.owner),
        Event::InitDone => drop(table.finish()),
    }
    None
}

pub(super) fn sole_of<K: Serialize>(object: &K, metadata: &ObjectMeta) -> Option<Sole> {
    let annotations = metadata.annotations.as_ref();
    Some(Sole {
        owner: controller(metadata)?,
        applied: annotations.and_then(|all| all.get(names::APPLIED)).cloned().unwrap_or_default(),
        spec: serde_json::to_value(object).ok()?["spec"].take(),
    })
}

/// Uid of the controlling owner.
pub(super) fn controller(metadata: &ObjectMeta) -> Option<String> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.clone())
}

fn read<K: DeserializeOwned>(object: &DynamicObject) -> Result<K, String> {
    serde_json::to_value(object).and_then(serde_json::from_value).map_err(|error| error.to_string())
}

/// Stands for a Playground that can't be read.
fn nameless(metadata: &ObjectMeta) -> Playground {
    Playground { metadata: metadata.clone(), spec: PlaygroundSpec::nothing(), status: None }
}

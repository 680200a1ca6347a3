//! Objects, their versions and their history.

use crate::{
    apply::{Owners, Writer},
    fields::Shape,
    kinds::{Kind, Kinds},
    pods,
    reply::Refusal,
    schema,
    watch::{Change, Watches},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp, fmt::temporal::DateTimePrinter};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// Changes that are kept for watches that start in the past.
const HISTORY: usize = 50_000;

type Names = BTreeMap<(String, String), Stored>;

struct Stored {
    object: Arc<Value>,
    owners: Owners,
}

/// Everything.
pub(crate) struct Store {
    pub kinds: Kinds,
    objects: HashMap<(String, String), Names>,
    version: u64,
    uids: u64,
    history: VecDeque<Change>,
    /// Watches start at this version or later.
    oldest: u64,
    pub watches: Watches,
    pub collects_garbage: bool,
    pub tokens: pods::Tokens,
}

impl Default for Store {
    fn default() -> Self {
        let mut store = Self {
            kinds: Kinds::default(),
            objects: HashMap::new(),
            version: 1,
            uids: 0,
            history: VecDeque::new(),
            oldest: 0,
            watches: Watches::default(),
            collects_garbage: true,
            tokens: pods::Tokens::default(),
        };
        store.load("namespaces", [json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})]);
        store
    }
}

/// How one object is meant.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub kind: &'a Kind,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Target<'_> {
    fn table(self) -> (String, String) {
        (self.kind.group.clone(), self.kind.plural.clone())
    }
    fn key(self) -> (String, String) {
        (self.namespace.to_owned(), self.name.to_owned())
    }
}

pub(crate) fn now() -> String {
    in_seconds(0)
}

fn in_seconds(seconds: i64) -> String {
    let mut text = String::new();
    let now = Timestamp::now();
    let then = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
    let _ = DateTimePrinter::new().precision(Some(0)).print_timestamp(&then, &mut text);
    text
}

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, target: Target<'_>) -> Result<Arc<Value>, Refusal> {
        let found = self.objects.get(&target.table()).and_then(|names| names.get(&target.key()));
        found
            .map(|stored| stored.object.clone())
            .ok_or_else(|| Refusal::not_found(&target.kind.resource(), target.name))
    }

    /// Objects of a kind in order, from after `start`.
    pub(crate) fn range<'s>(
        &'s self,
        kind: &Kind,
        start: Option<(String, String)>,
    ) -> impl Iterator<Item = &'s Arc<Value>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = start.map_or(Unbounded, Excluded);
        let names = self.objects.get(&(kind.group.clone(), kind.plural.clone()));
        names
            .into_iter()
            .flat_map(move |names| names.range((from.clone(), Unbounded)))
            .map(|(_, stored)| &stored.object)
    }

    pub(crate) fn owners(&self, target: Target<'_>) -> Owners {
        let found = self.objects.get(&target.table()).and_then(|names| names.get(&target.key()));
        found.map(|stored| stored.owners.clone()).unwrap_or_default()
    }

    /// Makes a new object of `object`.
    pub(crate) fn create(
        &mut self,
        target: Target<'_>,
        mut object: Value,
        owners: Owners,
    ) -> Result<Arc<Value>, Refusal> {
        if self.get(target).is_ok() {
            return Err(Refusal::exists(&target.kind.resource(), target.name));
        }
        if target.kind.namespaced && !self.has_namespace(target.namespace) {
            return Err(Refusal::not_found("namespaces", target.namespace));
        }
        if target.kind.has_status && target.kind.schema.is_some() {
            object.as_object_mut().and_then(|map| map.remove("status"));
        }
        if target.kind.plural == "pods" {
            pods::admit(self, target, &mut object)?;
        }
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.uids).into();
        metadata["creationTimestamp"] = now().into();
        metadata["name"] = target.name.into();
        if target.kind.namespaced {
            metadata["namespace"] = target.namespace.into();
        }
        if target.kind.has_generation {
            metadata["generation"] = 1.into();
        }
        self.checked(target, &mut object, None)?;
        Ok(self.commit(target, Some(object), owners))
    }

    /// Puts `object` in the place of the one that is there, as a write of `subresource`.
    pub(crate) fn put(
        &mut self,
        target: Target<'_>,
        mut object: Value,
        owners: Owners,
        subresource: &str,
    ) -> Result<Arc<Value>, Refusal> {
        let live = self.get(target)?;
        let stale = |version: &Value| {
            version
                .as_str()
                .is_some_and(|version| !version.is_empty() && *version != live["metadata"]["resourceVersion"])
        };
        if stale(&object["metadata"]["resourceVersion"]) {
            return Err(Refusal::stale(&target.kind.resource(), target.name));
        }
        if object["metadata"]["uid"].as_str().is_some_and(|uid| *uid != live["metadata"]["uid"]) {
            return Err(Refusal::conflict(
                &target.kind.resource(),
                target.name,
                "Precondition failed: UID in precondition",
            ));
        }
        if subresource == "status" {
            let status = object.get("status").cloned();
            let managed = object["metadata"].get("managedFields").cloned();
            object = (*live).clone();
            set(&mut object, "status", status);
            managed.into_iter().for_each(|managed| object["metadata"]["managedFields"] = managed);
        } else if target.kind.has_status {
            set(&mut object, "status", live.get("status").cloned());
        }
        for fixed in [
            "uid",
            "creationTimestamp",
            "name",
            "namespace",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ] {
            set(&mut object["metadata"], fixed, live["metadata"].get(fixed).cloned());
        }
        self.checked(target, &mut object, Some(&live))?;
        if target.kind.plural == "configmaps" && live["immutable"] == true && object["data"] != live["data"] {
            let why = "Forbidden: field is immutable when `immutable` is set".to_owned();
            return Err(Refusal::invalid(&target.kind.kind, target.name, vec![("data".to_owned(), why)]));
        }
        if target.kind.has_generation && without_status(&object) != without_status(&live) {
            object["metadata"]["generation"] = (live["metadata"]["generation"].as_i64().unwrap_or(1) + 1).into();
        }
        let has_ended = !object["metadata"]["deletionTimestamp"].is_null()
            && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
            && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        if has_ended {
            return Ok(self.end(target, object));
        }
        if same_but_for_version(&object, &live) {
            return Ok(live);
        }
        Ok(self.commit(target, Some(object), owners))
    }

    /// Deletes an object: at once, or by marking it when finalizers or a grace period hold it.
    pub(crate) fn delete(&mut self, target: Target<'_>, options: &Value) -> Result<Arc<Value>, Refusal> {
        let live = self.get(target)?;
        for (field, name) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            if options["preconditions"][field].as_str().is_some_and(|wanted| *wanted != live["metadata"][field]) {
                let why = format!("Precondition failed: {name} in precondition: {}", options["preconditions"][field]);
                return Err(Refusal::conflict(&target.kind.resource(), target.name, &why));
            }
        }
        let grace = pods::grace(target, &live, options);
        let held = live["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let mut object = (*live).clone();
        if !held && grace == 0 {
            return Ok(self.end(target, object));
        }
        let marked = !live["metadata"]["deletionTimestamp"].is_null();
        if marked && grace >= live["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) {
            return Ok(live);
        }
        // When it will be killed, not when that was asked.
        object["metadata"]["deletionTimestamp"] = in_seconds(grace).into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        let owners = self.owners(target);
        Ok(self.commit(target, Some(object), owners))
    }

    /// Takes an object out, and what belonged to it alone.
    fn end(&mut self, target: Target<'_>, object: Value) -> Arc<Value> {
        let ended = self.commit_end(target, object);
        if self.collects_garbage {
            self.collect(&ended["metadata"]["uid"]);
        }
        ended
    }

    fn collect(&mut self, uid: &Value) {
        let owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid) && owners.len() == 1)
        };
        let mut dependents = Vec::new();
        for ((group, plural), names) in &self.objects {
            for ((namespace, name), stored) in names {
                if owned(&stored.object) {
                    dependents.push((group.clone(), plural.clone(), namespace.clone(), name.clone()));
                }
            }
        }
        for (group, plural, namespace, name) in dependents {
            let Some(kind) = self.kinds.get(&group, &plural).cloned() else { continue };
            let _ = self.delete(Target { kind: &kind, namespace: &namespace, name: &name }, &json!({}));
        }
    }

    fn checked(&self, target: Target<'_>, object: &mut Value, live: Option<&Value>) -> Result<(), Refusal> {
        let Some(schema) = &target.kind.schema else { return Ok(()) };
        schema::prune(object, schema);
        schema::fill(object, schema);
        let mut causes = Vec::new();
        schema::check(object, schema, "", &mut causes);
        if causes.is_empty()
            && let Some(rules) = &target.kind.rules
            && let Err(broken) = self.kinds.rules.validate_compiled(rules, object, live)
        {
            let broken = broken.into_vec().into_iter();
            causes = broken.map(|error| (error.field_path, format!("Invalid value: {}", error.message))).collect();
        }
        if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid(&target.kind.qualified(), target.name, causes)) }
    }

    fn commit(&mut self, target: Target<'_>, object: Option<Value>, owners: Owners) -> Arc<Value> {
        self.version += 1;
        let mut object = object.unwrap_or_default();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        object["metadata"]["managedFields"] = owners.to_value(&target.kind.api_version());
        let object = Arc::new(object);
        let names = self.objects.entry(target.table()).or_default();
        let before = names.insert(target.key(), Stored { object: object.clone(), owners }).map(|stored| stored.object);
        self.tell(target, before, Some(object.clone()), object.clone());
        object
    }

    fn commit_end(&mut self, target: Target<'_>, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let last = Arc::new(object);
        let names = self.objects.entry(target.table()).or_default();
        let before = names.remove(&target.key()).map(|stored| stored.object);
        self.tell(target, before, None, last.clone());
        last
    }

    fn tell(&mut self, target: Target<'_>, before: Option<Arc<Value>>, after: Option<Arc<Value>>, last: Arc<Value>) {
        let (group, plural) = target.table();
        let change = Change { version: self.version, group, plural, before, after, last };
        self.watches.tell(&change);
        self.history.push_back(change);
        if self.history.len() > HISTORY
            && let Some(dropped) = self.history.pop_front()
        {
            self.oldest = dropped.version;
        }
    }

    /// The changes after `version`.
    pub(crate) fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Refusal> {
        if version < self.oldest {
            return Err(Refusal::gone(&format!("too old resource version: {version} ({})", self.oldest)));
        }
        Ok(self.history.iter().filter(move |change| change.version > version))
    }

    pub(crate) fn expire_watches(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.history.clear();
        let status = Refusal::gone("too old resource version").to_value();
        self.watches.expire(&status);
    }

    fn has_namespace(&self, name: &str) -> bool {
        let names = self.objects.get(&(String::new(), "namespaces".to_owned()));
        names.is_some_and(|names| names.contains_key(&(String::new(), name.to_owned())))
    }

    pub(crate) fn load(&mut self, plural: &str, objects: impl IntoIterator<Item = Value>) {
        let Some(kind) = self.kinds.by_plural(plural).cloned() else { return };
        for mut object in objects {
            self.version += 1;
            self.uids += 1;
            let metadata = &mut object["metadata"];
            metadata["resourceVersion"] = self.version.to_string().into();
            if metadata["uid"].is_null() {
                metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.uids).into();
            }
            metadata["creationTimestamp"] = now().into();
            if kind.has_generation && metadata["generation"].is_null() {
                metadata["generation"] = 1.into();
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = (text(&metadata["namespace"]), text(&metadata["name"]));
            let stored = Stored { object: Arc::new(object), owners: Owners::default() };
            self.objects.entry((kind.group.clone(), kind.plural.clone())).or_default().insert(key, stored);
        }
        self.oldest = self.version;
    }

    pub(crate) fn stored(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.kinds.by_plural(plural)?;
        self.get(Target { kind, namespace, name }).ok().map(|object| (*object).clone())
    }

    pub(crate) fn count(&self, plural: &str, is: impl Fn(&Value) -> bool) -> usize {
        let Some(kind) = self.kinds.by_plural(plural) else { return 0 };
        self.range(kind, None).filter(|object| is(object)).count()
    }

    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        let Some(kind) = self.kinds.by_plural(plural) else { return Vec::new() };
        self.range(kind, None).map(|object| (**object).clone()).collect()
    }

    /// Notes a write that was no apply.
    pub(crate) fn updated_owners(
        &self,
        target: Target<'_>,
        before: &Value,
        after: &Value,
        writer: Writer<'_>,
    ) -> Owners {
        let mut owners = self.owners(target);
        owners.update(before, after, Shape::of(target.kind.schema.as_ref()), writer);
        owners
    }
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    match (object.as_object_mut(), value) {
        (Some(map), Some(value)) => {
            map.insert(field.to_owned(), value);
        }
        (Some(map), None) => {
            map.remove(field);
        }
        (None, _) => {}
    }
}

/// What counts as a generation.
fn without_status(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(field, _)| !["metadata", "status", "apiVersion", "kind"].contains(&field.as_str())).collect()
}

fn same_but_for_version(one: &Value, other: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        for field in ["resourceVersion", "managedFields"] {
            set(&mut object["metadata"], field, None);
        }
        object
    };
    bare(one) == bare(other)
}

//! Fields of objects as paths, and who owns them.
//!
//! Ownership is kept by leaf: a value that is no map, a list with one owner, an entry of a list of values, and for a list
//! of objects with a key, each leaf of each entry and the entry itself.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// One step into an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// A field of a map.
    Field(String),
    /// The entry of a list with this key, as JSON.
    Entry(String),
    /// The entry of a list of values.
    Item(String),
}

pub(crate) type Path = Vec<Step>;
pub(crate) type Paths = BTreeSet<Path>;

/// How a list is merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    Map(Vec<String>),
}

/// What is known about the lists below some place: a schema, or for built-in kinds the names of fields.
#[derive(Clone, Copy)]
pub(crate) struct Shape<'a> {
    schema: Option<&'a Value>,
    /// Whether `schema` covers this place: below it nothing is guessed then.
    custom: bool,
}

/// Lists of built-in kinds that are merged, by the name of their field.
const MERGED: [(&str, &[&str]); 9] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("volumes", &["name"]),
    ("env", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("ports", &["containerPort", "protocol"]),
    ("conditions", &["type"]),
    ("imagePullSecrets", &["name"]),
    ("ownerReferences", &["uid"]),
];

impl<'a> Shape<'a> {
    pub(crate) fn of(schema: Option<&'a Value>) -> Self {
        Self { schema, custom: schema.is_some() }
    }

    fn field(self, name: &str) -> Self {
        // Metadata has the same shape for every kind.
        let custom = self.custom && name != "metadata";
        let schema = self.schema.filter(|_| custom);
        let inner =
            schema.and_then(|schema| schema["properties"].get(name).or_else(|| schema.get("additionalProperties")));
        Self { schema: inner, custom }
    }

    fn items(self) -> Self {
        Self { schema: self.schema.and_then(|schema| schema.get("items")), custom: self.custom }
    }

    fn list(self, name: &str) -> ListKind {
        if name == "finalizers" {
            return ListKind::Set;
        }
        if self.custom {
            let kind = self.schema.and_then(|schema| schema["x-kubernetes-list-type"].as_str());
            return match kind {
                Some("set") => ListKind::Set,
                Some("map") => {
                    let keys = self.schema.and_then(|schema| schema["x-kubernetes-list-map-keys"].as_array());
                    ListKind::Map(
                        keys.into_iter().flatten().filter_map(|key| key.as_str().map(str::to_owned)).collect(),
                    )
                }
                _ => ListKind::Atomic,
            };
        }
        let merged = MERGED.iter().find(|(field, _)| *field == name);
        merged.map_or(ListKind::Atomic, |(_, keys)| ListKind::Map(keys.iter().map(|&key| key.to_owned()).collect()))
    }
}

/// The key of an entry of a list, as JSON with its fields in order. A missing protocol is TCP, as the server fills it in.
fn key_of(entry: &Value, keys: &[String]) -> String {
    let missing = |key: &str| if key == "protocol" { Value::from("TCP") } else { Value::Null };
    let fields: Map<String, Value> =
        keys.iter().map(|key| (key.clone(), entry.get(key).cloned().unwrap_or_else(|| missing(key)))).collect();
    Value::Object(fields).to_string()
}

/// Fields that nobody owns.
fn is_ownerless(path: &[Step]) -> bool {
    let names: Vec<&str> =
        path.iter().map(|step| if let Step::Field(name) = step { name.as_str() } else { "" }).collect();
    match names.as_slice() {
        ["apiVersion" | "kind"] => true,
        ["metadata", field, ..] => !["labels", "annotations", "finalizers", "ownerReferences"].contains(field),
        _ => false,
    }
}

/// All leaves of an object.
pub(crate) fn leaves(object: &Value, shape: Shape<'_>) -> Paths {
    let mut paths = Paths::new();
    collect(object, shape, "", &mut Path::new(), &mut paths);
    paths
}

fn collect(value: &Value, shape: Shape<'_>, name: &str, path: &mut Path, paths: &mut Paths) {
    if is_ownerless(path) {
        return;
    }
    match value {
        Value::Object(map) if !map.is_empty() || path.is_empty() => {
            for (field, value) in map {
                path.push(Step::Field(field.clone()));
                collect(value, shape.field(field), field, path, paths);
                path.pop();
            }
        }
        Value::Array(list) => match shape.list(name) {
            ListKind::Atomic => {
                paths.insert(path.clone());
            }
            ListKind::Set => {
                for item in list {
                    path.push(Step::Item(item.to_string()));
                    paths.insert(path.clone());
                    path.pop();
                }
            }
            ListKind::Map(keys) => {
                for entry in list {
                    path.push(Step::Entry(key_of(entry, &keys)));
                    collect(entry, shape.items(), "", path, paths);
                    paths.insert(path.clone());
                    path.pop();
                }
            }
        },
        _ => {
            paths.insert(path.clone());
        }
    }
}

/// The value at a path.
pub(crate) fn at<'v>(object: &'v Value, path: &[Step]) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(item) => value.as_array()?.iter().find(|found| found.to_string() == *item),
        Step::Entry(key) => value.as_array()?.iter().find(entry_of(key)),
    })
}

/// Recognises the entry with this key.
fn entry_of(key: &str) -> impl Fn(&&Value) -> bool {
    let key: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
    move |entry| {
        let same = |(field, wanted): (&String, &Value)| match entry.get(field) {
            Some(found) => found == wanted,
            None => wanted.is_null() || (field == "protocol" && wanted == "TCP"),
        };
        key.iter().all(same)
    }
}

/// Takes the value at a path away, if it is there.
pub(crate) fn remove(object: &mut Value, path: &[Step]) {
    let Some((last, parents)) = path.split_last() else { return };
    let parent = parents.iter().try_fold(object, |value, step| match step {
        Step::Field(name) => value.get_mut(name),
        Step::Item(_) => None,
        Step::Entry(key) => {
            let is = entry_of(key);
            value.as_array_mut()?.iter_mut().find(|entry| is(&&**entry))
        }
    });
    match (parent, last) {
        (Some(Value::Object(map)), Step::Field(name)) => {
            map.remove(name);
        }
        (Some(Value::Array(list)), Step::Item(item)) => list.retain(|found| {
            let text = found.to_string();
            text != *item
        }),
        (Some(Value::Array(list)), Step::Entry(key)) => {
            let is = entry_of(key);
            list.retain(|entry| !is(&entry));
        }
        _ => {}
    }
}

/// Puts `over` on `base`, lists merged as their kind says.
pub(crate) fn put_over(base: &mut Value, over: &Value, shape: Shape<'_>, name: &str) {
    match (&mut *base, over) {
        (Value::Object(below), Value::Object(above)) => {
            for (field, value) in above {
                match below.get_mut(field) {
                    Some(found) => put_over(found, value, shape.field(field), field),
                    None => {
                        below.insert(field.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(below), Value::Array(above)) => match shape.list(name) {
            ListKind::Atomic => *base = over.clone(),
            ListKind::Set => {
                for item in above {
                    if !below.contains(item) {
                        below.push(item.clone());
                    }
                }
            }
            ListKind::Map(keys) => {
                for entry in above {
                    let key = key_of(entry, &keys);
                    match below.iter_mut().find(|found| key_of(found, &keys) == key) {
                        Some(found) => put_over(found, entry, shape.items(), ""),
                        None => below.push(entry.clone()),
                    }
                }
            }
        },
        _ => *base = over.clone(),
    }
}

/// Paths as `managedFields` shows them.
pub(crate) fn to_fields_v1(paths: &Paths) -> Value {
    let mut root = Value::Object(Map::new());
    for path in paths {
        let mut place = &mut root;
        for step in path {
            place = &mut place[match step {
                Step::Field(name) => format!("f:{name}"),
                Step::Entry(key) => format!("k:{key}"),
                Step::Item(item) => format!("v:{item}"),
            }];
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        if matches!(path.last(), Some(Step::Entry(_))) {
            place["."] = Value::Object(Map::new());
        }
    }
    root
}

//! Server-side apply, and what other writes do to ownership.

use crate::{
    fields::{self, Path, Paths, Shape, Step},
    reply::Refusal,
};
use serde_json::{Value, json};

/// Who owns which fields of one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners(Vec<Owner>);

#[derive(Debug, Clone)]
struct Owner {
    manager: String,
    /// By apply, or by any other write.
    applies: bool,
    subresource: String,
    paths: Paths,
}

/// Who writes, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub manager: &'a str,
    pub subresource: &'a str,
}

impl Owners {
    /// What an apply makes of `live`.
    pub(crate) fn apply(
        &mut self,
        live: &Value,
        config: &Value,
        shape: Shape<'_>,
        writer: Writer<'_>,
        force: bool,
    ) -> Result<Value, Refusal> {
        let wanted = fields::leaves(config, shape);
        let is_me =
            |owner: &Owner| owner.manager == writer.manager && owner.applies && owner.subresource == writer.subresource;
        let differs = |path: &Path| fields::at(live, path) != fields::at(config, path);
        let leaf = |path: &Path| !matches!(path.last(), Some(Step::Entry(_)));
        let mut conflicts = Vec::new();
        for owner in self.0.iter().filter(|owner| !is_me(owner)) {
            for path in owner.paths.intersection(&wanted).filter(|path| leaf(path) && differs(path)) {
                conflicts.push((dotted(path), format!("conflict with {:?}", owner.manager)));
            }
        }
        if !conflicts.is_empty() && !force {
            let list: Vec<String> = conflicts.iter().map(|(field, why)| format!("{why}: {field}")).collect();
            let message = format!("Apply failed with {} conflicts: {}", list.len(), list.join("; "));
            return Err(Refusal { causes: conflicts, ..Refusal::new(409, "Conflict", message) });
        }
        for owner in self.0.iter_mut().filter(|owner| !is_me(owner)) {
            owner.paths.retain(|path| !(wanted.contains(path) && leaf(path) && differs(path)));
        }
        let before = self.0.iter().find(|owner| is_me(owner)).map(|owner| owner.paths.clone()).unwrap_or_default();
        let mut merged = live.clone();
        // The shortest first: an entry goes whole, before the fields that tell which one it is.
        let mut dropped: Vec<&Path> = before.difference(&wanted).collect();
        dropped.sort_by_key(|path| path.len());
        for path in dropped {
            let others_own = |owner: &Owner| !is_me(owner) && owner.paths.iter().any(|owned| owned.starts_with(path));
            if !self.0.iter().any(others_own) {
                fields::remove(&mut merged, path);
            }
        }
        fields::put_over(&mut merged, config, shape, "");
        self.0.retain(|owner| !is_me(owner));
        self.0.push(Owner {
            manager: writer.manager.to_owned(),
            applies: true,
            subresource: writer.subresource.to_owned(),
            paths: wanted,
        });
        self.0.retain(|owner| !owner.paths.is_empty());
        Ok(merged)
    }

    /// Notes a write that was no apply: what it changed is its writer's now.
    pub(crate) fn update(&mut self, before: &Value, after: &Value, shape: Shape<'_>, writer: Writer<'_>) {
        let (old, new) = (fields::leaves(before, shape), fields::leaves(after, shape));
        let changed: Paths =
            new.iter().filter(|path| fields::at(before, path) != fields::at(after, path)).cloned().collect();
        for owner in &mut self.0 {
            owner.paths.retain(|path| !changed.contains(path) && (new.contains(path) || !old.contains(path)));
        }
        let is_me = |owner: &&mut Owner| {
            owner.manager == writer.manager && !owner.applies && owner.subresource == writer.subresource
        };
        match self.0.iter_mut().find(is_me) {
            Some(owner) => owner.paths.extend(changed),
            None => self.0.push(Owner {
                manager: writer.manager.to_owned(),
                applies: false,
                subresource: writer.subresource.to_owned(),
                paths: changed,
            }),
        }
        self.0.retain(|owner| !owner.paths.is_empty());
    }

    pub(crate) fn to_value(&self, api_version: &str) -> Value {
        let entries = self.0.iter().map(|owner| {
            let operation = if owner.applies { "Apply" } else { "Update" };
            let mut entry = json!({
                "manager": owner.manager, "operation": operation, "apiVersion": api_version,
                "fieldsType": "FieldsV1", "fieldsV1": fields::to_fields_v1(&owner.paths),
            });
            if !owner.subresource.is_empty() {
                entry["subresource"] = owner.subresource.clone().into();
            }
            entry
        });
        Value::Array(entries.collect())
    }
}

fn dotted(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            Step::Entry(key) | Step::Item(key) => {
                text.push('[');
                text.push_str(key);
                text.push(']');
            }
        }
    }
    text
}

/// RFC 7386.
pub(crate) fn merge_patch(base: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *base = patch.clone();
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    let Value::Object(below) = base else { return };
    for (field, value) in changes {
        if value.is_null() {
            below.remove(field);
        } else {
            merge_patch(below.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Writer<'static> = Writer { manager: "a", subresource: "" };
    const B: Writer<'static> = Writer { manager: "b", subresource: "" };

    fn list_schema() -> Value {
        json!({"properties": {"spec": {"properties": {
            "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                     "items": {"type": "object", "properties": {"name": {}, "value": {}}}},
            "set": {"type": "array", "x-kubernetes-list-type": "set"},
            "atomic": {"type": "array"},
        }}}})
    }

    #[test]
    fn two_managers_own_entries_of_one_list() {
        let schema = list_schema();
        let shape = Shape::of(Some(&schema));
        let mut owners = Owners::default();
        let first = json!({"spec": {"list": [{"name": "x", "value": 1}], "set": ["p"], "n": 1}});
        let live = owners.apply(&json!({}), &first, shape, A, false).unwrap();
        let second = json!({"spec": {"list": [{"name": "y", "value": 2}], "set": ["q"]}});
        let live = owners.apply(&live, &second, shape, B, false).unwrap();
        assert_eq!(live["spec"]["list"], json!([{"name": "x", "value": 1}, {"name": "y", "value": 2}]));
        assert_eq!(live["spec"]["set"], json!(["p", "q"]));
        // What a manager leaves out goes, and only that.
        let live = owners.apply(&live, &json!({"spec": {"n": 1}}), shape, A, false).unwrap();
        assert_eq!(live["spec"], json!({"list": [{"name": "y", "value": 2}], "set": ["q"], "n": 1}));
    }

    #[test]
    fn a_field_of_another_conflicts_unless_forced() {
        let schema = list_schema();
        let shape = Shape::of(Some(&schema));
        let mut owners = Owners::default();
        let live = owners.apply(&json!({}), &json!({"spec": {"n": 1, "atomic": [1]}}), shape, A, false).unwrap();
        // The same value is shared ownership.
        let live = owners.apply(&live, &json!({"spec": {"n": 1}}), shape, B, false).unwrap();
        let refused = owners.clone().apply(&live, &json!({"spec": {"n": 2}}), shape, B, false).unwrap_err();
        assert!(refused.code == 409 && refused.message.contains(".spec.n"), "{}", refused.message);
        let forced = owners.apply(&live, &json!({"spec": {"n": 2}}), shape, B, true).unwrap();
        assert_eq!(forced["spec"], json!({"n": 2, "atomic": [1]}));
        assert!(owners.apply(&forced, &json!({"spec": {"n": 1, "atomic": [1]}}), shape, A, false).is_err());
    }

    #[test]
    fn an_update_takes_what_it_changed() {
        let shape = Shape::of(None);
        let mut owners = Owners::default();
        let live = owners.apply(&json!({}), &json!({"spec": {"replicas": 1, "x": 1}}), shape, A, false).unwrap();
        let scaled = json!({"spec": {"replicas": 5, "x": 1}});
        owners.update(&live, &scaled, shape, B);
        let refused = owners.apply(&scaled, &json!({"spec": {"replicas": 1, "x": 1}}), shape, A, false).unwrap_err();
        assert_eq!(refused.causes.len(), 1, "{}", refused.message);
    }
}

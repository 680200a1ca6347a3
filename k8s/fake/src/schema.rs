//! Schemas of custom resources: unknown fields dropped, defaults filled in, and what is wrong, said as the API says it.

use regex::Regex;
use serde_json::{Map, Value};
use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

type Causes = Vec<(String, String)>;

/// Drops fields that the schema does not know. The root's metadata is left alone.
pub(crate) fn prune(object: &mut Value, schema: &Value) {
    let Value::Object(map) = object else { return };
    let properties = &schema["properties"];
    map.retain(|field, _| {
        ["apiVersion", "kind", "metadata"].contains(&field.as_str()) || properties.get(field).is_some()
    });
    for (field, value) in map {
        if field != "metadata" {
            prune_value(value, &properties[field.as_str()]);
        }
    }
}

fn prune_value(value: &mut Value, schema: &Value) {
    if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) {
        return;
    }
    match value {
        Value::Object(map) => {
            let (properties, additional) = (schema.get("properties"), schema.get("additionalProperties"));
            map.retain(|field, value| {
                // A null where none is allowed is as good as nothing.
                !value.is_null() && (additional.is_some() || properties.is_some_and(|known| known.get(field).is_some()))
            });
            for (field, value) in map {
                let inner = properties.and_then(|known| known.get(field)).or(additional);
                inner.into_iter().for_each(|inner| prune_value(value, inner));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| prune_value(item, &schema["items"])),
        _ => {}
    }
}

/// Fills defaults in.
pub(crate) fn fill(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = inner.get("default").filter(|_| !map.contains_key(field)) {
                    map.insert(field.clone(), default.clone());
                }
                map.get_mut(field).into_iter().for_each(|value| fill(value, inner));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| fill(item, &schema["items"])),
        _ => {}
    }
}

/// Everything that is wrong, by field.
pub(crate) fn check(value: &Value, schema: &Value, path: &str, causes: &mut Causes) {
    let mut wrong = |message: String| causes.push((path.to_owned(), format!("Invalid value: {message}")));
    let is_type = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    if !is_type {
        return wrong(format!(
            "{path} in body must be of type {}: {value}",
            schema["type"].as_str().unwrap_or_default()
        ));
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        wrong(format!("{value}: supported values: {}", Value::from(choices.clone())));
    }
    match value {
        Value::String(text) => check_text(text, schema, path, &mut wrong),
        Value::Number(number) => check_number(number.as_f64().unwrap_or_default(), schema, path, &mut wrong),
        Value::Array(list) => {
            check_count(list.len(), schema, ["minItems", "maxItems"], path, &mut wrong);
            check_keys(list, schema, path, causes);
            for (index, item) in list.iter().enumerate() {
                check(item, &schema["items"], &format!("{path}[{index}]"), causes);
            }
        }
        Value::Object(map) => {
            check_count(map.len(), schema, ["minProperties", "maxProperties"], path, &mut wrong);
            check_map(map, schema, path, causes);
        }
        _ => {}
    }
}

fn check_text(text: &str, schema: &Value, path: &str, wrong: &mut impl FnMut(String)) {
    let length = text.chars().count();
    if schema["maxLength"].as_u64().is_some_and(|most| length as u64 > most) {
        wrong(format!("\"{text}\": {path} in body should be at most {} chars long", schema["maxLength"]));
    }
    if schema["minLength"].as_u64().is_some_and(|least| (length as u64) < least) {
        wrong(format!("\"{text}\": {path} in body should be at least {} chars long", schema["minLength"]));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !matches(pattern, text)
    {
        wrong(format!("\"{text}\": {path} in body should match '{pattern}'"));
    }
}

/// Patterns are few, and made again for each text they would be most of what a write takes.
fn matches(pattern: &str, text: &str) -> bool {
    static KNOWN: LazyLock<Mutex<HashMap<String, Option<Regex>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if !known.contains_key(pattern) {
        known.insert(pattern.to_owned(), Regex::new(pattern).ok());
    }
    known.get(pattern).and_then(Option::as_ref).is_some_and(|pattern| pattern.is_match(text))
}

fn check_number(number: f64, schema: &Value, path: &str, wrong: &mut impl FnMut(String)) {
    if schema["minimum"].as_f64().is_some_and(|least| number < least) {
        wrong(format!("{number}: {path} in body should be greater than or equal to {}", schema["minimum"]));
    }
    if schema["maximum"].as_f64().is_some_and(|most| number > most) {
        wrong(format!("{number}: {path} in body should be less than or equal to {}", schema["maximum"]));
    }
}

fn check_count(count: usize, schema: &Value, [least, most]: [&str; 2], path: &str, wrong: &mut impl FnMut(String)) {
    let count = count as u64;
    if schema[least].as_u64().is_some_and(|least| count < least) {
        wrong(format!("{count}: {path} in body should have at least {} items", schema[least]));
    }
    if schema[most].as_u64().is_some_and(|most| count > most) {
        wrong(format!("{count}: {path} in body should have at most {} items", schema[most]));
    }
}

fn check_keys(list: &[Value], schema: &Value, path: &str, causes: &mut Causes) {
    let keys: Vec<&str> =
        schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_set = schema["x-kubernetes-list-type"] == "set";
    if keys.is_empty() && !is_set {
        return;
    }
    let key =
        |item: &Value| if is_set { item.to_string() } else { keys.iter().map(|key| item[*key].to_string()).collect() };
    let mut seen = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let key = key(item);
        if seen.contains(&key) {
            causes.push((format!("{path}[{index}]"), format!("Duplicate value: {key}")));
        }
        seen.push(key);
    }
}

fn check_map(map: &Map<String, Value>, schema: &Value, path: &str, causes: &mut Causes) {
    let inside = |field: &str| if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(required) {
            causes.push((inside(required), "Required value".to_owned()));
        }
    }
    for (field, value) in map {
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&field.as_str()) {
            continue;
        }
        let inner = schema["properties"].get(field).or_else(|| schema.get("additionalProperties"));
        inner.into_iter().for_each(|inner| check(value, inner, &inside(field), causes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wrong_values_are_named_by_field() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["a"], "properties": {
            "a": {"type": "integer", "minimum": 1, "maximum": 3},
            "b": {"type": "string", "maxLength": 2, "pattern": "^x"},
            "c": {"type": "array", "maxItems": 1, "items": {"type": "boolean"}, "x-kubernetes-list-type": "set"},
            "d": {"type": "integer", "default": 7},
        }}}});
        let wrong = |spec: Value| {
            let mut causes = Causes::new();
            check(&json!({ "spec": spec }), &schema, "", &mut causes);
            causes.into_iter().map(|(field, _)| field).collect::<Vec<_>>()
        };
        assert!(wrong(json!({"a": 1, "b": "xy", "c": [true]})).is_empty());
        assert_eq!(wrong(json!({"b": "abc"})), ["spec.a", "spec.b", "spec.b"]);
        assert_eq!(wrong(json!({"a": 4, "c": [1, 1]})), ["spec.a", "spec.c", "spec.c[1]", "spec.c[0]", "spec.c[1]"]);
        let mut object = json!({"metadata": {"x": 1}, "spec": {"a": 1, "unknown": 1, "b": null}, "other": 1});
        prune(&mut object, &schema);
        fill(&mut object, &schema);
        assert_eq!(object, json!({"metadata": {"x": 1}, "spec": {"a": 1, "d": 7}}));
    }
}

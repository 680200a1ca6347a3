//! The definitions of the custom resources, as YAML to apply.

use super::{BackendRuntime, Model, Playground};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;
use std::fmt::Write;

/// All definitions, in the order in which they are applied.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Model::crd(), BackendRuntime::crd(), Playground::crd()]
}

/// `value` as YAML: a small writer, since every text can be written in double quotes as JSON does, and what is printed
/// here is read by people, so that keys come one a line.
#[must_use]
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    write_block(&mut text, value, 0);
    text
}

fn write_block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let _ = write!(text, "{:indent$}{}:", "", scalar(&Value::String(key.clone())));
                write_nested(text, value, indent + 2);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for item in list {
                write_item(text, item, indent);
            }
        }
        scalar_value => {
            let _ = writeln!(text, "{:indent$}{}", "", scalar(scalar_value));
        }
    }
}

fn write_nested(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            write_block(text, value, indent);
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            write_block(text, value, indent);
        }
        scalar_value => {
            let _ = writeln!(text, " {}", scalar(scalar_value));
        }
    }
}

fn write_item(text: &mut String, item: &Value, indent: usize) {
    let mut block = String::new();
    write_block(&mut block, item, indent + 2);
    // The dash takes the place of the first line's last two spaces.
    let _ = write!(text, "{:indent$}- {}", "", block.trim_start());
}

/// A text needs no quotes when YAML can read it as nothing else.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./ ()".contains(c))
        && !text.ends_with(' ')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if plain { text.clone() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_back_the_same() {
        let value = json!({
            "a": { "b": [1, "two", { "c": "x: y", "d": [] }, [1, 2], {}], "empty": {} },
            "yes": "no", "text": "line\nline", "number": "12", "t": true, "n": null, "f": 1.5, "quote": "a \"b\" #c",
        });
        let read: Value = serde_saphyr::from_str(&to_yaml(&value)).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn the_definitions_read_back_the_same() {
        for crd in crds() {
            let value = serde_json::to_value(&crd).unwrap();
            let read: Value = serde_saphyr::from_str(&to_yaml(&value)).unwrap();
            assert_eq!(read, value);
        }
    }

    /// Without bounds an API server refuses the definition for what its rules could cost.
    #[test]
    fn every_text_list_and_map_is_bounded() {
        fn walk(path: &str, schema: &Value, unbounded: &mut Vec<String>) {
            let has = |key: &str| schema.get(key).is_some();
            match schema.get("type").and_then(Value::as_str) {
                Some("string") if !has("maxLength") && !has("enum") && !has("format") => {
                    unbounded.push(path.to_owned())
                }
                Some("array") if !has("maxItems") || !has("x-kubernetes-list-type") => unbounded.push(path.to_owned()),
                Some("object") if has("additionalProperties") && !has("maxProperties") => {
                    unbounded.push(path.to_owned())
                }
                Some(_) => {}
                None => unbounded.push(format!("{path}: no type")),
            }
            for key in ["items", "additionalProperties"] {
                schema.get(key).into_iter().for_each(|inner| walk(&format!("{path}[]"), inner, unbounded));
            }
            for (name, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                walk(&format!("{path}.{name}"), inner, unbounded);
            }
        }
        let mut unbounded = Vec::new();
        for crd in crds() {
            let kind = crd.spec.names.kind.clone();
            let schema = crd.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            let schema = serde_json::to_value(schema).unwrap();
            for part in ["spec", "status"] {
                schema["properties"]
                    .get(part)
                    .into_iter()
                    .for_each(|s| walk(&format!("{kind}.{part}"), s, &mut unbounded));
            }
        }
        assert_eq!(unbounded, Vec::<String>::new());
    }
}

//! Names, labels and annotations of everything that the orchestrator makes.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Label of every object that the orchestrator makes: its value is [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The orchestrator, as a value of labels and as a field manager.
pub const MANAGER: &str = "dunlin-orchestrator";
/// Label: name of the Playground.
pub const PLAYGROUND: &str = "dunlin.dev/playground";
/// Label: hash of the revision.
pub const REVISION: &str = "dunlin.dev/revision";
/// Label: name of the flavor.
pub const FLAVOR: &str = "dunlin.dev/flavor";
/// Annotation of a Playground: its value is any text, and a new one replaces every replica.
pub const RESTARTED_AT: &str = "dunlin.dev/restarted-at";
/// Annotation of a Playground: name of the revision that `undo` went back to.
pub const UNDO_TO: &str = "dunlin.dev/undo-to";
/// Annotation: hash of what was applied.
pub const APPLIED: &str = "dunlin.dev/applied";
/// Finalizer of a Playground.
pub const FINALIZER: &str = "dunlin.dev/replicas";

/// The name of a replica's pod.
#[must_use]
pub fn pod(playground: &str, ordinal: i32, attempt: i64) -> String {
    format!("{playground}-{ordinal}-{attempt}")
}

/// The name of what belongs to one revision of a Playground.
#[must_use]
pub fn revision(playground: &str, hash: &str) -> String {
    format!("{playground}-{hash}")
}

/// The name of what there is one of for a Playground.
#[must_use]
pub fn sole(playground: &str) -> String {
    format!("{playground}-dunlin")
}

/// Sixteen hexadecimal digits of the SHA-256 of `value`, whatever the order of its fields.
#[must_use]
pub fn hash(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    hash_text(&text)
}

fn hash_text(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    data_encoding::HEXLOWER.encode(&digest[..8])
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (name, value) in fields {
                text.push_str(name);
                text.push('\0');
                canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(list) => {
            text.push('[');
            list.iter().for_each(|item| canonical(item, text));
            text.push(']');
        }
        scalar => {
            text.push_str(&scalar.to_string());
            text.push('\0');
        }
    }
}

/// An object's name for a model: a slug and six digits of a hash, since `Qwen/Qwen3-8B` is no object's name.
#[must_use]
pub fn model(served_name: &str) -> String {
    let slug: String =
        served_name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let slug: String = slug.trim_matches('-').chars().take(48).collect();
    let slug = if slug.is_empty() { "model" } else { slug.trim_end_matches('-') };
    format!("{slug}-{}", &hash_text(served_name)[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_names_of_objects_and_differ() {
        let name = model("Qwen/Qwen3-8B");
        assert!(name.starts_with("qwen-qwen3-8b-") && name.len() == 20, "{name}");
        assert_ne!(model("a/b"), model("a-b"));
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[2,"x"]}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":[2,"x"],"a":1}"#).unwrap();
        assert_eq!(hash(&one), hash(&other));
        assert_ne!(hash(&one), hash(&serde_json::json!({"a": 1, "b": [2, ["x"]]})));
        assert!(model("///").starts_with("model-"));
        assert!(model(&"x".repeat(256)).len() <= 63);
        assert!(pod(&"x".repeat(crate::resources::PLAYGROUND_NAME), 199, 999_999_999).len() <= 63);
    }
}

//! `/openapi.json`: the table of endpoints for programs.

use super::endpoint::{INFERENCE, OTHERS, Payload};
use serde_json::{Map, Value, json};

/// The whole document.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for known in &INFERENCE {
        let (kind, schema) = match known.payload {
            Payload::Json => ("application/json", model_object(json!({}))),
            Payload::Form => {
                let file = json!({"file": {"type": "string", "format": "binary"}});
                ("multipart/form-data", model_object(file))
            }
        };
        let operation = json!({
            "summary": known.about,
            "requestBody": {"required": true, "content": {kind: {"schema": schema}}},
            "responses": responses("as the engine answers"),
        });
        paths.insert(known.path.to_owned(), json!({"post": operation}));
    }
    for (method, path, about) in OTHERS {
        let mut operation = json!({"summary": about, "responses": responses(about)});
        if path.contains("{id}") {
            operation["parameters"] =
                json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        if about.ends_with("no key needed") {
            operation["security"] = json!([]);
        }
        let entry = paths.entry(path.to_owned()).or_insert_with(|| json!({}));
        entry[method.to_ascii_lowercase()] = operation;
    }
    let schemes = json!({
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    });
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Dunlin", "version": env!("CARGO_PKG_VERSION")},
        "security": [{"bearer": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {"securitySchemes": schemes, "schemas": {"Error": error()}},
    })
}

fn model_object(more: Value) -> Value {
    let mut properties = json!({"model": {"type": "string", "description": "a model that GET /v1/models lists"}});
    if let (Some(properties), Value::Object(more)) = (properties.as_object_mut(), more) {
        properties.extend(more);
    }
    json!({"type": "object", "required": ["model"], "properties": properties, "additionalProperties": true})
}

fn responses(about: &str) -> Value {
    let error = json!({
        "description": "an error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    json!({"200": {"description": about}, "4XX": error.clone(), "5XX": error})
}

fn error() -> Value {
    let text = json!({"type": ["string", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": text,
                "code": {"type": ["string", "integer", "null"]},
            },
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_described() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for known in &INFERENCE {
            assert!(paths[known.path]["post"]["requestBody"].is_object(), "{}", known.path);
        }
        for (method, path, _) in OTHERS {
            assert!(paths[path][method.to_ascii_lowercase()].is_object(), "{method} {path}");
        }
        assert_eq!(paths["/health"]["get"]["security"], json!([]));
        assert!(paths["/v1/responses/{id}"]["get"]["parameters"].is_array());
    }

    /// The tables of `docs/api.md` are those of the code.
    #[test]
    fn the_documentation_has_the_same_table() {
        let documented = include_str!("../../../docs/api.md");
        let kind = |payload| match payload {
            Payload::Json => "JSON",
            Payload::Form => "form",
        };
        let inference = INFERENCE
            .iter()
            .map(|known| format!("| `POST {}` | {} | {} |", known.path, kind(known.payload), known.about));
        let others = OTHERS.iter().map(|(method, path, about)| format!("| `{method} {path}` | - | {about} |"));
        let expected: Vec<String> = inference.chain(others).collect();
        let rows: Vec<&str> = documented
            .lines()
            .filter(|line| ["| `POST /", "| `GET /", "| `DELETE /"].iter().any(|row| line.starts_with(row)))
            .collect();
        assert_eq!(rows, expected);
    }
}

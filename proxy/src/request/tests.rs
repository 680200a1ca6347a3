use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn ok(body: &str) -> Peek {
    peek(body.as_bytes()).unwrap()
}

fn err(body: &str) -> Error {
    peek(body.as_bytes()).unwrap_err()
}

#[test]
fn reads_model_and_stream_wherever_they_stand() {
    let peek = ok(r#" {"messages":[{"model":"inner","stream":true}],"stream":true,"model":"Qwen/Qwen3-8B"} "#);
    assert_eq!(peek, Peek { model: ModelId::new("Qwen/Qwen3-8B").unwrap(), stream: true });
    assert!(!ok(r#"{"model":"m","messages":[{"stream":true}]}"#).stream);
}

#[test]
fn only_true_streams() {
    for other in ["\"true\"", "1", "null", "false", "[true]", "{\"a\":true}"] {
        assert!(!ok(&format!(r#"{{"model":"m","stream":{other}}}"#)).stream, "{other}");
    }
}

#[test]
fn escaped_names_and_byte_order_marks_are_seen_through() {
    assert_eq!(ok(r#"{"mod\u0065l":"\u006d"}"#).model.as_str(), "m");
    assert_eq!(ok("\u{feff}{\"model\":\"m\"}").model.as_str(), "m");
}

#[test]
fn a_second_model_is_refused_even_when_it_is_the_same() {
    assert_eq!(err(r#"{"model":"m","model":"m"}"#), Error::Duplicate("model"));
    assert_eq!(err(r#"{"model":"m","x":1,"mod\u0065l":null}"#), Error::Duplicate("model"));
    assert_eq!(err(r#"{"model":"m","stream":true,"stream":false}"#), Error::Duplicate("stream"));
}

#[test]
fn what_is_wrong_is_said() {
    assert_eq!(err(""), Error::Empty);
    assert_eq!(err(" \n"), Error::Empty);
    assert_eq!(err("[1]"), Error::NotAnObject);
    assert_eq!(err("\"model\""), Error::NotAnObject);
    assert_eq!(err("{}"), Error::NoModel);
    for no_text in ["null", "1", "{}", "[\"m\"]", "1.5", "true"] {
        assert_eq!(err(&format!(r#"{{"model":{no_text}}}"#)), Error::ModelNotAString, "{no_text}");
    }
    assert!(matches!(err(r#"{"model":""}"#), Error::BadModel(_)));
    assert!(matches!(err(r#"{"model":"a\u0000b"}"#), Error::BadModel(_)));
    let broken = err(r#"{"model":"smollm2-135m","messages":[}"#);
    assert!(matches!(broken, Error::Syntax { line: 1, column: 37, .. }), "{broken}");
    assert!(matches!(err(r#"{"model":"m"} x"#), Error::Syntax { .. }));
    assert!(matches!(err(r#"{"model":"m""#), Error::Syntax { .. }));
    assert!(matches!(err("{\"model\":\"m\"}{}"), Error::Syntax { .. }));
}

#[test]
fn deep_nesting_is_walked_without_recursion() {
    let deep = format!(r#"{{"x":{}{},"model":"m"}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(ok(&deep).model.as_str(), "m");
    let deep_model = format!(r#"{{"model":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(err(&deep_model), Error::ModelNotAString);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("(model|stream|[a-z]{1,3})", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_a_full_parse(rest in any_json(), model in "[ -~]{1,20}", stream in any_json()) {
        let body = json!({ "a": rest, "model": model, "stream": stream, "z": rest });
        let peek = peek(body.to_string().as_bytes()).unwrap();
        prop_assert_eq!(peek.model.as_str(), model);
        prop_assert_eq!(peek.stream, body["stream"] == Value::Bool(true));
    }

    #[test]
    fn never_panics(body: Vec<u8>, json in any_json()) {
        let _ = peek(&body);
        let text = json.to_string();
        for end in (0..text.len()).step_by(7) {
            let _ = peek(&text.as_bytes()[..end]);
        }
    }
}

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
    assert_eq!((peek.model.as_str(), peek.stream), ("Qwen/Qwen3-8B", true));
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

fn common(a: &str, b: &str) -> u64 {
    let (a, b) = (ok(a).prompt, ok(b).prompt);
    let shared = a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b);
    shared.last().map_or(0, |(block, _)| block.end)
}

#[test]
fn the_next_turn_of_a_conversation_begins_like_the_one_before() {
    let said = |text: &str| json!({"role": "user", "content": text.repeat(40)});
    let first = json!({"model": "m", "stream": true, "messages": [said("alpha"), said("beta")]}).to_string();
    let second =
        json!({"model": "m", "messages": [said("alpha"), said("beta"), said("gamma")], "top_p": 1}).to_string();
    let other = json!({"model": "m", "messages": [said("gamma"), said("beta")]}).to_string();
    assert!(common(&first, &second) >= 256, "{}", common(&first, &second));
    assert_eq!(common(&first, &other), 0);
    let adapter = first.replace("\"m\"", "\"adapter\"");
    assert_eq!(common(&first, &adapter), 0, "an adapter's KV cache is its own");
    assert!(ok(&first).prompt.bytes > 300);
}

#[test]
fn tools_and_system_prompts_come_before_the_conversation() {
    let tools = json!([{"type": "function", "function": {"name": "x".repeat(300)}}]);
    let body = |tools: &Value, text: &str| json!({"model": "m", "tools": tools, "system": "y".repeat(200), "messages": [text]});
    let (one, two) = (body(&tools, "a").to_string(), body(&tools, "b").to_string());
    assert!(common(&one, &two) >= 384);
    assert_eq!(common(&one, &body(&json!([]), "a").to_string()), 0);
}

#[test]
fn sessions_and_earlier_responses_are_noticed() {
    let prompt = |body: &str| ok(body).prompt;
    let one = prompt(r#"{"model":"m","user":"u1"}"#);
    assert!(one.session.is_some() && one.previous.is_none());
    assert_eq!(one.session, prompt(r#"{"user":"u1","model":"other"}"#).session);
    assert_ne!(one.session, prompt(r#"{"model":"m","prompt_cache_key":"u2"}"#).session);
    for none in ["null", "\"\"", "7", "{}"] {
        assert_eq!(prompt(&format!(r#"{{"model":"m","user":{none}}}"#)).session, None, "{none}");
    }
    let previous = prompt(r#"{"model":"m","previous_response_id":"resp_1","input":"x"}"#).previous;
    assert_eq!(previous, Some(crate::prompt::hash(&b"resp_1"[..])));
}

/// The engine's to judge, not ours.
#[test]
fn a_prompt_that_is_no_utf_8_passes_without_an_outline() {
    let peek = peek(b"{\"model\":\"m\",\"prompt\":\"\xff\xfe\"}").unwrap();
    assert_eq!((peek.model.as_str(), peek.prompt.blocks.len()), ("m", 0));
}

/// What an engine gets to read whose agent asks for the usage.
fn asked(body: &str) -> Option<Value> {
    let at = ok(body).ask_usage?;
    let (start, end) = (at.offset as usize, (at.offset + at.length) as usize);
    Some(
        serde_json::from_str([&body[..start], at.text(), &body[end..]].concat().trim_start_matches('\u{feff}'))
            .unwrap(),
    )
}

#[test]
fn usage_is_asked_for_where_the_client_does_not() {
    let asked_for = json!({"include_usage": true});
    for options in
        ["", r#""stream_options":null,"#, r#""stream_options" : { },"#, r#""stream_options":{"include_usage":false},"#]
    {
        for body in [
            format!(r#" {{{options}"model":"m","stream":true}}"#),
            format!("\u{feff}\n{{\"stream\":true,{options}\"x\":\"{{é\",\"model\":\"m\"}}"),
        ] {
            let engine = asked(&body).unwrap();
            assert_eq!(engine["stream_options"], asked_for, "{body}");
            assert_eq!((&engine["model"], &engine["stream"]), (&json!("m"), &json!(true)));
        }
    }
}

#[test]
fn usage_is_not_asked_for_otherwise() {
    for options in [
        r#"{"include_usage":true}"#,
        r#"{"include_usage":false,"continuous_usage_stats":true}"#,
        r#"{"include_obfuscation":false}"#,
        r#"{"include_usage":"yes"}"#,
        "[]",
        "1",
        r#"{},"stream_options":{}"#,
    ] {
        assert_eq!(asked(&format!(r#"{{"model":"m","stream":true,"stream_options":{options}}}"#)), None, "{options}");
    }
    assert_eq!(asked(r#"{"model":"m","stream":false}"#), None);
}

#[test]
fn another_name_is_written_where_the_model_stands_and_nothing_else_changes() {
    let model = ModelId::new("Qwen/\"3\" é").unwrap();
    for (body, expected) in [
        (r#"{"model":"m","x":1e999}"#, r#"{"model":"Qwen/\"3\" é","x":1e999}"#),
        (
            " { \"x\":{\"model\":\"m\"} ,\t\"mod\\u0065l\" : \"\\u006d\" }\r\n",
            " { \"x\":{\"model\":\"m\"} ,\t\"mod\\u0065l\" : \"Qwen/\\\"3\\\" é\" }\r\n",
        ),
        ("\u{feff}{\"model\":\"m\"}", "\u{feff}{\"model\":\"Qwen/\\\"3\\\" é\"}"),
    ] {
        let at = ok(body).model_at.unwrap();
        let (renamed, now) = renamed(body.as_bytes(), &at, &model);
        assert_eq!(std::str::from_utf8(&renamed).unwrap(), expected);
        assert_eq!(peek(&renamed).unwrap().model, model);
        assert_eq!(peek(&renamed).unwrap().model_at, Some(now));
    }
    let odd = b"{\"model\":\"m\",\"prompt\":\"\xff\"}";
    assert_eq!(peek(odd).unwrap().model_at, None);
}

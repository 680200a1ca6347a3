//! Streams cut anywhere, against an engine whose answer is known: what the client gets must be what it would have got.

use super::{Endpoint, Kept, Refusal, Splice, Way};
use bytes::Bytes;
use dunlin_node::hop::Budget;
use dunlin_protocol::runtime::{self, Catalogue};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Tokens of every prompt.
const PROMPT: u64 = 7;

fn llamacpp() -> runtime::Runtime {
    Catalogue::built_in().unwrap().get(&"llamacpp".parse().unwrap()).unwrap().clone()
}

/// An engine that always gives the same answer, a character being a token, in pieces of these sizes.
struct Engine<'a> {
    answer: &'a str,
    sizes: &'a [usize],
    name: &'a str,
}

impl Engine<'_> {
    /// The events of its answer to `body`.
    fn ask(&self, endpoint: Endpoint, body: &[u8]) -> Vec<String> {
        let body: Value = serde_json::from_slice(body).unwrap();
        let given = match endpoint {
            Endpoint::Completions => body["prompt"].as_str().unwrap().strip_prefix("Say: ").unwrap(),
            Endpoint::Chat => {
                let last = body["messages"].as_array().unwrap().last().unwrap();
                let goes_on = body["continue_final_message"] == true && body["add_generation_prompt"] == false;
                assert_eq!(goes_on, last["role"] == "assistant", "{body}");
                if goes_on { last["content"].as_str().unwrap() } else { "" }
            }
        };
        assert_eq!(given, given.trim_end());
        let rest = self.answer.strip_prefix(given).expect("its own words");
        let limit = body["max_tokens"].as_u64().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
        let text: String = rest.chars().take(limit).collect();
        let reason = if text.chars().count() == limit { "length" } else { "stop" };
        let mut events = Vec::new();
        if endpoint == Endpoint::Chat {
            events.push(
                self.event(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}])),
            );
        }
        let mut left = text.chars();
        for size in self.sizes.iter().copied().chain(std::iter::repeat(1)) {
            let piece: String = left.by_ref().take(size).collect();
            if piece.is_empty() {
                break;
            }
            events.push(self.event(match endpoint {
                Endpoint::Chat => json!([{"index": 0, "delta": {"content": piece}, "finish_reason": null}]),
                Endpoint::Completions => json!([{"index": 0, "text": piece, "logprobs": null, "finish_reason": null}]),
            }));
        }
        events.push(self.event(match endpoint {
            Endpoint::Chat => json!([{"index": 0, "delta": {}, "finish_reason": reason}]),
            Endpoint::Completions => json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": reason}]),
        }));
        if body["stream_options"]["include_usage"] == true {
            let (prompt, completion) = (PROMPT + tokens(given), tokens(&text));
            let usage =
                json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion});
            events.push(format!(
                "data: {}\n\n",
                json!({"id": self.name, "created": 1, "model": "m", "choices": [], "usage": usage})
            ));
        }
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    fn event(&self, choices: Value) -> String {
        let created = self.name.len();
        format!("data: {}\n\n", json!({"id": self.name, "created": created, "model": self.name, "choices": choices}))
    }
}

fn tokens(text: &str) -> u64 {
    text.chars().count() as u64
}

/// What a client makes of a stream.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    text: String,
    roles: usize,
    finish: Vec<String>,
    usage: Option<Value>,
    names: Vec<String>,
    done: bool,
}

fn seen(stream: &str) -> Seen {
    let mut seen = Seen::default();
    for data in stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        assert!(!seen.done);
        if data == "[DONE]" {
            seen.done = true;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        let name = format!("{} {}", event["id"], event["created"]);
        if !seen.names.contains(&name) && event["choices"] != json!([]) {
            seen.names.push(name);
        }
        let choice = &event["choices"][0];
        seen.text += choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        seen.roles += usize::from(choice["delta"]["role"].is_string());
        seen.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
        if event["usage"].is_object() {
            seen.usage = Some(event["usage"].clone());
        }
    }
    seen
}

/// What goes out of the first `cut` events of a stream that came after `kept`.
fn pass(kept: &mut Kept, splice: &mut Option<Splice>, events: &[String]) -> String {
    let mut out = String::new();
    for event in events {
        let event = match splice {
            Some(splice) => splice.push(event.as_bytes()),
            None => Bytes::copy_from_slice(event.as_bytes()),
        };
        kept.saw(&event);
        out += std::str::from_utf8(&event).unwrap();
    }
    out
}

fn question(endpoint: Endpoint, limit: Option<u64>) -> Vec<u8> {
    let mut body = json!({"model": "m", "stream": true, "temperature": 0, "stream_options": {"include_usage": true}});
    match endpoint {
        Endpoint::Chat => body["messages"] = json!([{"role": "user", "content": "Say"}]),
        Endpoint::Completions => body["prompt"] = json!("Say: "),
    }
    if let Some(limit) = limit {
        body["max_tokens"] = json!(limit);
    }
    body.to_string().into_bytes()
}

/// The stream with its replica lost after so many events, and again after so many more.
fn lost(endpoint: Endpoint, body: &[u8], engines: [Engine<'_>; 3], cuts: [usize; 2]) -> String {
    let llamacpp = llamacpp();
    let (mut kept, mut splice, mut out) = (Kept::new(endpoint, Budget::default()), None, String::new());
    let mut asked = body.to_vec();
    for (nth, engine) in engines.iter().enumerate() {
        let events = engine.ask(endpoint, &asked);
        let finish = events.iter().position(|event| event.contains("\"finish_reason\":\"")).unwrap();
        let cut = cuts.get(nth).map_or(events.len(), |cut| (*cut).min(finish));
        out += &pass(&mut kept, &mut splice, &events[..cut]);
        if cut == events.len() {
            break;
        }
        (asked, splice) = match kept.way(body).unwrap() {
            Way::Again => (body.to_vec(), kept.splice_again()),
            Way::On(rest) => {
                let count: Value =
                    serde_json::from_slice(&rest.count(llamacpp.tokenize.as_ref().unwrap(), "m")).unwrap();
                let sent = tokens(count["content"].as_str().unwrap());
                (rest.request(llamacpp.continuation.as_ref().unwrap(), sent).to_vec(), kept.splice(&rest, sent))
            }
        };
    }
    out
}

fn endpoints() -> impl Strategy<Value = Endpoint> {
    prop::sample::select(vec![Endpoint::Chat, Endpoint::Completions])
}

proptest! {
    #[test]
    fn whoever_is_cut_off_anywhere_gets_what_would_have_come(
        answer in "[ab\"\\\\é鳥 \n.,]{0,40}[ab.]",
        sizes in prop::collection::vec(1usize..5, 0..20),
        other_sizes in prop::collection::vec(1usize..5, 0..20),
        endpoint in endpoints(),
        limit in prop::option::of(1u64..50),
        cuts in any::<[prop::sample::Index; 2]>(),
    ) {
        // Completions without a limit are not continued.
        let limit = if endpoint == Endpoint::Completions { limit.or(Some(30)) } else { limit };
        let body = question(endpoint, limit);
        let engine = |name, sizes| Engine { answer: &answer, sizes, name };
        let whole = seen(&engine("first", &sizes).ask(endpoint, &body).concat());
        let engines = [engine("first", &sizes), engine("other", &other_sizes), engine("the third", &sizes)];
        let cuts = cuts.map(|cut| cut.index(45));
        let got = seen(&lost(endpoint, &body, engines, cuts));
        // With nothing sent, it goes by the name of whoever answers.
        let names = got.names.clone();
        prop_assert!(names.len() == 1, "{names:?}");
        prop_assert_eq!(got, Seen { names, ..whole });
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        json in "\\PC{0,40}|data: \\{\"choices\":\\[(1|\\{\"delta\":(1|null|\\{\"content\":\"a\"\\})\\}|null)?\\]\\}\n\n",
        body in "\\{\"(messages|prompt|stop|n|stream_options)\":(1|null|\\[\\]|\\[1\\]|\\{\\}|\"a\")\\}",
    ) {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            let mut kept = Kept::new(endpoint, Budget::default());
            kept.saw(b"data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\"a\"},\"text\":\"a\"}]}\n\n");
            let mut splice = kept.splice_again().unwrap();
            for bytes in [&bytes, json.as_bytes()] {
                splice.push(bytes);
                kept.saw(bytes);
                let _ = kept.way(bytes);
                let _ = kept.way(body.as_bytes());
                super::counted(llamacpp().tokenize.as_ref().unwrap(), bytes);
            }
        }
    }
}

fn way_after(text: &str, body: Value) -> Result<Way, Refusal> {
    let endpoint = if body.get("prompt").is_some() { Endpoint::Completions } else { Endpoint::Chat };
    let mut kept = Kept::new(endpoint, Budget::default());
    let choice = json!({"index": 0, "delta": {"content": text}, "text": text});
    kept.saw(format!("data: {}\n\n", json!({"id": "a", "choices": [choice]})).as_bytes());
    kept.way(body.to_string().as_bytes())
}

#[test]
fn only_what_is_known_to_carry_over_goes_on() {
    let chat = |more: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Say"}], "stream": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        way_after("text", body).map(|_| ())
    };
    for carries_over in [
        json!({}),
        json!({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": 1, "user": "u", "n": 1}),
        json!({"presence_penalty": 0, "frequency_penalty": null, "repetition_penalty": 1.1, "max_tokens": null, "max_completion_tokens": 9}),
        json!({"stop": ["\n"], "stream_options": {"include_usage": true}}),
        json!({"stop": null, "stream_options": null, "n": null}),
        json!({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"},
            {"role": "user", "name": "u", "content": [{"type": "text", "text": "t"}]}]}),
    ] {
        assert_eq!(chat(carries_over.clone()), Ok(()), "{carries_over}");
    }
    for (field, refused) in [
        ("tools", json!({"tools": []})),
        ("logprobs", json!({"logprobs": true})),
        ("response_format", json!({"response_format": {"type": "text"}})),
        ("reasoning_effort", json!({"reasoning_effort": "low"})),
        ("min_tokens", json!({"min_tokens": 1})),
        ("new_parameter", json!({"new_parameter": null})),
        ("n", json!({"n": 2})),
        ("frequency_penalty", json!({"frequency_penalty": 1.5})),
        ("presence_penalty", json!({"presence_penalty": -1})),
        ("stop", json!({"stop": [1]})),
        ("stream_options", json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}})),
        ("max_tokens", json!({"max_tokens": -1})),
        ("prompt", json!({"prompt": "both"})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})),
        ("messages", json!({"messages": [{"role": "tool", "tool_call_id": "1", "content": "u"}]})),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}),
        ),
        ("messages", json!({"messages": [{"role": "user", "content": null}]})),
    ] {
        let expected = if field == "prompt" { Refusal::field("messages") } else { Refusal::field(field) };
        assert_eq!(chat(refused.clone()).unwrap_err(), expected, "{refused}");
    }
    let completion = |more: Value| {
        let mut body = json!({"model": "m", "prompt": "p", "max_tokens": 9, "stream": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        way_after("text", body).map(|_| ())
    };
    assert_eq!(completion(json!({})), Ok(()));
    for (field, refused) in [
        ("prompt", json!({"prompt": ["p"]})),
        ("echo", json!({"echo": false})),
        ("suffix", json!({"suffix": "s"})),
        ("best_of", json!({"best_of": 1})),
        ("max_tokens", json!({"max_tokens": null})),
    ] {
        assert_eq!(completion(refused).unwrap_err(), Refusal::field(field));
    }
}

#[test]
fn a_text_that_ends_in_half_of_something_does_not_go_on() {
    let after = |text: &str, stop: Value| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Say"}], "stop": stop});
        way_after(text, body).map(|_| ()).err()
    };
    assert_eq!(after("a\u{fffd}", json!(null)), Some(Refusal::HalfCharacter));
    assert_eq!(after("a\u{fffd}b", json!(null)), None);
    assert_eq!(after("say EN", json!("END")), Some(Refusal::HalfStop));
    assert_eq!(after("line\n", json!(["x", "\n\n"])), Some(Refusal::HalfStop));
    assert_eq!(after("say END", json!("END")), None, "the whole of it would have ended the answer");
    assert_eq!(after("鳥は", json!("鳥の")), None);
    assert_eq!(after("<think>\nhm", json!(null)), Some(Refusal::NotText));
}

#[test]
fn a_limit_that_is_reached_leaves_the_end_only() {
    let engine = |name| Engine { answer: "one two three", sizes: &[4], name };
    let body = question(Endpoint::Chat, Some(4));
    // The role, "one ", and then the end is missing. White space at the end would come again, so that one token is left.
    let got = seen(&lost(Endpoint::Chat, &body, [engine("a"), engine("b"), engine("c")], [2, 9]));
    let usage = json!({"prompt_tokens": PROMPT, "completion_tokens": 4, "total_tokens": PROMPT + 4});
    assert_eq!((got.text.as_str(), got.finish, got.usage), ("one ", vec!["length".to_owned()], Some(usage)));
    let body = question(Endpoint::Chat, Some(3));
    let got = seen(&lost(Endpoint::Chat, &body, [engine("a"), engine("b"), engine("c")], [2, 9]));
    let usage = json!({"prompt_tokens": PROMPT, "completion_tokens": 3, "total_tokens": PROMPT + 3});
    assert_eq!((got.text.as_str(), got.finish, got.usage), ("one", vec!["length".to_owned()], Some(usage)));
}

#[test]
fn what_is_no_part_of_the_answer_passes() {
    let mut kept = Kept::new(Endpoint::Chat, Budget::default());
    kept.saw(b"data: {\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
    let mut splice = kept.splice_again().unwrap();
    let passes = b": ping\n\ndata: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n";
    assert_eq!(splice.push(passes), passes.as_slice());
    let role =
        b"data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n";
    assert_eq!(splice.push(role), b"".as_slice());
    let text = b"data: {\"id\":\"b\",\"created\":2,\"model\":\"n\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"}}]}\n\n";
    let joined: Value = serde_json::from_slice(splice.push(text).strip_prefix(b"data: ").unwrap()).unwrap();
    assert_eq!(
        joined,
        json!({"id": "a", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": "b"}}]})
    );
}

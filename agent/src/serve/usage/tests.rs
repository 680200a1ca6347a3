use super::*;
use dunlin_protocol::hop::AskUsage;
use http_body_util::{BodyExt, StreamBody};
use proptest::prelude::*;
use std::convert::Infallible;

const CHUNK: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"say \\\"usage\\\"\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":36,\"total_tokens\":48,\"completion_tokens\":12,\
                     \"prompt_tokens_details\":{\"cached_tokens\":35}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn reading(kind: &'static str, added: bool) -> Reading {
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
    Reading::of(StatusCode::OK, &headers, added)
}

/// What goes out of `text` in pieces of `size`, and the counts.
fn passed(mut reading: Reading, text: &str, size: usize) -> (String, Option<Usage>) {
    let mut out = Vec::new();
    for piece in text.as_bytes().chunks(size) {
        out.extend_from_slice(&reading.pass(Bytes::copy_from_slice(piece)));
    }
    out.extend_from_slice(&reading.rest());
    (String::from_utf8(out).unwrap(), reading.usage())
}

fn told(prompt: u64, completion: u64, cached: u64) -> Option<Usage> {
    Some(Usage { prompt, completion, cached, estimated: false })
}

#[test]
fn the_event_that_was_added_is_read_and_taken_out_however_it_is_cut() {
    let stream = [CHUNK, USAGE, DONE].concat();
    for size in 1..=stream.len() {
        let out = passed(reading("text/event-stream; charset=utf-8", true), &stream, size);
        assert_eq!(out, ([CHUNK, DONE].concat(), told(36, 12, 35)), "pieces of {size}");
        let out = passed(reading("text/event-stream", false), &stream, size);
        assert_eq!(out, (stream.clone(), told(36, 12, 35)), "asked for, pieces of {size}");
    }
    let crlf = stream.replace('\n', "\r\n");
    assert_eq!(passed(reading("text/event-stream", true), &crlf, 7).0, [CHUNK, DONE].concat().replace('\n', "\r\n"));
}

#[test]
fn a_last_event_without_its_empty_line_is_whole_too() {
    let stream = [CHUNK, USAGE.trim_end()].concat();
    assert_eq!(passed(reading("text/event-stream", true), &stream, 9), (CHUNK.to_owned(), told(36, 12, 35)));
    let stream = [CHUNK, DONE.trim_end()].concat();
    assert_eq!(passed(reading("text/event-stream", true), &stream, 9), (stream, None));
}

#[test]
fn events_with_choices_or_without_counts_stay() {
    let stream = "data: {\"choices\":[{\"index\":0}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n\
                  data: {\"choices\":[],\"usage\":null}\n\n: \"usage\"\n\ndata: {\"usage\"\n\n";
    assert_eq!(passed(reading("text/event-stream", true), stream, 5), (stream.to_owned(), told(1, 1, 0)));
}

#[test]
fn an_event_without_end_does_not_fill_memory() {
    let long = format!("data: {{\"x\":\"{}\"}}\n\n", "y".repeat(3 << 20));
    let stream = [long.as_str(), USAGE].concat();
    for added in [false, true] {
        let mut reading = reading("text/event-stream", added);
        let mut most = 0;
        let mut out = 0;
        for piece in stream.as_bytes().chunks(64 << 10) {
            out += reading.pass(Bytes::copy_from_slice(piece)).len();
            let Form::Events(events) = &reading.form else { unreachable!() };
            most = most.max(events.held_bytes());
        }
        assert!(most <= (1 << 20) + (64 << 10), "{most}");
        assert_eq!(out, if added { long.len() } else { stream.len() });
        assert_eq!(reading.usage(), told(36, 12, 35));
    }
}

#[test]
fn each_dialect_is_understood() {
    let anthropic = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":31,\
                     \"output_tokens\":0}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\
                     \"usage\":{\"output_tokens\":6}}\n\n";
    assert_eq!(passed(reading("text/event-stream", false), anthropic, 11).1, told(31, 6, 0));
    let responses = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\
                     \"input_tokens\":31,\"output_tokens\":6,\"input_tokens_details\":{\"cached_tokens\":30}}}}\n\n";
    assert_eq!(passed(reading("text/event-stream", false), responses, 11).1, told(31, 6, 30));
    let llamacpp = "data: {\"choices\":[{\"finish_reason\":\"length\",\"index\":0,\"delta\":{}}],\
                    \"timings\":{\"cache_n\":35,\"prompt_n\":1,\"predicted_n\":12}}\n\ndata: [DONE]\n\n";
    assert_eq!(passed(reading("text/event-stream", false), llamacpp, 11), (llamacpp.to_owned(), told(36, 12, 35)));
}

/// Engines that count with signed numbers have said `-1` as unsigned.
#[test]
fn absurd_counts_are_bounded() {
    use dunlin_protocol::usage::MOST;
    let timings = "data: {\"timings\":{\"cache_n\":18446744073709551615,\"prompt_n\":18446744073709551615,\
                   \"predicted_n\":18446744073709551615}}\n\n";
    assert_eq!(passed(reading("text/event-stream", false), timings, 11).1, told(2 * MOST, MOST, MOST));
    let anthropic = "data: {\"usage\":{\"input_tokens\":18446744073709551615,\"output_tokens\":1,\
                     \"cache_read_input_tokens\":18446744073709551615,\
                     \"cache_creation_input_tokens\":18446744073709551615}}\n\n";
    assert_eq!(passed(reading("text/event-stream", false), anthropic, 11).1, told(3 * MOST, 1, MOST));
}

#[test]
fn a_whole_answer_tells_at_its_top_level_only() {
    for (json, expected) in [
        (r#"{"id":"x","usage":{"prompt_tokens":31,"completion_tokens":3,"total_tokens":34},"z":[]}"#, told(31, 3, 0)),
        (r#"{ "usage" : {"prompt_tokens":5,"total_tokens":5} }"#, told(5, 0, 0)),
        (r#"{"usage":{"total_tokens":9}}"#, told(9, 0, 0)),
        (r#"{"usage":{"input_tokens":3,"cache_read_input_tokens":28,"output_tokens":6}}"#, told(31, 6, 28)),
        (r#"{"a":{"usage":{"prompt_tokens":1}},"b":"usage","c":"\"usage\":{","d":["usage"]}"#, None),
        (r#"{"xusage":{"prompt_tokens":1},"usagex":{"prompt_tokens":1},"us\"age":{"prompt_tokens":1}}"#, None),
        (r#"{"usage":null}"#, None),
        (r#"{"usage":{"type":"duration","seconds":6}}"#, None),
        (r#"{"usage":{"prompt_tokens":-1,"completion_tokens":"x"}}"#, None),
        (r#"[{"usage":{"prompt_tokens":1}}]"#, None),
    ] {
        for size in [1, 2, 7, json.len()] {
            let out = passed(reading("application/json", false), json, size);
            assert_eq!(out, (json.to_owned(), expected), "pieces of {size}");
        }
    }
}

#[test]
fn errors_and_other_kinds_are_not_looked_into() {
    assert!(!reading("text/plain", false).is_on());
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    assert!(!Reading::of(StatusCode::BAD_REQUEST, &headers, false).is_on());
}

/// The answers of real engines.
#[test]
fn captured_answers_are_understood() {
    let streams = [
        ("llamacpp/chat_stream.txt", false, told(36, 12, 35)),
        ("vllm/chat_stream_usage.txt", true, told(36, 12, 0)),
        ("sglang/chat_stream_usage.txt", true, told(36, 12, 0)),
    ];
    for (file, added, expected) in streams {
        let text = std::fs::read_to_string(format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let (out, usage) = passed(reading("text/event-stream", added), body, 100);
        assert_eq!(usage, expected, "{file}");
        assert!(!out.contains("\"choices\":[],"), "{file}");
        assert!(out.contains("data: [DONE]") && out.contains(" creative"), "{file}");
    }
}

proptest! {
    #[test]
    fn the_question_lands_in_its_place(body in ".{0,60}", cut in 1usize..20, offset in 0u64..70, length in 0u64..10) {
        let body = body.as_bytes();
        let at = AskUsage { offset: offset.min(body.len() as u64), length };
        // A place at the very end is none: a JSON object ends with a brace.
        prop_assume!(at.offset + at.length < body.len() as u64);
        let pieces: Vec<_> = body.chunks(cut)
            .map(|piece| Ok::<_, Infallible>(http_body::Frame::data(Bytes::copy_from_slice(piece)))).collect();
        let stream = StreamBody::new(futures::stream::iter(pieces));
        let out = futures::executor::block_on(Asking::new(stream, at).collect()).unwrap().to_bytes();
        let start = at.offset as usize;
        let expected = [&body[..start], at.text().as_bytes(), &body[start + at.length as usize..]].concat();
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn nothing_is_lost_of_any_stream(text in "(data: |\\{|\"usage\"|\n|\r|x|\\}){0,60}", size in 1usize..9) {
        prop_assert_eq!(passed(reading("text/event-stream", true), &text, size).0, text);
    }

    #[test]
    fn any_json_passes_as_it_is(text in "[\"{}\\[\\]:,a\\\\usage]{0,60}", size in 1usize..9) {
        prop_assert_eq!(passed(reading("application/json", false), &text, size).0, text);
    }
}

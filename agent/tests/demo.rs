//! The demo engine through its real HTTP server: what the rest of the tests rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly, helpers included")]

use bytes::Bytes;
use dunlin_agent::demo::{Adapter, Config, Engine, Faults, Speed};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

const OPENING: &str = "This is a demo: the dunlin demo engine is no model.";

/// A running engine; ends with the value.
struct Demo {
    address: SocketAddr,
    _stop: DropGuard,
}

fn fast() -> Config {
    Config { speed: Speed::UNLIMITED, ..Config::default() }
}

fn paced(tokens_per_s: f64) -> Config {
    Config { speed: Speed { tokens_per_s, ..Speed::UNLIMITED }, ..Config::default() }
}

fn start(config: Config) -> Demo {
    let engine = Engine::bind(config).unwrap();
    let stop = CancellationToken::new();
    let address = engine.local_addr();
    tokio::spawn(engine.run(stop.clone()));
    Demo { address, _stop: stop.drop_guard() }
}

impl Demo {
    async fn send(&self, method: &str, path: &str, body: impl Into<Bytes>) -> hyper::Result<Response<Incoming>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "demo")
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap();
        sender.send_request(request).await
    }

    async fn text(&self, method: &str, path: &str, body: impl Into<Bytes>) -> (u16, String) {
        let response = self.send(method, path, body).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.text("GET", path, "").await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.text("POST", path, body.to_string()).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The text of a chat's answer that isn't a stream, and the whole answer.
    async fn chat(&self, body: &Value) -> (String, Value) {
        let (status, answer) = self.post("/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{answer}");
        (answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), answer)
    }

    async fn metric(&self, name: &str) -> f64 {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, 200);
        let values = text.lines().filter(|line| line.starts_with(name) && line.as_bytes()[name.len()] == b'{');
        let values: Vec<f64> = values.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(!values.is_empty(), "no {name} in {text}");
        values.iter().sum()
    }

    /// Waits until a metric has a value.
    async fn until(&self, name: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.metric(name).await != value {
            assert!(Instant::now() < deadline, "{name} is {} and not {value}", self.metric(name).await);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn faults(&self, faults: &Value) {
        let (status, answer) = self.post("/demo/faults", faults).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// What a stream said, and how it ended.
#[derive(Debug, Default)]
struct Streamed {
    /// The text of each event that had some.
    deltas: Vec<String>,
    events: Vec<Value>,
    done: bool,
    error: Option<hyper::Error>,
    raw: String,
}

impl Streamed {
    fn text(&self) -> String {
        self.deltas.concat()
    }
}

/// Reads a stream to its end, or until it has `enough` deltas.
async fn read_stream(response: Response<Incoming>, enough: usize) -> Streamed {
    let mut body = response.into_body();
    let mut streamed = Streamed::default();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap()),
            Err(error) => {
                streamed.error = Some(error);
                break;
            }
        }
        if bytes.windows(11).filter(|window| window == b"\"content\":\"").count() > enough {
            break;
        }
    }
    streamed.raw = String::from_utf8(bytes).unwrap();
    for event in streamed.raw.clone().split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        if event == "[DONE]" {
            streamed.done = true;
            continue;
        }
        let event: Value = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        if !text.is_empty() {
            streamed.deltas.push(text.to_owned());
        }
        streamed.events.push(event);
    }
    streamed
}

fn hello() -> Value {
    json!({"model": "demo", "messages": [{"role": "user", "content": "Hello, who are you?"}]})
}

/// `base` with other fields put over it.
fn with(base: Value, over: Value) -> Value {
    let (Value::Object(mut base), Value::Object(over)) = (base, over) else { panic!("not objects") };
    base.extend(over);
    Value::Object(base)
}

#[tokio::test]
async fn an_answer_says_that_it_is_a_demo_and_has_vllms_shape() {
    let demo = start(fast());
    let response = demo.send("POST", "/v1/chat/completions", hello().to_string()).await.unwrap();
    assert_eq!(response.headers()["x-dunlin-demo"], "1");
    let (text, answer) = demo.chat(&hello()).await;
    assert!(text.starts_with(OPENING), "{text}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "demo");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    let usage = &answer["usage"];
    let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    let (_, models) = demo.get("/v1/models").await;
    assert!(models.contains("\"owned_by\":\"dunlin-demo\""), "{models}");
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole_answer() {
    let demo = start(fast());
    let (whole, answer) = demo.chat(&hello()).await;
    let body = with(hello(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let response = demo.send("POST", "/v1/chat/completions", body.to_string()).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let streamed = read_stream(response, usize::MAX).await;
    assert_eq!(streamed.text(), whole);
    assert!(streamed.done && streamed.raw.ends_with("data: [DONE]\n\n"));
    assert_eq!(streamed.events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let [.., last, usage] = streamed.events.as_slice() else { panic!("too few events") };
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], streamed.deltas.len());
    assert_eq!(usage["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn limits_and_stop_strings_end_an_answer() {
    let demo = start(fast());
    let (text, answer) = demo.chat(&with(hello(), json!({"max_tokens": 4}))).await;
    assert_eq!((text.as_str(), &answer["choices"][0]["finish_reason"]), ("This is a demo", &json!("length")));
    let (text, answer) = demo.chat(&with(hello(), json!({"max_completion_tokens": 2}))).await;
    assert_eq!((text.as_str(), &answer["usage"]["completion_tokens"]), ("This is", &json!(2)));
    let stopped = with(hello(), json!({"stop": ["zebra", "mo: the"]}));
    let (text, answer) = demo.chat(&stopped).await;
    assert_eq!(text, "This is a de");
    assert_eq!(answer["choices"][0]["stop_reason"], "mo: the");
    let body = with(stopped, json!({"stream": true})).to_string();
    let streamed = read_stream(demo.send("POST", "/v1/chat/completions", body).await.unwrap(), usize::MAX).await;
    assert_eq!(streamed.text(), "This is a de", "a stream gives nothing out that may be a stop string's beginning");
    let endless = with(hello(), json!({"ignore_eos": true, "max_tokens": 3000}));
    let (_, answer) = demo.chat(&endless).await;
    assert_eq!(answer["usage"]["completion_tokens"], 3000);
}

/// A newcomer's first answer takes a moment to read.
#[tokio::test]
async fn without_a_limit_an_answer_is_short() {
    let demo = start(fast());
    let mut lengths = Vec::new();
    for number in 0..40 {
        let ask = json!({"model": "demo", "messages": [{"role": "user", "content": format!("Question {number}")}]});
        let (text, answer) = demo.chat(&ask).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let length = answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!((30..=80).contains(&length), "{length} tokens: {text}");
        // It is the beginning of what the answer with room for more says.
        let (long, _) = demo.chat(&with(ask, json!({"max_tokens": 80, "ignore_eos": true}))).await;
        assert!(long.starts_with(&text), "{long:?} does not begin with {text:?}");
        lengths.push(length);
    }
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.len() > 10, "answers differ in length: {lengths:?}");
}

#[tokio::test]
async fn an_answer_cut_at_any_token_is_continued_to_the_same_text() {
    let demo = start(fast());
    let other = start(fast());
    for question in ["Hello, who are you?", "鳥 and 🐦", "What is a mesh?"] {
        let ask = json!({"model": "demo", "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]});
        let body = with(ask.clone(), json!({"stream": true})).to_string();
        let whole = read_stream(demo.send("POST", "/v1/chat/completions", body).await.unwrap(), usize::MAX).await;
        for cut in 0..=whole.deltas.len() {
            let written = whole.deltas[..cut].concat();
            let mut continued = with(
                ask.clone(),
                json!({
                "stream": cut % 2 == 0, "continue_final_message": true, "add_generation_prompt": false}),
            );
            continued["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": written}));
            let response = other.send("POST", "/v1/chat/completions", continued.to_string()).await.unwrap();
            let rest = if cut % 2 == 0 {
                read_stream(response, usize::MAX).await.text()
            } else {
                let bytes = response.into_body().collect().await.unwrap().to_bytes();
                let answer: Value = serde_json::from_slice(&bytes).unwrap();
                answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
            };
            assert_eq!(written.clone() + &rest, whole.text(), "cut after {cut} tokens, at {written:?}");
        }
    }
}

/// A proxy shrinks the limit by what `/tokenize` says of the text so far.
#[tokio::test]
async fn a_continued_answer_with_a_limit_ends_where_the_whole_one_does() {
    let demo = start(fast());
    let limited = with(hello(), json!({"max_tokens": 40, "ignore_eos": true}));
    let (whole, _) = demo.chat(&limited).await;
    let cuts: Vec<_> = whole.match_indices(' ').map(|(at, _)| at).collect();
    for cut in cuts {
        let (_, tokenized) = demo.post("/tokenize", &json!({"model": "demo", "prompt": &whole[..cut]})).await;
        let left = 40 - tokenized["count"].as_u64().unwrap();
        let body = json!({"model": "demo", "max_tokens": left, "ignore_eos": true, "continue_final_message": true,
            "add_generation_prompt": false, "messages": [hello()["messages"][0], {"role": "assistant", "content": &whole[..cut]}]});
        let (rest, answer) = demo.chat(&body).await;
        assert_eq!(whole[..cut].to_owned() + &rest, whole);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn completions_are_continued_by_appending_to_the_prompt() {
    let demo = start(fast());
    let complete = async |prompt: &str| {
        let (status, answer) = demo.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 300})).await;
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    for prompt in ["The capital of France is", "Th", ""] {
        let whole = complete(prompt).await;
        for cut in whole.char_indices().map(|(at, _)| at).step_by(3) {
            let (written, rest) = whole.split_at(cut);
            assert_eq!(complete(&format!("{prompt}{written}")).await, rest);
        }
    }
}

#[tokio::test]
async fn adapters_are_models_of_their_own_that_come_and_go() {
    let adapter = Adapter { name: "shanty".into(), path: "/adapters/shanty".into() };
    let demo = start(Config { adapters: vec![adapter], ..fast() });
    let (_, models) = demo.get("/v1/models").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][1]["id"], "shanty");
    assert_eq!(models["data"][1]["parent"], "demo");
    assert_eq!(models["data"][0]["parent"], Value::Null);
    let (base, _) = demo.chat(&hello()).await;
    let (adapted, answer) = demo.chat(&with(hello(), json!({"model": "shanty"}))).await;
    assert_ne!(base, adapted);
    assert_eq!(answer["model"], "shanty");
    let (status, _) = demo.post("/v1/unload_lora_adapter", &json!({"lora_name": "shanty"})).await;
    assert_eq!(status, 200);
    let (status, answer) = demo.post("/v1/chat/completions", &with(hello(), json!({"model": "shanty"}))).await;
    assert_eq!(status, 404);
    assert_eq!(answer["error"]["type"], "NotFoundError");
    let load = json!({"lora_name": "ballad", "lora_path": "/adapters/ballad"});
    assert_eq!(demo.post("/v1/load_lora_adapter", &load).await.0, 200);
    demo.chat(&with(hello(), json!({"model": "ballad"}))).await;
}

#[tokio::test]
async fn errors_have_vllms_shape() {
    let demo = start(Config { context: 100, ..fast() });
    let chat = "/v1/chat/completions";
    for (path, body, status, kind, parameter, part) in [
        (
            chat,
            with(hello(), json!({"model": "no-such"})),
            404,
            "NotFoundError",
            json!("model"),
            "Valid aliases: demo.",
        ),
        (chat, json!({"model": "demo"}), 400, "Bad Request", json!("body.messages"), "Field required"),
        (chat, json!({"messages": []}), 400, "BadRequestError", Value::Null, "empty conversation"),
        (chat, json!({"messages": "hello"}), 400, "Bad Request", json!("body"), "expected a sequence"),
        (
            chat,
            with(hello(), json!({"max_tokens": -5})),
            400,
            "BadRequestError",
            json!("max_tokens"),
            "at least 1, got -5",
        ),
        (
            chat,
            with(hello(), json!({"max_tokens": 5000})),
            400,
            "BadRequestError",
            json!("max_tokens"),
            "too large: 5000",
        ),
        (chat, with(hello(), json!({"temperature": -3})), 400, "BadRequestError", json!("temperature"), "got -3.0"),
        (chat, with(hello(), json!({"n": 2})), 400, "BadRequestError", json!("n"), "n must be 1"),
        (
            chat,
            with(hello(), json!({"stop": ["a", "b", "c", "d", "e"]})),
            400,
            "Bad Request",
            json!("body.stop"),
            "at most 4",
        ),
        (
            chat,
            with(hello(), json!({"continue_final_message": true})),
            400,
            "BadRequestError",
            json!("continue_final_message"),
            "role assistant",
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}),
            400,
            "BadRequestError",
            Value::Null,
            "demo is not a multimodal model",
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": "long ".repeat(500)}]}),
            400,
            "BadRequestError",
            json!("input_tokens"),
            "maximum context length is 100 tokens",
        ),
        ("/v1/completions", json!({"model": "demo"}), 400, "Bad Request", json!("body.prompt"), "Field required"),
        ("/v1/embeddings", json!({"model": "demo"}), 400, "Bad Request", json!("body.input"), "Field required"),
        (
            "/detokenize",
            json!({"tokens": [4_294_967_295u32]}),
            400,
            "BadRequestError",
            Value::Null,
            "out of vocabulary",
        ),
    ] {
        let (got, answer) = demo.post(path, &body).await;
        let error = &answer["error"];
        assert_eq!((got, &error["code"]), (status, &json!(status)), "{body}: {answer}");
        assert_eq!((&error["type"], &error["param"]), (&json!(kind), &parameter), "{body}");
        assert!(error["message"].as_str().unwrap().contains(part), "{body}: {error}");
    }
    let (status, text) = demo.text("POST", chat, "{\"model\":\"demo\",\"messages\":[}").await;
    assert!(status == 400 && text.contains("json_invalid"), "{text}");
    let (status, text) = demo.text("POST", chat, "").await;
    assert!(status == 400 && text.contains("Field required"), "{text}");
    assert_eq!(demo.text("POST", "/v1/responses", "{}").await, (404, "{\"detail\":\"Not Found\"}".into()));
    assert_eq!(demo.get("/props").await.0, 404);
    assert_eq!(demo.get(chat).await.0, 405);
    assert_eq!(demo.metric("vllm:num_requests_running").await + demo.metric("vllm:num_requests_waiting").await, 0.0);
}

#[tokio::test]
async fn tokens_go_there_and_back() {
    let demo = start(fast());
    let text = "A dunlin, 鳥 🐦\n\"quoted\" antidisestablishment";
    let (_, tokenized) = demo.post("/tokenize", &json!({"model": "demo", "prompt": text})).await;
    assert_eq!(tokenized["count"], tokenized["tokens"].as_array().unwrap().len());
    let (_, back) = demo.post("/detokenize", &json!({"model": "demo", "tokens": tokenized["tokens"]})).await;
    assert_eq!(back["prompt"], text);
    let (_, chat) = demo.post("/tokenize", &hello()).await;
    let (_, answer) = demo.chat(&hello()).await;
    assert_eq!(chat["count"], answer["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn embeddings_are_deterministic_and_alike_for_alike_texts() {
    let demo = start(fast());
    let texts = json!(["a small silver wader", "a small silver bird", "north wind"]);
    let (status, answer) = demo.post("/v1/embeddings", &json!({"model": "demo", "input": texts})).await;
    assert_eq!(status, 200, "{answer}");
    let vector = |index: usize| -> Vec<f64> {
        answer["data"][index]["embedding"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    };
    let alike = |a: usize, b: usize| vector(a).iter().zip(vector(b)).map(|(a, b)| a * b).sum::<f64>();
    assert!((alike(0, 0) - 1.0).abs() < 1e-4);
    assert!(alike(0, 1) > alike(0, 2) + 0.2, "{} and {}", alike(0, 1), alike(0, 2));
    let (_, again) = demo.post("/v1/embeddings", &json!({"model": "demo", "input": texts})).await;
    assert_eq!(answer, again);
    let base64 = json!({"input": "a", "encoding_format": "base64", "dimensions": 3});
    let (_, answer) = demo.post("/v1/embeddings", &base64).await;
    assert_eq!(answer["data"][0]["embedding"].as_str().unwrap().len(), 16);
}

#[path = "demo/load.rs"]
mod load;

#[path = "demo/breaking.rs"]
mod breaking;

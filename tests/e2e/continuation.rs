//! Streams whose replica dies in the middle: the client gets what it would have got, or an error, and never half of it.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::{DemoEngine, Llama, free_address},
    http::{Endpoint, Whole, chat_body},
    node::{Mesh, Node},
    process::Process,
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};

const CHAT: &str = "/v1/chat/completions";
const SLOW: [&str; 4] = ["--tokens-per-second", "100", "--slots", "8"];

/// What a client makes of a stream.
#[derive(Debug, Default, Clone, PartialEq)]
struct Seen {
    text: String,
    finish: Option<String>,
    /// Prompt, completion and total tokens.
    usage: Option<[u64; 3]>,
    ids: Vec<String>,
    roles: usize,
    comments: Vec<String>,
    error: Option<String>,
    done: bool,
    /// Events with text.
    pieces: usize,
}

impl Seen {
    fn take(&mut self, line: &str) {
        if let Some(comment) = line.strip_prefix(": ") {
            self.comments.push(comment.to_owned());
        }
        let Some(data) = line.strip_prefix("data: ") else { return };
        assert!(!self.done, "after the end: {line}");
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in event: {data}"));
        if let Some(error) = event.get("error") {
            self.error = Some(error.to_string());
            return;
        }
        let id = event["id"].as_str().unwrap_or_default().to_owned();
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        self.text += text;
        self.pieces += usize::from(!text.is_empty());
        self.roles += usize::from(choice["delta"]["role"].is_string());
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert_eq!(self.finish, None);
            self.finish = Some(reason.to_owned());
        }
        if event["usage"].is_object() {
            self.usage = Some(
                ["prompt", "completion", "total"]
                    .map(|kind| event["usage"][format!("{kind}_tokens")].as_u64().unwrap()),
            );
        }
    }

    /// What must not depend on whether anything was lost.
    fn answer(&self) -> (&str, Option<&str>, Option<[u64; 3]>) {
        (&self.text, self.finish.as_deref(), self.usage)
    }

    #[track_caller]
    fn assert_whole(&self) {
        assert!(self.done && self.error.is_none() && self.finish.is_some(), "{self:?}");
        assert_eq!(self.ids.len(), 1, "{self:?}");
        assert!(self.roles <= 1, "{self:?}");
    }
}

/// Streams an answer; when `after` pieces of text have come, `act` is told who answers.
#[track_caller]
fn stream_and(
    endpoint: &Endpoint,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
    after: usize,
    act: impl FnOnce(&str),
) -> Seen {
    let headers = [&[("Content-Type", "application/json")], headers].concat();
    let answer = endpoint.send("POST", path, &headers, body.to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200);
    let replica = answer.header("x-dunlin-replica").unwrap_or_default().to_owned();
    let (mut seen, mut act) = (Seen::default(), Some(act));
    for line in BufReader::with_capacity(1, answer).lines() {
        seen.take(&line.unwrap());
        if seen.pieces >= after
            && let Some(act) = act.take()
        {
            act(&replica);
        }
    }
    seen
}

fn stream(endpoint: &Endpoint, path: &str, body: &Value) -> Seen {
    stream_and(endpoint, path, &[], body, usize::MAX, |_| {})
}

/// Repeatable, and different enough: where streams are cut.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap()
}

/// Two demo engines, an agent beside each.
struct Scene<'a> {
    sandbox: &'a Sandbox,
    engines: [DemoEngine; 2],
    agents: [Node<'a>; 2],
    mesh: Mesh<'a>,
    names: [String; 2],
}

impl<'a> Scene<'a> {
    fn new(sandbox: &'a Sandbox, proxy: &[&str]) -> Self {
        let engines = [DemoEngine::start(sandbox, "engine-a", &SLOW), DemoEngine::start(sandbox, "engine-b", &SLOW)];
        let mesh = Mesh::new(sandbox, proxy);
        let agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
        mesh.proxy.wait_for_exact("demo", 2);
        let names = [agents[0].peer_id(), agents[1].peer_id()];
        Self { sandbox, engines, agents, mesh, names }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.mesh.endpoint
    }

    /// Streams `body` and loses who answers in the way of `lose` after so many pieces. Returns who it was.
    #[track_caller]
    fn lose(&mut self, path: &str, body: &Value, after: usize, lose: impl FnOnce(&mut Self, usize)) -> (Seen, usize) {
        let (endpoint, mut lost) = (self.mesh.endpoint.clone(), 2);
        let seen = stream_and(&endpoint, path, &[], body, after, |replica| {
            lost = self.names.iter().position(|name| replica.starts_with(name)).expect("one of the two");
            lose(self, lost);
        });
        (seen, lost)
    }

    /// Both engines stop their next answer after `tokens` of it.
    fn let_both_die_once(&self, tokens: u32) {
        let faults = json!({"die_after_tokens": tokens, "death": "close", "times": 1});
        for engine in &self.engines {
            assert_eq!(engine.direct().post("/demo/faults", &faults).unwrap().status, 200);
        }
    }

    fn heal(&self) {
        for engine in &self.engines {
            assert_eq!(engine.direct().post("/demo/faults", &json!({})).unwrap().status, 200);
        }
    }

    /// Starts the lost engine again where it was.
    fn restart_engine(&mut self, nth: usize) {
        let address = self.engines[nth].address;
        let name = format!("engine-{nth}-again");
        self.engines[nth] = DemoEngine::start_at(self.sandbox, &name, address, &SLOW);
        self.mesh.proxy.wait_for_exact("demo", 2);
    }

    fn metric(&self, series: &str) -> f64 {
        let page = self.endpoint().get("/metrics").unwrap().text();
        let of_series = page.lines().filter(|line| line.starts_with(series));
        of_series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn chat(prompt: &str, max_tokens: u32) -> Value {
    let mut body = chat_body("demo", prompt, max_tokens, true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[test]
fn an_engine_killed_at_any_token_goes_unnoticed() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, &[]);
    let mut state = 7;
    for round in 0..6 {
        let body = chat(&format!("question {round}"), 90);
        let whole = stream(&scene.engines[round % 2].direct(), CHAT, &body);
        let after = 1 + random(&mut state) % (whole.pieces - 2);
        let (seen, lost) = scene.lose(CHAT, &body, after, |scene, lost| scene.engines[lost].process.kill());
        seen.assert_whole();
        assert_eq!(seen.answer(), whole.answer(), "cut after {after}");
        let heir = &scene.names[1 - lost];
        assert!(seen.comments.iter().any(|comment| comment.starts_with(&format!("continued by {heir}"))), "{seen:?}");
        scene.restart_engine(lost);
    }
    assert_eq!(scene.metric(r#"dunlin_proxy_lost_streams_total{outcome="continued"}"#), 6.0);
    assert_eq!(scene.metric("dunlin_proxy_broken_answers_total"), 0.0);
}

#[test]
fn an_agent_killed_in_the_middle_goes_unnoticed() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, &[]);
    let body = chat("a killed agent", 80);
    let whole = stream(&scene.engines[0].direct(), CHAT, &body);
    let (seen, _) = scene.lose(CHAT, &body, 20, |scene, lost| scene.agents[lost].process.kill());
    seen.assert_whole();
    assert_eq!(seen.answer(), whole.answer());
}

/// Nothing is closed and nothing is said: the connection is given up after ten seconds of silence.
#[test]
fn a_frozen_agent_goes_unnoticed() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, &[]);
    let body = chat("a frozen agent", 80);
    let whole = stream(&scene.engines[0].direct(), CHAT, &body);
    let since = Instant::now();
    let (seen, lost) = scene.lose(CHAT, &body, 20, |scene, lost| scene.agents[lost].process.signal(Signal::STOP));
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    seen.assert_whole();
    assert_eq!(seen.answer(), whole.answer());
    scene.agents[lost].process.signal(Signal::CONT);
}

/// A machine that slept: every connection is lost at once, and nobody is dead. Ten seconds are what connections bear.
#[test]
fn streams_of_a_proxy_that_stood_still_go_on() {
    let sandbox = Sandbox::new();
    let engine = |name: &str| DemoEngine::start(&sandbox, name, &["--tokens-per-second", "20", "--slots", "8"]);
    let engines = ["engine-a", "engine-b"].map(engine);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
    mesh.proxy.wait_for_exact("demo", 2);
    let body = chat("a machine that sleeps", 300);
    let (asked, frozen) = (std::sync::Barrier::new(5), std::sync::Barrier::new(5));
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let wait = |_: &str| {
                        asked.wait();
                        frozen.wait();
                    };
                    stream_and(&mesh.endpoint, CHAT, &[], &body, 10, wait)
                })
            })
            .collect();
        asked.wait();
        mesh.proxy.process.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(12));
        mesh.proxy.process.signal(Signal::CONT);
        frozen.wait();
        let whole = stream(&engines[0].direct(), CHAT, &body);
        for seen in streams {
            let seen = seen.join().unwrap();
            seen.assert_whole();
            assert_eq!(seen.answer(), whole.answer());
        }
    });
}

/// Its agent is well and its connection open: only the silence tells, long before the time is up that a stream may stand
/// still.
#[test]
fn a_frozen_engine_goes_unnoticed() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, &["--inter-token-timeout", "10"]);
    let body = chat("a frozen engine", 80);
    let whole = stream(&scene.engines[0].direct(), CHAT, &body);
    let since = Instant::now();
    let (seen, lost) = scene.lose(CHAT, &body, 20, |scene, lost| scene.engines[lost].process.signal(Signal::STOP));
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    seen.assert_whole();
    assert_eq!(seen.answer(), whole.answer());
    scene.engines[lost].process.signal(Signal::CONT);
}

/// Limits, stop strings, the other endpoint, and a stream that is lost twice.
#[test]
fn what_was_asked_for_holds_for_both_parts_together() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox, &[]);
    let with = |body: Value, more: Value| {
        let mut body = body;
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let completion = json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": 30, "stream": true, "temperature": 0,
        "stream_options": {"include_usage": true}});
    let cases = [
        ("limit", CHAT, chat("limits", 25), "length"),
        ("limit right after the cut", CHAT, chat("limits", 7), "length"),
        ("stop", CHAT, with(chat("stops", 90), json!({"stop": ["no model"]})), "stop"),
        ("completion", "/v1/completions", completion, "length"),
        (
            "by itself",
            CHAT,
            with(chat("the end", 900), json!({"temperature": 0.5, "seed": 3, "user": "u", "n": 1})),
            "stop",
        ),
    ];
    for (what, path, body, finish) in cases {
        let whole = stream(&scene.engines[0].direct(), path, &body);
        assert_eq!(whole.finish.as_deref(), Some(finish), "{what}");
        scene.let_both_die_once(6);
        let seen = stream(scene.endpoint(), path, &body);
        scene.heal();
        seen.assert_whole();
        assert_eq!(seen.answer(), whole.answer(), "{what}");
        assert!(!seen.comments.is_empty(), "{what}: {seen:?}");
    }
    assert!(scene.metric(r#"dunlin_proxy_lost_streams_total{outcome="continued"}"#) >= 8.0);
}

/// Asked again from the start, whatever it asks for: nothing of it was there yet.
#[test]
fn a_stream_without_text_is_asked_again() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox, &[]);
    let mut body = chat("nothing yet", 20);
    let whole = stream(&scene.engines[0].direct(), CHAT, &body);
    // The demo knows nothing of tools and takes them.
    body["tools"] = json!([]);
    scene.let_both_die_once(0);
    let seen = stream(scene.endpoint(), CHAT, &body);
    seen.assert_whole();
    assert_eq!(seen.answer(), whole.answer());
    assert_eq!(seen.roles, 1);
    assert!(seen.comments.iter().any(|comment| comment.starts_with("asked again by ")), "{seen:?}");
    let log = scene.mesh.proxy.process.output();
    let line = log.lines().find(|line| line.contains("stream goes on elsewhere")).unwrap();
    assert!(scene.names.iter().any(|name| line.contains(&format!("\"{name}/0\""))), "{line}");
    assert!(line.contains("request_id") && !line.contains("\\\""), "{line}");
}

#[test]
fn what_may_not_go_on_ends_with_an_error() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox, &[]);
    let lose = |headers: &[(&str, &str)], more: Value| {
        let mut body = chat("must not go on", 40);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        scene.let_both_die_once(6);
        let seen = stream_and(scene.endpoint(), CHAT, headers, &body, usize::MAX, |_| {});
        scene.heal();
        assert!(!seen.done && seen.finish.is_none() && seen.comments.is_empty() && !seen.text.is_empty(), "{seen:?}");
        seen.error.expect("an error event")
    };
    for (field, more) in [
        ("tools", json!({"tools": []})),
        ("logprobs", json!({"logprobs": true})),
        ("brand_new", json!({"brand_new": 1})),
        ("reasoning_effort", json!({"reasoning_effort": "low"})),
        ("messages", json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})),
    ] {
        let error = lose(&[], more);
        assert!(error.contains("stream_interrupted") && error.contains(&format!("`{field}`")), "{error}");
    }
    let error = lose(&[("X-Dunlin-Continuation", "off")], json!({}));
    assert!(error.contains("x-dunlin-continuation: off"), "{error}");
    assert_eq!(scene.metric(r#"dunlin_proxy_lost_streams_total{outcome="field"}"#), 5.0);
    assert_eq!(scene.metric(r#"dunlin_proxy_lost_streams_total{outcome="off"}"#), 1.0);
    assert_eq!(scene.metric("dunlin_proxy_broken_answers_total"), 6.0);
}

/// The same name for another model: what that would write is no continuation.
#[test]
fn another_model_under_the_same_name_does_not_go_on() {
    let sandbox = Sandbox::new();
    let other = [&SLOW[..], &["--root", "another"]].concat();
    let engines = [DemoEngine::start(&sandbox, "engine-a", &SLOW), DemoEngine::start(&sandbox, "engine-b", &other)];
    let mesh = Mesh::new(&sandbox, &[]);
    let _agents = [mesh.agent_of("a", &engines[0]), mesh.agent_of("b", &engines[1])];
    mesh.proxy.wait_for_exact("demo", 2);
    let faults = json!({"die_after_tokens": 6, "death": "close", "times": 1});
    engines.iter().for_each(|engine| assert_eq!(engine.direct().post("/demo/faults", &faults).unwrap().status, 200));
    let seen = stream(&mesh.endpoint, CHAT, &chat("who are you?", 40));
    assert!(!seen.done && seen.error.as_ref().is_some_and(|error| error.contains("no other replica")), "{seen:?}");
}

/// Two real engines with one slot each.
struct Llamas<'a> {
    sandbox: &'a Sandbox,
    llama: Llama,
    servers: [Process; 2],
    ports: [u16; 2],
    names: [String; 2],
    _agents: [Node<'a>; 2],
    mesh: Mesh<'a>,
}

/// The last `-np` counts.
const ONE_SLOT: [&str; 2] = ["-np", "1"];

impl<'a> Llamas<'a> {
    fn new(sandbox: &'a Sandbox, llama: Llama) -> Self {
        let ports = [free_address().port(), free_address().port()];
        let servers = ports.map(|port| llama.start_at(sandbox, "tinykjv", port, &ONE_SLOT).0);
        let mesh = Mesh::new(sandbox, &[]);
        let agent = |name: &str, port: u16| mesh.agent(name, &["--engine", &format!("http://127.0.0.1:{port}")]);
        let agents = [agent("a", ports[0]), agent("b", ports[1])];
        mesh.proxy.wait_for_exact("tinykjv", 2);
        let names = [agents[0].peer_id(), agents[1].peer_id()];
        Self { sandbox, llama, servers, ports, names, _agents: agents, mesh }
    }

    /// Cuts `count` answers at random places by killing their engine; returns how many came out otherwise than without,
    /// and how many did not come to their end. Those do not count of which all had been written before the engine died.
    fn cut(&mut self, count: usize, seed: u64) -> (usize, usize) {
        let (mut state, mut different, mut broken, mut cut, mut round) = (seed, 0, 0, 0, 0);
        let books = ["the sea", "a king", "the hill of the Lord", "bread", "the seventh day", "my brother", "a woman"];
        while cut < count {
            round += 1;
            assert!(round < 5 * count, "the engine is too fast to be killed: {cut} of {round}");
            let prompt =
                format!("{} and {}", books[random(&mut state) % books.len()], books[random(&mut state) % books.len()]);
            let mut body = chat_body("tinykjv", &prompt, 256, true);
            body["stream_options"] = json!({"include_usage": true});
            let whole = stream(&Endpoint::open(([127, 0, 0, 1], self.ports[0]).into()), CHAT, &body);
            let after = 1 + random(&mut state) % (whole.pieces.max(4) / 2);
            let endpoint = self.mesh.endpoint.clone();
            let mut lost = None;
            let seen = stream_and(&endpoint, CHAT, &[], &body, after, |replica| {
                let nth = self.names.iter().position(|name| replica.starts_with(name)).unwrap();
                self.servers[nth].kill();
                lost = Some(nth);
            });
            cut += usize::from(!seen.done || !seen.comments.is_empty());
            if !seen.done {
                broken += 1;
                eprintln!("{round}: cut after {after} of {}: {:?}", whole.pieces, seen.error);
            } else if seen.answer() != whole.answer() {
                different += 1;
                eprintln!("{round}: cut after {after} of {}:\n{:?}\n{:?}", whole.pieces, whole.answer(), seen.answer());
            }
            let lost = lost.expect("a piece came");
            self.servers[lost] = self.llama.start_at(self.sandbox, "tinykjv", self.ports[lost], &ONE_SLOT).0;
            self.mesh.proxy.wait_for_exact("tinykjv", 2);
        }
        eprintln!("{cut} of {round} answers were cut: {different} went on otherwise, {broken} broke off");
        (different, broken)
    }
}

#[test]
fn a_real_engine_killed_in_the_middle_goes_unnoticed() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    assert_eq!(Llamas::new(&sandbox, llama).cut(5, 11), (0, 0));
}

/// What docs/reliability.md says was measured with it.
#[test]
#[ignore = "takes minutes"]
fn two_hundred_cuts_of_a_real_engine() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    let (different, broken) = Llamas::new(&sandbox, llama).cut(200, 2026);
    assert!(different <= 4 && broken == 0, "{different} went on otherwise, {broken} broke off");
}

/// Answers in one piece have nothing to go on from: they are asked again.
#[test]
fn an_answer_in_one_piece_is_asked_again() {
    let sandbox = Sandbox::new();
    let mut scene = Scene::new(&sandbox, &[]);
    let mut body = chat("in one piece", 120);
    body["stream"] = json!(false);
    body.as_object_mut().unwrap().remove("stream_options");
    let whole = scene.engines[0].direct().post(CHAT, &body).unwrap().content();
    let endpoint = scene.endpoint().clone();
    let asking = std::thread::spawn(move || -> Whole { endpoint.post(CHAT, &body).unwrap() });
    let busy = wait_for("an engine to be at work", PATIENCE, || {
        (0..2).find(|&nth| scene.engines[nth].metric("vllm:num_requests_running") > 0.0)
    });
    scene.engines[busy].process.kill();
    let answer = asking.join().unwrap();
    assert_eq!(answer.content(), whole);
    assert_eq!(answer.header("x-dunlin-tries"), Some("2"));
    assert!(answer.header("x-dunlin-replica").unwrap().starts_with(&scene.names[1 - busy]));
}

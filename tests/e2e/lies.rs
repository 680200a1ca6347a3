//! Engines that hang, lie, or speak no HTTP. Until the first byte another replica is asked, and where there is none the
//! client is told the truth in OpenAI's shape; after it, by an event.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::DemoEngine,
    http::{Whole, chat_body},
    liar::{DONE, LAST, Liar, Step, TRUTH, chunk, chunked, delta, end, message, say, whole},
    node::{Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use serde_json::Value;
use std::{
    io::Read,
    time::{Duration, Instant},
};

const CHAT: &str = "/v1/chat/completions";
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
/// What the agent beside the liar holds it to.
const BOUNDS: [&str; 6] =
    ["--set", "bounds.first_byte_s=1", "--set", "bounds.whole_s=2", "--set", "bounds.inter_token_s=1"];
/// One answer at a time, and some time for each.
const HONEST: [&str; 8] = ["--model", "both", "--model", "mine", "--slots", "1", "--tokens-per-second", "25"];
/// Far above all of these, and far below the bounds of any runtime: nothing hangs.
const SOON: Duration = Duration::from_secs(40);

/// The liar serves `both` with an honest engine beside it, and `alone` without; the honest one serves `mine` too.
struct Scene<'a> {
    liar: Liar,
    _honest: DemoEngine,
    mesh: Mesh<'a>,
    agents: [Node<'a>; 2],
}

impl<'a> Scene<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        Self::with(sandbox, 1)
    }

    /// One in which answers may have so many MiB.
    fn with(sandbox: &'a Sandbox, largest: u32) -> Self {
        let liar = Liar::start(&["both", "alone"]);
        let honest = DemoEngine::start(sandbox, "honest", &HONEST);
        let mesh = Mesh::new(sandbox, &[]);
        let url = liar.url();
        let largest = format!("bounds.answer_mib={largest}");
        let liars = [&["--engine", url.as_str(), "--runtime", "openai", "--set", &largest][..], &BOUNDS].concat();
        let agents = [mesh.agent("liars", &liars), mesh.agent("honests", &["--engine", &honest.url()])];
        mesh.proxy.wait_for_replicas("both", 2);
        mesh.proxy.wait_for_replicas("alone", 1);
        mesh.proxy.wait_for_replicas("mine", 1);
        Self { liar, _honest: honest, mesh, agents }
    }

    /// Ends the lie; what was said of the liar so far is made good.
    fn make_up(&self) {
        self.liar.be_honest();
        for _ in 0..2 {
            assert_eq!(self.mesh.endpoint.chat("alone", "hello", 4).unwrap().content(), TRUTH);
        }
        assert!(!self.mesh.endpoint.chat("both", "hello", 4).unwrap().content().is_empty());
    }

    fn is_of(&self, replica: &Option<&str>, agent: usize) -> bool {
        replica.is_some_and(|replica| replica.starts_with(&self.agents[agent].peer_id()))
    }

    /// Asks `both` while the only slot of the honest engine is taken, so that it is the liar that is asked first. Answers of
    /// the honest one have to be `right`: a slot may become free too early.
    fn ask_both(&self, name: &str, stream: bool, right: impl Fn(&Whole)) -> Whole {
        for n in 0..10 {
            let busy = self.mesh.endpoint.chat_stream("mine", &format!("{name} {n}"), 30).unwrap();
            let mut busy = busy.events();
            assert!(busy.next().is_some_and(|event| event.is_ok()), "{name}");
            let asked = self.liar.asked();
            let answer = self.mesh.endpoint.start(CHAT, &chat_body("both", &format!("{name} {n}"), 8, stream));
            let answer = answer.and_then(|answer| answer.whole()).unwrap_or_else(|error| panic!("{name}: {error}"));
            if self.liar.asked() > asked {
                return answer;
            }
            right(&answer);
        }
        panic!("{name}: the liar is never asked");
    }

    /// The liar's connection is closed, so that its slot is free.
    fn is_left_alone(&self, name: &str) {
        wait_for(&format!("the end of {name:?} at the engine"), PATIENCE, || {
            (self.liar.answering() == 0).then_some(())
        });
    }
}

/// One way to lie: its name, what is said, and what becomes of it where there is nobody else to ask.
struct Lie(&'static str, Vec<Step>, u16, &'static str, &'static str);

fn before_the_first_byte() -> Vec<Lie> {
    let (timeout, failed) = ("replica_timeout", "replicas_failed");
    let long = "x".repeat(1 << 20);
    let page = "<!doctype html><html><body>Welcome to nginx</body></html>";
    let error = r#"{"error":{"message":"the GPU is on fire","type":"server_error","param":null,"code":"fire"}}"#;
    let answer = message("half of it");
    let head =
        |length: usize| say(format!("HTTP/1.1 200 OK\r\ncontent-type: {JSON}\r\ncontent-length: {length}\r\n\r\n"));
    let ping = || Step::Repeat(Duration::from_millis(100), b"8\r\n: ping\n\n\r\n".to_vec());
    vec![
        Lie("nothing at all", vec![Step::Hang], 504, timeout, "in time"),
        Lie("a head and nothing more", vec![chunked(JSON), Step::Hang], 504, timeout, "in time"),
        Lie(
            "a promise of an answer, for ever",
            vec![Step::Repeat(Duration::from_millis(100), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())],
            504,
            timeout,
            "in time",
        ),
        Lie("a closed connection", vec![Step::Close], 502, failed, "engine failed"),
        Lie("no HTTP", vec![say("\x16\x03\x01 SSH-2.0-OpenSSH\r\n\r\n"), Step::Close], 502, failed, "engine failed"),
        Lie(
            "a megabyte of headers",
            vec![say(format!("HTTP/1.1 200 OK\r\nx-long: {long}\r\n\r\n{{}}")), Step::Close],
            502,
            failed,
            "engine failed",
        ),
        Lie("a truncated chunk", vec![chunked(JSON), say("400\r\n{\"id\":"), Step::Close], 503, failed, "lost"),
        Lie(
            "a chunk of no size",
            vec![chunked(JSON), chunk("{\"id\":"), say("zz\r\n"), Step::Close],
            503,
            failed,
            "lost",
        ),
        Lie("less than its length", vec![head(9999), say(answer.clone()), Step::Close], 503, failed, "lost"),
        Lie(
            "less than its length, and silence",
            vec![head(9999), say(answer.clone()), Step::Hang],
            503,
            failed,
            "lost",
        ),
        Lie("more than its length", vec![head(20), say(answer), Step::Close], 502, failed, "broken JSON"),
        Lie("a page of HTML", vec![whole("200 OK", "text/html", page)], 502, failed, "a web page"),
        Lie("a page that calls itself JSON", vec![whole("200 OK", JSON, page)], 502, failed, "no JSON"),
        Lie("a page that calls itself events", vec![whole("200 OK", EVENTS, page)], 503, failed, "lost"),
        Lie("lines that are no events", vec![whole("200 OK", EVENTS, "<html>\n")], 502, failed, "no events"),
        Lie("an empty answer", vec![whole("200 OK", JSON, "")], 502, failed, "nothing"),
        Lie("nothing but blanks, for ever", vec![chunked(JSON), Step::Endless(blanks())], 502, failed, "nothing"),
        Lie("an error as if it were an answer", vec![whole("200 OK", JSON, error)], 502, "fire", "the GPU is on fire"),
        Lie("comments and an end", vec![chunked(EVENTS), chunk(": ping\n\n"), end()], 503, failed, "lost"),
        Lie("comments for ever", vec![chunked(EVENTS), ping()], 504, timeout, "in time"),
    ]
}

fn blanks() -> Vec<u8> {
    format!("4000\r\n{}\r\n", " ".repeat(0x4000)).into_bytes()
}

#[test]
fn before_the_first_byte_another_is_asked_and_else_the_client_is_told() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox);
    scene.make_up();
    for Lie(name, script, status, code, message) in before_the_first_byte() {
        scene.liar.lie(&script);
        let streams = name.contains("events") || name.contains("comments");
        let since = Instant::now();
        let honest = |answer: &Whole| {
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            assert!(scene.is_of(&answer.header("x-dunlin-replica"), 1), "{name}: {:?}", answer.headers);
        };
        let elsewhere = scene.ask_both(name, streams, honest);
        honest(&elsewhere);
        assert_eq!(elsewhere.header("x-dunlin-tries"), Some("2"), "{name}");
        let told = scene.mesh.endpoint.start(CHAT, &chat_body("alone", "hello", 8, streams));
        let told = told.and_then(|told| told.whole()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(since.elapsed() < SOON, "{name}: {:?}", since.elapsed());
        let error = || told.json()["error"].clone();
        assert_eq!((told.status, error()["code"].as_str()), (status, Some(code)), "{name}: {}", told.text());
        assert!(error()["message"].as_str().unwrap().contains(message), "{name}: {}", told.text());
        assert!(error()["type"].is_string() && error().get("param").is_some(), "{name}: {}", told.text());
        scene.is_left_alone(name);
        scene.make_up();
    }
}

/// It is the request that is wrong: whoever is asked would say the same.
#[test]
fn a_clients_own_mistake_under_a_status_of_success_gets_its_true_status_once() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox);
    let mistake = r#"{"object":"error","message":"too many tokens","type":"BadRequestError","param":null,"code":400}"#;
    scene.liar.lie(&[whole("200 OK", JSON, mistake)]);
    let answer = scene.ask_both("a mistake", false, |answer| assert_eq!(answer.status, 200));
    // In OpenAI's shape, which that of some engines is not.
    let expected = r#"{"error":{"code":null,"message":"too many tokens","param":null,"type":"invalid_request_error"}}"#;
    assert_eq!((answer.status, answer.text().as_str()), (400, expected));
    assert_eq!((scene.liar.asked(), answer.header("x-dunlin-tries")), (1, None));
}

/// An answer that may be long goes out before it is whole. That it broke off can be seen.
#[test]
fn an_answer_without_an_end_breaks_off_at_the_largest_size() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox);
    let endless = format!("4000\r\n{}\r\n", "x".repeat(0x4000)).into_bytes();
    scene.liar.lie(&[chunked(JSON), chunk("{\"id\":\""), Step::Endless(endless)]);
    let mut answer = scene.mesh.endpoint.start(CHAT, &chat_body("alone", "hello", 4, false)).unwrap();
    let mut body = Vec::new();
    let ended = answer.read_to_end(&mut body);
    assert!(ended.is_err(), "a clean end after {} bytes", body.len());
    assert!(((256 << 10)..=(1 << 20)).contains(&body.len()), "{}", body.len());
    scene.is_left_alone("the endless answer");
}

#[test]
fn what_goes_wrong_in_the_middle_of_a_stream_is_told_by_an_event() {
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox);
    let begun = |more: &[Step]| [&[chunked(EVENTS), chunk(&delta("one ")), chunk(&delta("two "))][..], more].concat();
    let cut = format!("data: {}", "x".repeat(100));
    let length = say(format!("HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\ncontent-length: 1000\r\n\r\n"));
    let endless = chunk(&delta(&"x".repeat(0x4000)));
    let Step::Say(endless) = endless else { unreachable!() };
    let lies = [
        ("a clean end", begun(&[end()])),
        ("a closed connection", begun(&[Step::Close])),
        ("a truncated chunk", begun(&[say(format!("fff\r\n{cut}")), Step::Close])),
        ("half an event and a clean end", begun(&[chunk(&cut), end()])),
        ("a chunk of no size", begun(&[say("zz\r\n"), Step::Close])),
        ("silence", begun(&[Step::Hang])),
        ("comments for ever", begun(&[Step::Repeat(Duration::from_millis(100), b"8\r\n: ping\n\n\r\n".to_vec())])),
        ("a page of HTML", begun(&[chunk("<html>\n\n502 Bad Gateway\n\n</html>\n\n"), end()])),
        ("events for ever", begun(&[Step::Endless(endless)])),
        ("less than its length", vec![length, say(delta("one ")), say(delta("two ")), Step::Close]),
    ];
    for (name, script) in lies {
        scene.liar.lie(&script);
        let since = Instant::now();
        let answer = scene.mesh.endpoint.chat_stream("alone", "hello", 8).unwrap();
        assert_eq!((answer.status, scene.is_of(&answer.header("x-dunlin-replica"), 0)), (200, true), "{name}");
        let text = answer.whole().unwrap_or_else(|error| panic!("{name}: {error}")).text();
        assert!(since.elapsed() < SOON, "{name}: {:?}", since.elapsed());
        assert!(text.starts_with(&[delta("one "), delta("two ")].concat()), "{name}: {text}");
        let (_, error) = text.rsplit_once("event: error\ndata: ").unwrap_or_else(|| panic!("{name}: {text}"));
        let error: Value = serde_json::from_str(error.trim_end()).unwrap_or_else(|_| panic!("{name}: {error}"));
        assert_eq!(error["error"]["code"], "stream_interrupted", "{name}: {error}");
        assert!(!text.contains("[DONE]"), "{name}");
        scene.is_left_alone(name);
        scene.make_up();
    }
}

/// None of this is usual and all of it is right: it passes as it came.
#[test]
fn odd_and_whole_streams_pass_to_the_letter() {
    let sandbox = Sandbox::new();
    let scene = Scene::with(&sandbox, 16);
    let usual = [delta("a"), delta("b"), LAST.to_owned(), DONE.to_owned()].concat();
    let by_byte: Vec<Step> = usual.chars().map(|one| chunk(&one.to_string())).collect();
    let huge = delta(&"x".repeat(5 << 20));
    let until_close = say(format!("HTTP/1.1 200 OK\r\ncontent-type: {EVENTS}\r\nconnection: close\r\n\r\n"));
    let events = |text: &str| vec![chunked(EVENTS), chunk(text), end()];
    let answers = [
        ("CRLF", usual.replace('\n', "\r\n")),
        ("CR", usual.replace('\n', "\r")),
        ("comments between", usual.replace("\n\n", "\n\n: ping\n\n")),
        ("a comment first", format!(": ping\n\n{usual}")),
        ("a byte order mark", format!("\u{feff}{usual}")),
        ("an event of five megabytes", format!("{huge}{LAST}{DONE}")),
    ];
    let answers = answers.into_iter().map(|(name, text)| (name, events(&text), text)).chain([
        ("byte by byte", [vec![chunked(EVENTS)], by_byte, vec![end()]].concat(), usual.clone()),
        ("an end by closing", vec![until_close, say(usual.clone()), Step::Close], usual.clone()),
    ]);
    for (name, script, text) in answers {
        scene.liar.lie(&script);
        let answer = scene.mesh.endpoint.chat_stream("alone", "hello", 8).unwrap();
        assert!(scene.is_of(&answer.header("x-dunlin-replica"), 0), "{name}");
        let whole = answer.whole().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(whole.text() == text, "{name}: {:.300}", whole.text());
    }
}

/// Comments while an engine reads a long prompt, ends of lines as some write them, and the event that tells of a loss.
#[test]
fn official_sdks_read_past_comments_and_raise_errors() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let scene = Scene::new(&sandbox);
    let whole = [": ping\n\n", &delta("per"), ": ping\n\n: ping\n\n", &delta("haps"), LAST, DONE].concat();
    let ask = |example| {
        let output = clients.example(&sandbox, &scene.mesh.endpoint, example, &["alone", "hello"]);
        (output.status.success(), [output.stdout, output.stderr].concat())
    };
    for example in ["chat.py", "chat.mjs"] {
        for text in [whole.clone(), whole.replace('\n', "\r\n")] {
            scene.liar.lie(&[chunked(EVENTS), chunk(&text), end()]);
            let (succeeded, said) = ask(example);
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(succeeded && said.contains("perhaps"), "{example}: {said}");
        }
        scene.liar.lie(&[chunked(EVENTS), chunk(&delta("per")), end()]);
        let (succeeded, said) = ask(example);
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!succeeded && said.contains("the replica was lost in the middle of the answer"), "{example}: {said}");
        scene.make_up();
    }
}

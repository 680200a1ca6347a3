//! Streams: passed on as they come, ended as they must, abandoned when the client is gone.

use crate::{
    client::{CHAT, read},
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use std::time::{Duration, Instant};

const ONE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
const SECOND: &str = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"},\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const GAP: Duration = Duration::from_millis(60);

#[tokio::test]
async fn every_event_is_passed_on_when_it_comes() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Stream(vec![ONE, ONE, LAST, DONE], GAP, true));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let since = Instant::now();
    let mut answer = mesh.client().begin_stream("m").await;
    let mut times = Vec::new();
    let mut text = String::new();
    while let Some(frame) = answer.body_mut().frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        text.push_str(std::str::from_utf8(&piece).unwrap());
        times.push(since.elapsed());
    }
    assert_eq!(text, [ONE, ONE, LAST, DONE].concat());
    assert_eq!(times.len(), 4, "{times:?}");
    assert!(times[0] < GAP * 2 && times[3] >= GAP * 3, "{times:?}");
    assert!(!answer.headers().contains_key("x-dunlin-load"));
}

/// C9: the client must be able to tell a broken answer from a whole one.
#[tokio::test]
async fn a_broken_stream_ends_with_an_error_event_and_never_with_done() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Stream(vec![], GAP, true));
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    let broken = [
        (vec![ONE, ONE], false),
        // A clean end without a terminal event is a broken stream too.
        (vec![ONE, ONE], true),
        // In the middle of an event: what of it came is no event, and must not spoil the next.
        (vec![ONE, ONE, "data: {\"choi"], false),
        (vec![ONE, ONE, "data: {\"choi"], true),
        // One of two choices is finished.
        (vec![ONE, ONE, SECOND, LAST], true),
    ];
    for (pieces, clean) in broken {
        engine.play(Play::Stream(pieces.clone(), Duration::from_millis(1), clean));
        let text = mesh.client().stream("m").await.text();
        assert!(text.starts_with(&[ONE, ONE].concat()), "{text}");
        let end = text.rsplit("\n\n").nth(1).unwrap();
        assert!(end.starts_with("event: error\ndata: {\"error\":{"), "{pieces:?} {clean}: {text}");
        assert!(!text.contains("[DONE]") && !text.contains("choi\n"), "{text}");
    }
    assert!(mesh.metric("dunlin_proxy_broken_answers_total").await >= 5.0);
    // Of an event too large to be held back until it is whole, a part has gone out.
    let large: &'static str = Box::leak(format!("data: {}", "y".repeat(3 << 19)).into_boxed_str());
    engine.play(Play::Stream(vec![ONE, large], Duration::from_millis(1), true));
    let text = mesh.client().stream("m").await.text();
    let end = text.rsplit("\n\n").nth(1).unwrap();
    assert!(text.contains("yyy\n\nevent:") && end.starts_with("event: error\ndata: {\"error\":{"), "{end}");
    // Finished in all but the last word, however the connection ended.
    for clean in [true, false] {
        engine.play(Play::Stream(vec![ONE, LAST], Duration::from_millis(1), clean));
        assert_eq!(mesh.client().stream("m").await.text(), [ONE, LAST, DONE].concat(), "{clean}");
    }
    // Of a further event only a part came.
    engine.play(Play::Stream(vec![ONE, LAST, "data: {\"usa"], Duration::from_millis(1), true));
    assert_eq!(mesh.client().stream("m").await.text(), [ONE, LAST, DONE].concat());
    // The last event lacks the empty line behind it.
    for done in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\r\n"] {
        for pieces in [vec![ONE, LAST, done], vec![ONE, done], vec![done]] {
            engine.play(Play::Stream(pieces.clone(), Duration::from_millis(1), true));
            let text = mesh.client().stream("m").await.text();
            assert!(text.contains("data: [DONE]") && text.ends_with("\n\n"), "{pieces:?}: {text:?}");
        }
    }
    engine.play(Play::Stream(vec![ONE, LAST.trim_end()], Duration::from_millis(1), true));
    assert_eq!(mesh.client().stream("m").await.text(), [ONE, LAST, DONE].concat());
}

/// Where an engine's files lie is nobody's business, in the middle of a stream as well as instead of one.
#[tokio::test]
async fn an_error_in_a_running_stream_names_no_folder_of_the_engines_host() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Hang);
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    const ERROR: &str = "data: {\"error\":{\"message\":\"no file /srv/models/x.gguf\",\"code\":500}}\n\n";
    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"see /etc/passwd\"},\"finish_reason\":null}]}\n\n";
    for (pieces, clean) in [
        (vec![TEXT, ERROR, DONE], true),
        (vec![TEXT, ERROR], false),
        // In two pieces, and without its last line.
        (vec![TEXT, &ERROR[..40], &ERROR[40..], DONE], true),
        (vec![TEXT, ERROR.trim_end()], true),
    ] {
        engine.play(Play::Stream(pieces.clone(), Duration::from_millis(1), clean));
        let text = mesh.client().stream("m").await.text();
        assert!(text.starts_with(TEXT), "what a model generates is left as it is: {text}");
        assert!(text.contains("no file x.gguf") && !text.contains("/srv"), "{pieces:?}: {text}");
    }
    engine.play(Play::Stream(
        vec![TEXT, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"in /a/b.py\"}}\n\n"],
        Duration::from_millis(1),
        true,
    ));
    let asked = r#"{"model":"m","stream":true,"messages":[]}"#;
    let text = mesh.client().post("/v1/messages", asked).await.text();
    assert!(text.contains("in b.py") && !text.contains("/a/"), "{text}");
}

/// An engine that says that it failed has not succeeded: earlier failures still count.
#[tokio::test]
async fn an_error_in_a_stream_forgives_no_earlier_failure() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Hang);
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    for _ in 0..3 {
        engine.play(Play::Stream(vec![ONE], Duration::from_millis(1), false));
        mesh.client().stream("m").await;
        engine.play(Play::Stream(vec![ONE, "data: {\"error\":{\"message\":\"x\"}}\n\n", DONE], Duration::ZERO, true));
        assert!(mesh.client().stream("m").await.text().ends_with(DONE));
    }
    assert_eq!(mesh.metric("dunlin_proxy_ejections_total").await, 1.0);
}

#[tokio::test]
async fn a_broken_answer_is_told_in_the_endpoints_dialect_or_by_a_broken_connection() {
    let mesh = Mesh::new().await;
    // Short, the client has nothing of it yet.
    let half = Engine::new(Play::Half("{\"half\":"));
    let _half = mesh.agent(&["half"], 4, &half).await;
    let answer = mesh.client().chat("half").await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "replicas_failed"));
    assert_eq!(half.asked(), 3);
    let long: &'static str = Box::leak(format!("{{\"half\":\"{}", "x".repeat(300_000)).into_boxed_str());
    half.play(Play::Half(long));
    let answer = mesh.client().chat("half").await;
    assert!(answer.broken && long.starts_with(&answer.text()), "{} bytes", answer.body.len());
    let engine = Engine::new(Play::Stream(vec!["event: x\ndata: {}\n\n"], Duration::from_millis(5), false));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = r#"{"model":"m","stream":true}"#;
    let answer = mesh.client().post("/v1/messages", body).await.text();
    assert!(answer.contains("event: error\ndata: {\"error\":{") && answer.contains("api_error"), "{answer}");
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_engine_within_a_second() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Stream(vec![ONE; 1000], GAP, true));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let mut answer = mesh.client().begin_stream("m").await;
    answer.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(engine.now(), 1);
    assert_eq!(mesh.metric("dunlin_proxy_requests_in_flight").await, 1.0);
    drop(answer);
    gone_within_a_second(&mesh, &engine).await;
    assert_eq!(mesh.metric("dunlin_proxy_requests_in_flight").await, 0.0);
    // Before the first byte as well.
    for play in [Play::Hang, Play::HeadOnly, Play::Slow(Duration::from_secs(60))] {
        engine.play(play);
        let client = mesh.client();
        let waiting = tokio::spawn(async move { client.stream("m").await });
        mesh.until(|_| engine.now() == 1).await;
        waiting.abort();
        gone_within_a_second(&mesh, &engine).await;
    }
}

async fn gone_within_a_second(mesh: &Mesh, engine: &Engine) {
    let since = Instant::now();
    mesh.until(|_| engine.now() == 0).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

/// C10: prefill that takes longer than a load balancer's patience.
#[tokio::test]
async fn comments_keep_a_waiting_stream_alive() {
    let mesh = Mesh::with(|config| config.silence = Duration::from_millis(100)).await;
    let engine = Engine::new(Play::Stream(vec![ONE, LAST, DONE], Duration::from_millis(350), true));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let answer = mesh.client().stream("m").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "text/event-stream; charset=utf-8");
    assert!(!answer.headers.contains_key("x-dunlin-replica"), "not known when the head went out");
    let text = answer.text();
    let (comments, events): (Vec<&str>, Vec<&str>) = text.split_inclusive("\n\n").partition(|it| it.starts_with(':'));
    assert_eq!(events, [ONE, LAST, DONE]);
    assert!((2..=4).contains(&comments.len()), "{text}");
}

#[tokio::test]
async fn what_goes_wrong_after_the_head_is_told_by_an_event() {
    let mesh = Mesh::with(|config| {
        config.silence = Duration::from_millis(50);
        config.first_byte = Some(Duration::from_millis(200));
    })
    .await;
    let engine = Engine::new(Play::Hang);
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let answer = mesh.client().stream("m").await;
    assert_eq!(answer.status, StatusCode::OK);
    let text = answer.text();
    assert!(text.starts_with(": ") && text.contains("event: error\ndata: {\"error\":{"), "{text}");
    assert!(text.contains("replica_timeout") && !text.contains("[DONE]"), "{text}");
    let body = r#"{"model":"m","stream":true}"#;
    let text = mesh.client().post("/v1/responses", body).await.text();
    assert!(text.contains("\"type\":\"error\""), "{text}");
}

#[tokio::test]
async fn an_engines_error_instead_of_a_stream_keeps_its_status() {
    let mesh = Mesh::new().await;
    let words = Bytes::from_static(b"{\"error\":{\"message\":\"too long\"}}");
    let engine = Engine::new(Play::Say(StatusCode::BAD_REQUEST, "application/json", words.clone()));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let answer = mesh.client().stream("m").await;
    assert_eq!((answer.status, answer.body), (StatusCode::BAD_REQUEST, words));
}

#[tokio::test]
async fn streams_pass_over_http2_without_encryption_too() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Stream(vec![ONE, LAST, DONE], Duration::from_millis(1), true));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let stream = tokio::net::TcpStream::connect(mesh.endpoint).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = mesh.client().request(Method::POST, CHAT, r#"{"model":"m","stream":true}"#);
    let answer = read(sender.send_request(request).await.unwrap()).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, [ONE, LAST, DONE].concat()));
}

/// `dunlin up`: proxy and agent in one process, with no connection between them.
#[tokio::test]
async fn a_process_serves_its_own_requests() {
    let engine = Engine::with_slots(2, Play::Stream(vec![ONE, LAST, DONE], GAP, true));
    let mesh = Mesh::alone(&["m"], 2, &engine).await;
    let answer = mesh.client().stream("m").await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, [ONE, LAST, DONE].concat()));
    assert_eq!(answer.header("x-dunlin-replica"), mesh.proxy.replica_id(0).to_string());
    assert_eq!(mesh.client().get("/ready").await.status, StatusCode::OK);
    let mut answer = mesh.client().begin_stream("m").await;
    answer.body_mut().frame().await.unwrap().unwrap();
    drop(answer);
    gone_within_a_second(&mesh, &engine).await;
    engine.play(Play::Stream(vec![ONE, ONE], GAP, false));
    assert!(mesh.client().stream("m").await.text().contains("event: error"));
}

//! Streams that are lost in the middle and go on at another replica: the ways in which that fails, and what clients see.
//! (That texts come out the same is tested end to end, with engines that generate.)

use crate::{
    client::CHAT,
    engine::{Asked, Engine, Play},
    mesh::{Agent, Mesh},
};
use bytes::Bytes;
use dunlin_node::Offer;
use dunlin_protocol::record::Continuation;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const ROLE: &str = "data: {\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
const ONE: &str = "data: {\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"},\"finish_reason\":null}]}\n\n";
const TWO: &str = "data: {\"id\":\"b\",\"created\":2,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" two\"},\"finish_reason\":null}]}\n\n";
const THOUGHT: &str = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"},\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: {\"id\":\"b\",\"created\":2,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Say"}],"stream":true}"#;
const SOON: Duration = Duration::from_millis(2);

fn broken(pieces: &[&'static str]) -> Play {
    Play::Stream(pieces.to_vec(), SOON, false)
}

fn whole(pieces: &[&'static str]) -> Play {
    Play::Stream(pieces.to_vec(), SOON, true)
}

/// Two replicas of one model, whose engine begins as `first` and is asked for more as `then`.
async fn pair(mesh: &Mesh, first: Play, then: Play) -> (Engine, [Agent; 2]) {
    let plays = move |asked: &Asked, nth: usize| match asked.path.as_str() {
        "/engine/tokenize" => Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{\"count\":1}")),
        _ if nth == 0 => first.clone(),
        _ => then.clone(),
    };
    let engine = Engine::new(Play::By(Arc::new(plays)));
    let agents = [mesh.exact_agent(&["m"], 4, &engine).await, mesh.exact_agent(&["m"], 4, &engine).await];
    (engine, agents)
}

async fn lost(mesh: &Mesh, outcome: &str) -> f64 {
    mesh.metric(&format!("dunlin_proxy_lost_streams_total{{outcome=\"{outcome}\"}}")).await
}

#[tokio::test]
async fn the_second_part_is_told_as_the_first() {
    let mesh = Mesh::new().await;
    let (engine, agents) = pair(&mesh, broken(&[ROLE, ONE]), whole(&[ROLE, TWO, LAST, DONE])).await;
    let answer = mesh.client().post(CHAT, BODY).await;
    let text = answer.text();
    let first = answer.header("x-dunlin-replica");
    let other = agents.iter().map(|agent| agent.replica().to_string()).find(|name| first != *name).unwrap();
    let rest = text.strip_prefix(&[ROLE, ONE].concat()).expect("byte for byte what the first sent");
    let rest = rest.strip_prefix(&format!(": continued by {other}\n\n")).expect("who goes on");
    assert!(rest.ends_with(DONE) && !rest.contains("\"b\"") && !rest.contains("role"), "{rest}");
    assert!(rest.contains("\" two\"") && rest.contains("\"id\":\"a\"") && rest.contains("\"created\":1"), "{rest}");
    let asked = engine.last(|asked| String::from_utf8(asked.body.to_vec()).unwrap());
    assert!(asked.contains(r#"{"content":"one","role":"assistant"}"#), "{asked}");
    assert!(asked.contains(r#""continue_final_message":true"#), "{asked}");
    assert_eq!((lost(&mesh, "continued").await, mesh.metric("dunlin_proxy_broken_answers_total").await), (1.0, 0.0));
    assert_eq!(mesh.metric("dunlin_proxy_requests_in_flight").await, 0.0);
}

#[tokio::test]
async fn silence_is_a_loss_and_comments_are_none() {
    let mesh = Mesh::with(|config| config.inter_token = Some(Duration::from_millis(250))).await;
    let pings = Play::Stream(
        vec![ROLE, ": ping\n\n", ": ping\n\n", ": ping\n\n", ONE, LAST, DONE],
        Duration::from_millis(120),
        true,
    );
    let (engine, _agents) =
        pair(&mesh, Play::Stream(vec![ONE; 20], Duration::from_millis(600), true), pings.clone()).await;
    let since = Instant::now();
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains(": continued by") && text.ends_with(DONE), "{text}");
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    engine.play(pings);
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(!text.contains("continued") && text.ends_with(DONE), "{text}");
    assert_eq!(lost(&mesh, "continued").await, 1.0);
    // The abandoned engine was told.
    mesh.until(|_| engine.now() == 0).await;
}

/// How it went on so far tells long before the deadline (half a minute) that something is wrong. It is not given up for that.
#[tokio::test]
async fn another_goes_on_with_a_stream_that_is_late_unless_it_comes_back_first() {
    let mesh = Mesh::new().await;
    let begun = [ROLE, ONE, ONE, ONE, ONE, ONE];
    let stops = move |pause| Play::Pause([&begun[..], &[LAST, DONE]].concat(), begun.len(), pause);
    let minute = Duration::from_secs(60);
    let (engine, _agents) = pair(&mesh, stops(minute), whole(&[ROLE, TWO, LAST, DONE])).await;
    let since = Instant::now();
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains(": continued by") && text.contains("\" two\"") && text.ends_with(DONE), "{text}");
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    // It was let go, and is not taken for lost.
    mesh.until(|_| engine.now() == 0).await;
    assert_eq!((lost(&mesh, "continued").await, mesh.metric("dunlin_proxy_broken_answers_total").await), (1.0, 0.0));

    // The other would take longer.
    engine.play(Play::By(Arc::new(move |asked: &Asked, _| match asked.path.as_str() {
        "/engine/tokenize" => Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{\"count\":5}")),
        _ if asked.body.windows(9).any(|part| part == b"assistant") => Play::Hang,
        _ => stops(Duration::from_millis(900)),
    })));
    let asked = engine.asked();
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert_eq!(text, [&begun[..], &[LAST, DONE]].concat().concat());
    assert!(engine.asked() >= asked + 3, "nobody was asked beside it");
    assert_eq!(lost(&mesh, "continued").await, 1.0);
    mesh.until(|_| engine.now() == 0).await;
}

#[tokio::test]
async fn a_replica_that_refuses_the_rest_ends_the_stream_with_its_error() {
    let mesh = Mesh::new().await;
    let refusal = Play::Say(StatusCode::BAD_REQUEST, "application/json", Bytes::from_static(b"{\"error\":{}}"));
    let (_engine, _agents) = pair(&mesh, broken(&[ROLE, ONE]), refusal).await;
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains("event: error") && text.contains("400 Bad Request") && !text.contains("[DONE]"), "{text}");
    assert_eq!((lost(&mesh, "failed").await, mesh.metric("dunlin_proxy_broken_answers_total").await), (1.0, 1.0));
}

#[tokio::test]
async fn a_stream_that_is_lost_again_and_again_ends() {
    let mesh = Mesh::new().await;
    let (engine, _agents) = pair(&mesh, broken(&[ROLE, ONE]), broken(&[ROLE, ONE])).await;
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains("lost too often") && !text.contains("[DONE]"), "{text}");
    assert_eq!(text.matches("\"one\"").count(), 4);
    assert_eq!((lost(&mesh, "continued").await, lost(&mesh, "often").await), (3.0, 1.0));
    // Each of the three was a count of tokens and a question.
    assert_eq!(engine.asked(), 7);
}

#[tokio::test]
async fn who_has_not_proved_it_is_not_asked() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(broken(&[ROLE, ONE]));
    let unproved = |offer: &mut Offer| offer.continuation = Continuation::None;
    let _agents =
        [mesh.kin_agent(&["m"], 4, &engine, unproved).await, mesh.kin_agent(&["m"], 4, &engine, unproved).await];
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains("stream_interrupted") && text.contains("no other replica"), "{text}");
    assert_eq!((engine.asked(), lost(&mesh, "no_replica").await), (1, 1.0));
}

#[tokio::test]
async fn reasoning_and_large_requests_do_not_go_on() {
    let mesh = Mesh::new().await;
    let (engine, _agents) = pair(&mesh, broken(&[ROLE, THOUGHT, ONE]), whole(&[ROLE, TWO, LAST, DONE])).await;
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!(text.contains("more in it than one text") && !text.contains("[DONE]"), "{text}");
    engine.play(broken(&[ROLE, ONE]));
    let large = BODY.replace("Say", &"x".repeat((1 << 20) + 1));
    let text = mesh.client().post(CHAT, large).await.text();
    assert!(text.contains("too large to be kept") && !text.contains("[DONE]"), "{text}");
    for path in ["/v1/responses", "/v1/messages"] {
        let text = mesh.client().post(path, BODY).await.text();
        assert!(text.contains("event: error") && !text.contains("continued"), "{text}");
    }
    assert_eq!(
        (lost(&mesh, "not_text").await, lost(&mesh, "large_request").await, lost(&mesh, "endpoint").await),
        (1.0, 1.0, 2.0)
    );
}

#[tokio::test]
async fn the_client_hears_something_while_another_is_asked_and_may_leave() {
    let mesh = Mesh::with(|config| config.silence = Duration::from_millis(100)).await;
    let late = Play::Stream(vec![TWO, LAST, DONE], Duration::from_millis(350), true);
    let (engine, _agents) = pair(&mesh, broken(&[ROLE, ONE]), late).await;
    let text = mesh.client().post(CHAT, BODY).await.text();
    assert!((2..=4).contains(&text.matches(": waiting for a replica\n\n").count()) && text.ends_with(DONE), "{text}");
    // One that leaves meanwhile takes its request along.
    engine.play(Play::By(Arc::new(|asked: &Asked, _| match asked.path.as_str() {
        "/engine/tokenize" => Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{\"count\":1}")),
        _ if asked.body.windows(9).any(|part| part == b"assistant") => Play::Hang,
        _ => broken(&[ROLE, ONE]),
    })));
    let mut answer = mesh.client().begin(mesh.client().request(Method::POST, CHAT, BODY)).await;
    let mut text = Vec::new();
    while !text.ends_with(b": waiting for a replica\n\n") {
        text.extend_from_slice(&answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(engine.now(), 1);
    drop(answer);
    mesh.until(|_| engine.now() == 0).await;
    assert_eq!(mesh.metric("dunlin_proxy_requests_in_flight").await, 0.0);
}

/// The head of a JSON answer came, its end did not: nothing has gone out, so another is asked.
#[tokio::test]
async fn half_of_an_answer_in_one_piece_is_asked_for_again() {
    let mesh = Mesh::new().await;
    let json = Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{\"whole\":true}"));
    let (engine, _agents) = pair(&mesh, Play::Short("{\"whole\":", 14), json).await;
    let answer = mesh.client().chat("m").await;
    assert_eq!((answer.status, answer.text(), answer.broken), (StatusCode::OK, "{\"whole\":true}".to_owned(), false));
    assert_eq!((engine.asked(), answer.header("x-dunlin-tries")), (2, "2"));
}

use crate::support::{Answer, demo, eventually, eventually_async, script, start, whole};
use dunlin_protocol::{
    hop::{ASK_USAGE, AskUsage, FAULT, LOAD, RETRY_SAFE, USAGE},
    load::LoadReport,
    usage::Usage,
};
use http_body_util::BodyExt;
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_stream_comes_through_with_load_in_header_and_trailer() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    let mut request = running.request(0, "tiny", "/v1/chat/completions?x=1", &json!({"stream": true, "chunks": 3}));
    request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request.headers_mut().insert("x-api-key", "secret".parse().unwrap());
    let answer = whole(running.send(request).await.unwrap()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    let before = LoadReport::from_header(answer.header(LOAD).unwrap()).unwrap();
    let after = answer.trailers.unwrap();
    let after = LoadReport::from_header(after.get(LOAD).unwrap().to_str().unwrap()).unwrap();
    assert_eq!((before.in_flight, after.in_flight), (1, 0));
    assert!(after.version > before.version);
    assert_eq!(after.replica, running.node.replica_id(0));
    assert!(after.measured.ttft_us.is_some() && after.measured.itl_us.is_some());

    let last = running.engine_state(0).await["last"].clone();
    assert_eq!(last["path"], "/v1/chat/completions?x=1");
    let headers = last["headers"].as_object().unwrap();
    let unwanted =
        |name: &&String| name.starts_with("x-dunlin") || matches!(name.as_str(), "authorization" | "x-api-key");
    assert_eq!(headers.keys().find(unwanted), None);
    running.stop().await;
}

/// Some engines leave the connection open behind the last event: neither the client nor the slot waits for that.
#[tokio::test]
async fn a_stream_ends_with_its_last_event() {
    let mut engine = script("");
    engine.slots = Some(1);
    let running = start(vec![engine]).await;
    running.ready(0).await;
    let since = Instant::now();
    for _ in 0..2 {
        let answer = running.chat("tiny", json!({"stream": true, "chunks": 1, "linger": true})).await;
        assert_eq!(answer.body, "data: 0\n\ndata: [DONE]\n\n");
        let after = LoadReport::from_header(answer.trailers.unwrap().get(LOAD).unwrap().to_str().unwrap()).unwrap();
        assert_eq!(after.in_flight, 0);
    }
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    let aborted = async || running.engine_state(0).await["aborted"] == json!(2);
    eventually_async("the engine's connections are closed", aborted).await;
    running.stop().await;
}

#[tokio::test]
async fn the_engines_own_errors_pass_untouched() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    for status in [400, 404, 422, 429, 500, 503] {
        let answer = running.chat("tiny", json!({"status": status})).await;
        assert_eq!((answer.status.as_u16(), &*answer.body), (status, r#"{"error": {"message": "as asked"}}"#));
        assert_eq!(answer.header(FAULT), None);
        // The engine's own `x-dunlin-load` is not passed on: what is there is the agent's.
        LoadReport::from_header(answer.header(LOAD).unwrap()).unwrap();
    }
    running.stop().await;
}

#[tokio::test]
async fn what_is_not_registered_is_refused() {
    let running = start(vec![script("")]).await;
    let early = running.chat("tiny", json!({})).await;
    assert_eq!(
        (early.status.as_u16(), early.header(FAULT), early.header(RETRY_SAFE)),
        (503, Some("agent"), Some("yes"))
    );
    running.ready(0).await;
    let other = running.chat("another", json!({})).await;
    assert_eq!(
        (other.status.as_u16(), other.header(FAULT), other.header(RETRY_SAFE)),
        (404, Some("not-served"), Some("yes"))
    );
    assert_eq!(other.json()["error"]["code"], "model_not_found");
    let request = running.request(7, "tiny", "/v1/chat/completions", &json!({}));
    let nobody = whole(running.send(request).await.unwrap()).await;
    assert_eq!((nobody.status.as_u16(), nobody.header(FAULT)), (404, Some("not-served")));
    let mut request = running.request(0, "tiny", "/v1/chat/completions", &json!({}));
    request.headers_mut().remove(dunlin_protocol::hop::MODEL);
    assert_eq!(running.send(request).await.unwrap().status(), 400);
    // Nothing of all this reached the engine.
    assert_eq!(running.engine_state(0).await["last"], json!(null));
    running.stop().await;
}

#[tokio::test]
async fn beyond_slots_and_queue_it_says_full() {
    let mut engine = script("");
    engine.slots = Some(1);
    let running = start(vec![engine]).await;
    running.ready(0).await;
    let slow = json!({"stream": true, "chunks": 20, "pause": 0.1});
    let request = running.request(0, "tiny", "/v1/chat/completions", &slow);
    let first = running.send(request).await.unwrap();
    let started = Instant::now();
    let (waited, at_once) = tokio::join!(running.chat("tiny", json!({})), running.chat("tiny", json!({})));
    for answer in [&waited, &at_once] {
        assert_eq!(
            (answer.status.as_u16(), answer.header(FAULT), answer.header(RETRY_SAFE)),
            (503, Some("full"), Some("yes"))
        );
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    // Tokenising takes no slot.
    let free = running.request(0, "tiny", "/tokenize", &json!({}));
    assert_eq!(running.send(free).await.unwrap().status(), 200);
    assert_eq!(whole(first).await.status, 200);
    assert_eq!(running.chat("tiny", json!({})).await.status, 200);
    running.stop().await;
}

#[tokio::test]
async fn shutdown_finishes_what_is_in_flight_and_refuses_the_new() {
    let running = start(vec![script("")]).await;
    let status = running.ready(0).await;
    let request =
        running.request(0, "tiny", "/v1/chat/completions", &json!({"stream": true, "chunks": 10, "pause": 0.1}));
    let response = running.send(request).await.unwrap();
    running.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let refused = running.chat("tiny", json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.header(FAULT)), (503, Some("draining")));
    let answer = whole(response).await;
    assert!(answer.body.ends_with("data: 9\n\n"));
    let engine_pid = status.process.unwrap().pid().unwrap();
    running.stop().await;
    assert!(!crate::support::runs(engine_pid));
}

#[tokio::test]
async fn a_broken_answer_is_never_a_clean_end() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    let request =
        running.request(0, "tiny", "/v1/chat/completions", &json!({"stream": true, "chunks": 2, "cut": true}));
    let response = running.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err());
    running.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_gone_is_a_safe_retry() {
    let mut engine = script("--worker");
    engine.models = vec!["tiny".parse().unwrap()];
    let running = start(vec![engine]).await;
    let pid = running.ready(0).await.process.unwrap().pid().unwrap();
    crate::support::signal(pid, rustix::process::Signal::KILL);
    // Either the agent has seen it already, or the connection is refused: safe both times.
    let answer = running.chat("tiny", json!({})).await;
    assert!(matches!(answer.header(FAULT), Some("engine" | "agent")), "{:?}", answer.headers);
    eventually("out", || running.engine(0).state != dunlin_protocol::announcement::ReplicaState::Ready).await;
    running.stop().await;
}

#[tokio::test]
async fn on_one_thread_many_streams_at_once() {
    let running = start(vec![demo(|config| config.speed.tokens_per_s = 200.0)]).await;
    running.ready(0).await;
    let chats = (0..40).map(|n| {
        let body = json!({"model": "demo", "stream": true, "max_tokens": 20, "messages": [{"role": "user", "content": format!("{n}")}]});
        running.chat("demo", body)
    });
    for answer in futures::future::join_all(chats).await {
        assert!(answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n"));
    }
    eventually_async("idle", || async { running.engine(0).in_flight == 0 }).await;
    running.stop().await;
}

/// What the trailers of an answer say of the tokens that it took.
fn usage(answer: &Answer) -> Option<Usage> {
    Usage::from_header(answer.trailers.as_ref()?.get(USAGE)?.to_str().unwrap())
}

#[tokio::test]
async fn the_usage_comes_behind_the_answer_and_not_in_the_stream() {
    let running = start(vec![demo(|config| config.speed.tokens_per_s = 1000.0)]).await;
    running.ready(0).await;
    let ask = |stream: bool| {
        let messages = json!([{"role": "user", "content": "count"}]);
        json!({"model": "demo", "stream": stream, "max_tokens": 7, "messages": messages})
    };
    let whole_answer = running.chat("demo", ask(false)).await;
    let told = usage(&whole_answer).unwrap();
    assert_eq!(whole_answer.json()["usage"]["prompt_tokens"], told.prompt);
    assert_eq!(whole_answer.json()["usage"]["completion_tokens"], told.completion);
    assert!(told.prompt > 0 && told.completion > 0 && !told.estimated, "{told:?}");

    // As a proxy says where a client did not ask.
    let mut request = running.request(0, "demo", "/v1/chat/completions", &ask(true));
    request.headers_mut().insert(ASK_USAGE, AskUsage { offset: 1, length: 0 }.to_header().parse().unwrap());
    let stream = whole(running.send(request).await.unwrap()).await;
    assert!(stream.body.ends_with("data: [DONE]\n\n") && !stream.body.contains("prompt_tokens\":"), "{}", stream.body);
    let streamed = usage(&stream).unwrap();
    assert_eq!((streamed.prompt, streamed.completion), (told.prompt, told.completion));

    // A client that asks gets to see it.
    let mut asks = ask(true);
    asks["stream_options"] = json!({"include_usage": true});
    let stream = running.chat("demo", asks).await;
    assert!(stream.body.contains("prompt_tokens\":"), "{}", stream.body);
    assert_eq!(usage(&stream).unwrap().completion, told.completion);

    // Nothing is asked for in vain, and nothing made up.
    assert_eq!(usage(&running.chat("demo", ask(true)).await), None);
    running.stop().await;
}

use crate::{
    replay::{Page, Replay},
    support::{demo, eventually, script, signal, start, whole},
};
use dunlin_agent::{EngineConfig, Patience, Source};
use dunlin_protocol::announcement::ReplicaState;
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;

/// C12: `/health` says that all is well, and every request fails.
#[tokio::test]
async fn an_engine_whose_requests_fail_leaves_and_comes_back() {
    let running = start(vec![demo(|_| {})]).await;
    running.ready(0).await;
    running.tell(0, "/demo/faults", json!({"error_rate": 1.0})).await;
    let body = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    for _ in 0..3 {
        assert_eq!(running.chat("demo", body.clone()).await.status, 500);
    }
    eventually("out", || running.engine(0).state == ReplicaState::Unhealthy).await;
    assert!(running.engine(0).reason.unwrap().contains("requests fail"));
    running.tell(0, "/demo/faults", json!({})).await;
    running.ready(0).await;
    assert_eq!(running.chat("demo", body).await.status, 200);
    running.stop().await;
}

/// Errors that a client can provoke don't throw a working engine out.
#[tokio::test]
async fn a_client_cannot_throw_an_engine_out() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    for _ in 0..12 {
        assert_eq!(running.chat("tiny", json!({"status": 500})).await.status, 500);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(running.engine(0).state, ReplicaState::Ready);
    }
    running.stop().await;
}

/// C12 for a speech server, which no completion could try: silence is transcribed or it isn't.
#[tokio::test]
async fn a_speech_server_whose_requests_fail_leaves_and_comes_back() {
    let server = Replay::start(&[
        ("/health", Page::of("whisper/health.txt")),
        ("/v1/audio/transcriptions", Page::of("whisper/err_notaudio.txt")),
    ])
    .await;
    let engine = EngineConfig {
        runtime: Some("whisper".parse().unwrap()),
        models: vec!["whisper-1".parse().unwrap()],
        ..EngineConfig::new(Source::Attach(server.url().parse().unwrap()))
    };
    let running = start(vec![engine]).await;
    running.ready(0).await;
    let ask = async || {
        let request = running.request(0, "whisper-1", "/v1/audio/transcriptions", &json!({}));
        crate::support::whole(running.send(request).await.unwrap()).await
    };
    for _ in 0..3 {
        assert_eq!(ask().await.status, 500);
    }
    eventually("out", || running.engine(0).state == ReplicaState::Unhealthy).await;
    server.show("/v1/audio/transcriptions", Page::of("whisper/tr_json.txt"));
    running.ready(0).await;
    assert!(ask().await.json()["text"].as_str().unwrap().contains("Dashwood"));
    running.stop().await;
}

/// C11: a health check that fails says little while the engine streams.
#[tokio::test]
async fn slow_is_not_dead() {
    let running = start(vec![demo(|config| config.speed.tokens_per_s = 10.0)]).await;
    running.ready(0).await;
    let body =
        json!({"model": "demo", "stream": true, "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}]});
    let response = running.send(running.request(0, "demo", "/v1/chat/completions", &body)).await.unwrap();
    let reading = tokio::spawn(crate::support::whole(response));
    running.tell(0, "/demo/faults", json!({"unhealthy": true})).await;
    for _ in 0..50 {
        assert_eq!(running.engine(0).state, ReplicaState::Ready);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    reading.abort();
    eventually("out when idle", || running.engine(0).state == ReplicaState::Unhealthy).await;
    running.stop().await;
}

#[tokio::test]
async fn new_and_lost_models_are_announced_within_two_seconds() {
    let running = start(vec![script("--models a,b")]).await;
    running.ready(0).await;
    let names = || running.engine(0).models.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(), ["a", "b"]);
    running.tell(0, "/v1/x", json!({"models": ["b", "c"]})).await;
    let took = eventually("changed", || names() == ["b", "c"]).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    let known = |model: &str| {
        let model = model.parse().unwrap();
        running.node.directory().read(|directory| directory.replicas(&model).count())
    };
    eventually("in the directory", || known("c") == 1 && known("a") == 0).await;
    assert_eq!(running.chat("a", json!({})).await.status, 404);
    assert_eq!(running.chat("c", json!({})).await.status, 200);
    // An engine that lists nothing any more serves nothing.
    running.tell(0, "/v1/x", json!({"models": []})).await;
    eventually("out", || running.engine(0).state == ReplicaState::Starting).await;
    running.stop().await;
}

/// A stopped engine with nothing to do is out after three missed probes.
#[tokio::test]
async fn a_frozen_engine_leaves() {
    let running = start(vec![script("")]).await;
    let pid = running.ready(0).await.process.unwrap().pid().unwrap();
    signal(pid, Signal::STOP);
    let started = std::time::Instant::now();
    while running.engine(0).state == ReplicaState::Ready {
        assert!(started.elapsed() < Duration::from_secs(25), "still in rotation");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    signal(pid, Signal::CONT);
    running.ready(0).await;
    assert_eq!(running.engine(0).restarts, 0);
    running.stop().await;
}

/// It lives and does nothing any more: its supervisor starts another one, and says why.
#[tokio::test]
async fn a_launched_engine_that_hangs_is_started_again() {
    let patience = Patience { hang: Some(Duration::from_millis(500)), ..Patience::default() };
    let running = start(vec![EngineConfig { patience, ..script("") }]).await;
    let pid = running.ready(0).await.process.unwrap().pid().unwrap();
    signal(pid, Signal::STOP);
    let started = std::time::Instant::now();
    // Three missed probes, and a trial that nobody answers.
    while running.engine(0).restarts == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", running.engine(0));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let again = running.ready(0).await;
    assert_ne!(again.process.unwrap().pid().unwrap(), pid);
    let output = whole(running.get("/mesh/logs").await).await.body;
    assert!(output.contains("it hangs"), "{output}");
    running.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_never_ready_is_started_again_after_its_deadline() {
    let patience = Patience { start: Some(Duration::from_millis(500)), ..Patience::default() };
    let running = start(vec![EngineConfig { patience, ..script("--load-s 600") }]).await;
    eventually("started again", || running.engine(0).restarts > 0).await;
    let output = whole(running.get("/mesh/logs").await).await.body;
    assert!(output.contains("not ready"), "{output}");
    running.stop().await;
}

/// The engine accepts and never answers, and says that it is well: clients who give up tell.
#[tokio::test]
async fn an_engine_that_never_answers_leaves() {
    let running = start(vec![demo(|_| {})]).await;
    running.ready(0).await;
    running.tell(0, "/demo/faults", json!({"hang_before_headers": true})).await;
    let body = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    let patient = (0..3).map(|_| {
        let request = running.request(0, "demo", "/v1/chat/completions", &body);
        tokio::time::timeout(Duration::from_millis(5200), running.send(request))
    });
    assert!(futures::future::join_all(patient).await.iter().all(Result::is_err));
    assert_eq!(running.engine(0).state, ReplicaState::Ready, "a trial decides, not the clients");
    let started = std::time::Instant::now();
    while running.engine(0).state == ReplicaState::Ready {
        assert!(started.elapsed() < Duration::from_secs(15), "still in rotation");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    running.tell(0, "/demo/faults", json!({})).await;
    running.ready(0).await;
    running.stop().await;
}

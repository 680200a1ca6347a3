//! The self-test: who goes on with a partial answer to the letter, and who is not asked.

use crate::{
    replay::{Page, Replay},
    support::{client, config, demo, eventually, eventually_async, start, start_with},
};
use dunlin_agent::{Config, EngineConfig, Source, engine::EngineUrl};
use dunlin_protocol::record::Continuation;
use serde_json::json;
use std::time::{Duration, Instant};

/// An answer that ignores what it is given and says the same again.
const AGAIN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"One\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" two\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" three\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" four\"}}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

async fn vllm(chat: Page) -> Replay {
    let pages = [
        ("/health", Page::of("vllm/health.txt")),
        ("/v1/models", Page::of("vllm/models.txt")),
        ("/v1/chat/completions", chat),
    ];
    Replay::start(&pages).await
}

fn attached(server: &Replay) -> EngineConfig {
    EngineConfig::new(Source::Attach(server.url().parse().unwrap()))
}

#[tokio::test]
async fn an_engine_that_goes_on_to_the_letter_says_so_to_the_mesh() {
    let running = start(vec![demo(|config| config.speed.tokens_per_s = 500.0)]).await;
    running.ready(0).await;
    eventually("tested", || running.engine(0).continuation == Some(Continuation::Exact)).await;
    let id = running.node.replica_id(0);
    let told = || running.node.directory().read(|directory| directory.replica(&id).map(|replica| replica.continuation));
    eventually("told", || told() == Some(Continuation::Exact)).await;
    // Another process may answer at the same place next time.
    running.tell(0, "/demo/faults", json!({"unhealthy": true})).await;
    eventually("forgotten", || running.engine(0).continuation.is_none()).await;
    eventually("untold", || told() == Some(Continuation::None)).await;
    running.tell(0, "/demo/faults", json!({})).await;
    eventually("tested again", || told() == Some(Continuation::Exact)).await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_that_begins_anew_is_found_out() {
    let server = vllm(Page::body(AGAIN)).await;
    let running = start(vec![attached(&server)]).await;
    eventually("tested", || running.engine(0).continuation == Some(Continuation::None)).await;
    assert_eq!(server.asked("/v1/chat/completions"), 2, "the question, and the first cut");
    // Once is enough.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.asked("/v1/chat/completions"), 2);
    running.stop().await;
}

#[tokio::test]
async fn an_engine_is_asked_again_after_an_error_and_not_after_a_refusal() {
    let server = vllm(Page::status(500)).await;
    let running = start(vec![attached(&server)]).await;
    eventually("asked again", || server.asked("/v1/chat/completions") >= 2).await;
    assert_eq!(running.engine(0).continuation, None);
    server.show("/v1/chat/completions", Page::status(400));
    eventually("refused", || running.engine(0).continuation == Some(Continuation::None)).await;
    running.stop().await;
}

/// Proxies would ask in the built-in way.
#[tokio::test]
async fn an_engine_whose_runtime_was_changed_is_not_asked() {
    let server = vllm(Page::body(AGAIN)).await;
    let directory = tempfile::tempdir().unwrap();
    let mut changed = Config { engines: vec![attached(&server)], ..config(&directory.path().join("engines")) };
    changed.catalogue.merge("test", "name = \"vllm\"\n[continuation.chat]\nmore = true").unwrap();
    let running = start_with(changed).await;
    eventually("settled", || running.engine(0).continuation == Some(Continuation::None)).await;
    assert_eq!(server.asked("/v1/chat/completions"), 0);
    running.stop().await;
}

/// Two clients want the one slot all the time.
#[tokio::test]
async fn the_self_test_takes_a_turn_where_clients_always_need_all_slots() {
    let busy = |config: &mut dunlin_agent::demo::Config| {
        config.slots = 1;
        config.speed.tokens_per_s = 200.0;
    };
    let running = start(vec![demo(busy)]).await;
    let asking = async |text: &str| {
        let body = json!({"model": "demo", "max_tokens": 60, "messages": [{"role": "user", "content": text}]});
        loop {
            // Refused while the other has the slot.
            running.chat("demo", body.clone()).await;
        }
    };
    let tested = async {
        running.ready(0).await;
        // The first seconds are the clients'.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(running.engine(0).continuation, None);
        eventually("tested", || running.engine(0).continuation == Some(Continuation::Exact)).await;
    };
    tokio::select! {
        _ = asking("hi") => {}
        _ = asking("ho") => {}
        () = tested => {}
    }
    running.stop().await;
}

/// Its four answers would take six seconds each, and there is one slot.
#[tokio::test]
async fn the_self_test_gives_way_to_clients() {
    let slow = |config: &mut dunlin_agent::demo::Config| {
        config.slots = 1;
        config.speed.tokens_per_s = 4.0;
    };
    let running = start(vec![demo(slow)]).await;
    running.ready(0).await;
    let url: EngineUrl = running.engine(0).url.unwrap().parse().unwrap();
    eventually_async("the self-test runs", async || {
        let page = client().get(&url, "/metrics", Duration::from_secs(2), 1 << 20).await.unwrap();
        let page = String::from_utf8(page.body.into()).unwrap();
        page.lines().any(|line| line.starts_with("vllm:num_requests_running{") && line.ends_with(" 1.0"))
    })
    .await;
    let body = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]});
    let since = Instant::now();
    assert_eq!(running.chat("demo", body).await.status, 200);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert_eq!(running.engine(0).continuation, None);
    running.stop().await;
}

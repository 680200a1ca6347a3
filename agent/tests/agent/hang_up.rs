use crate::support::{Running, eventually_async, script, start};
use serde_json::json;
use std::time::Duration;

async fn aborted_within_a_second(running: &Running) {
    let waited = eventually_async("aborted", || async { running.engine_state(0).await["aborted"] == 1 }).await;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    assert_eq!(running.engine(0).in_flight, 0);
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    let endless = json!({"stream": true, "chunks": 100_000, "pause": 0.02});
    let response = running.send(running.request(0, "tiny", "/v1/chat/completions", &endless)).await.unwrap();
    assert_eq!(running.engine(0).in_flight, 1);
    drop(response);
    aborted_within_a_second(&running).await;
    running.stop().await;
}

#[tokio::test]
async fn before_the_first_byte() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    let request = running.request(0, "tiny", "/v1/chat/completions", &json!({"hang": true}));
    let waiting = tokio::time::timeout(Duration::from_millis(300), running.send(request)).await;
    assert!(waiting.is_err(), "the engine answers nothing");
    aborted_within_a_second(&running).await;
    running.stop().await;
}

#[tokio::test]
async fn in_the_agents_queue() {
    let mut engine = script("");
    engine.slots = Some(1);
    let running = start(vec![engine]).await;
    running.ready(0).await;
    let first =
        running.send(running.request(0, "tiny", "/v1/x", &json!({"stream": true, "chunks": 30, "pause": 0.05}))).await;
    let second = running.request(0, "tiny", "/v1/x", &json!({}));
    assert!(tokio::time::timeout(Duration::from_millis(50), running.send(second)).await.is_err());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((running.engine(0).in_flight, running.engine(0).queued), (1, 0));
    drop(first);
    running.stop().await;
}

use crate::support::{demo, eventually, script, start};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn metrics_reach_the_report() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    eventually("read", || running.engine(0).engine.is_some()).await;
    let load = running.engine(0).engine.unwrap();
    assert_eq!((load.running, load.waiting), (Some(1), Some(2)));
    let model = "tiny".parse().unwrap();
    let report = || {
        running.node.directory().read(|directory| {
            let replica = directory.replicas(&model).next()?;
            replica.load.clone().map(|(report, _)| report)
        })
    };
    eventually("reported", || report().is_some_and(|report| report.engine == Some(load))).await;
    running.stop().await;
}

/// C1, C4 and the rule that one engine's hang delays no other's reading.
#[tokio::test]
async fn a_hanging_metrics_page_costs_only_its_own_part_of_the_report() {
    let hanging = demo(|config| config.ranks = 4);
    let running = start(vec![hanging, demo(|_| {})]).await;
    running.ready(0).await;
    running.ready(1).await;
    eventually("both read", || running.engine(0).engine.is_some() && running.engine(1).engine.is_some()).await;
    running.tell(0, "/demo/faults", json!({"metrics_delay_ms": 60_000})).await;
    let waited = eventually("stale", || running.engine(0).engine.is_none()).await;
    assert!(waited < Duration::from_millis(1700), "{waited:?}");
    for _ in 0..20 {
        assert!(running.engine(1).engine.is_some());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Its own counts go on.
    let body = json!({"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(running.chat("demo", body).await.status, 200);
    assert!(running.engine(0).measured.service_us.is_some());
    running.tell(0, "/demo/faults", json!({})).await;
    eventually("read again", || running.engine(0).engine.is_some()).await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_without_metrics_is_reported_too() {
    let running = start(vec![demo(|config| config.faults.no_metrics = true)]).await;
    running.ready(0).await;
    let model = "demo".parse().unwrap();
    eventually("reported", || {
        running.node.directory().read(|directory| {
            directory
                .replicas(&model)
                .next()
                .is_some_and(|replica| replica.load.as_ref().is_some_and(|(load, _)| load.engine.is_none()))
        })
    })
    .await;
    running.stop().await;
}

/// C4 on a real page.
#[tokio::test]
async fn ranks_are_added_up() {
    let running = start(vec![demo(|config| {
        config.ranks = 4;
        // All six run while they are counted, however slowly they are asked for.
        config.speed.tokens_per_s = 2.0;
    })])
    .await;
    running.ready(0).await;
    let body =
        json!({"model": "demo", "stream": true, "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}]});
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(running.send(running.request(0, "demo", "/v1/chat/completions", &body)).await.unwrap());
    }
    eventually("all six", || running.engine(0).engine.is_some_and(|load| load.running == Some(6))).await;
    drop(open);
    running.stop().await;
}

use crate::support::{demo, eventually, script, start, start_in, whole};
use dunlin_agent::{EngineConfig, Source};
use http_body_util::BodyExt;
use std::time::Duration;

#[tokio::test]
async fn the_tail_of_an_engines_output() {
    let running = start(vec![script("")]).await;
    running.ready(0).await;
    let answer = whole(running.get("/mesh/logs?replica=0").await).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("a word on stderr\n") && answer.body.contains("engine "), "{}", answer.body);
    let one = whole(running.get("/mesh/logs?tail=1").await).await.body;
    assert_eq!(one.lines().count(), 1);
    assert_eq!(whole(running.get("/mesh/logs?tail=0").await).await.body, "");
    assert_eq!(running.get("/mesh/logs?replica=9").await.status(), 404);
    assert_eq!(running.get("/mesh/logs?tail=x").await.status(), 400);
    running.stop().await;
}

#[tokio::test]
async fn following_shows_what_comes() {
    let running = start(vec![script("--exit-after-s 1")]).await;
    let mut body = running.get("/mesh/logs?follow=true").await.into_body();
    let mut seen = String::new();
    let reading = async {
        while !seen.contains("last words before the crash") {
            let frame = body.frame().await.unwrap().unwrap();
            seen.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reading).await.unwrap();
    running.stop().await;
}

/// Why it crashed is still there when the next run has begun, and when the next agent has.
#[tokio::test]
async fn the_run_before_the_crash() {
    let directory = tempfile::tempdir().unwrap();
    let running = start_in(directory.path(), vec![script("--exit-after-s 0.8")]).await;
    running.ready(0).await;
    assert_eq!(running.get("/mesh/logs?previous=true").await.status(), 404, "nothing ran before");
    eventually("crashed", || running.engine(0).restarts == 1).await;
    let again = running.ready(0).await.process.unwrap().pid().unwrap();
    let previous = whole(running.get("/mesh/logs?previous=true").await).await.body;
    assert!(previous.contains("last words before the crash") && previous.contains("exit status: 3"), "{previous}");
    assert!(!previous.contains(&format!("engine {again} on")), "{previous}");
    let whole_of_it = whole(running.get("/mesh/logs").await).await.body;
    assert!(whole_of_it.starts_with(&previous) && whole_of_it.contains(&format!("engine {again} on")), "{whole_of_it}");
    assert_eq!(running.get("/mesh/logs?previous=true&follow=true").await.status(), 400);
    running.stop().await;

    let running = start_in(directory.path(), vec![script("")]).await;
    let now = running.ready(0).await.process.unwrap().pid().unwrap();
    let previous = whole(running.get("/mesh/logs?previous=true").await).await.body;
    assert!(previous.contains(&format!("engine {again} on")), "{previous}");
    assert!(!previous.contains(&format!("engine {now} on")) && !previous.contains("exit status: 3"), "{previous}");
    running.stop().await;
}

#[tokio::test]
async fn only_the_last_seconds() {
    let running = start(vec![script("--exit-after-s 2.5")]).await;
    running.ready(0).await;
    let since = async |seconds: u32| whole(running.get(&format!("/mesh/logs?since_s={seconds}")).await).await.body;
    assert!(since(3600).await.contains("a word on stderr"));
    eventually("crashed", || running.engine(0).last_output.iter().any(|line| line.contains("last words"))).await;
    let lately = since(1).await;
    assert!(lately.contains("last words") && !lately.contains("a word on stderr"), "{lately}");
    assert_eq!(running.get("/mesh/logs?since_s=x").await.status(), 400);
    running.stop().await;
}

#[tokio::test]
async fn an_attached_engine_has_no_output_here() {
    let attached = EngineConfig::new(Source::Attach("http://127.0.0.1:9".parse().unwrap()));
    let running = start(vec![attached]).await;
    let answer = whole(running.get("/mesh/logs").await).await;
    assert_eq!(answer.status, 404);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("not launched by its agent"));
    running.stop().await;
}

#[tokio::test]
async fn the_built_in_engines_output_is_the_agents_own() {
    let running = start(vec![demo(|_| ())]).await;
    let answer = whole(running.get("/mesh/logs").await).await;
    assert_eq!(answer.status, 404);
    let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("built-in demo engine") && said.contains("dunlin up"), "{said}");
    running.stop().await;
}

use crate::support::{demo, script, start, whole};
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

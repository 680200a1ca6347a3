use crate::support::{config, eventually, runs, script, start, start_with, worker};
use dunlin_agent::{Config, supervise::Process};
use dunlin_protocol::{
    announcement::ReplicaState,
    hop::{FAULT, RETRY_SAFE},
};
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn a_crash_is_restarted_and_its_last_words_are_kept() {
    let running = start(vec![script("--exit-after-s 0.8 --worker")]).await;
    let status = running.ready(0).await;
    let (first, worker) = (status.process.as_ref().unwrap().pid().unwrap(), worker(&status));
    eventually("restarting", || matches!(running.engine(0).process, Some(Process::Restarting { failures: 1, .. })))
        .await;
    let down = running.engine(0);
    assert_ne!(down.state, ReplicaState::Ready);
    assert!(down.last_output.iter().any(|line| line == "last words before the crash"), "{:?}", down.last_output);
    assert!(down.last_output.iter().any(|line| line.contains("exit status: 3")), "{:?}", down.last_output);
    assert!(!runs(first) && !runs(worker), "nothing of the first engine is left");
    let again = running.ready(0).await;
    assert_ne!(again.process.unwrap().pid(), Some(first));
    assert_eq!(again.restarts, 1);
    let log = std::fs::read_to_string(running.directory.join("0.log")).unwrap();
    assert!(log.contains("last words before the crash") && log.contains("a word on stderr"));
    running.stop().await;
}

#[tokio::test]
async fn a_crash_loop_shows() {
    let running = start(vec![script("--no-such-flag")]).await;
    eventually("two failures", || matches!(running.engine(0).process, Some(Process::Restarting { failures: 2.., .. })))
        .await;
    let status = running.engine(0);
    assert!(status.last_output.iter().any(|line| line.contains("unrecognized arguments")), "{:?}", status.last_output);
    assert_eq!(status.state, ReplicaState::Starting);
    // Stopping does not wait for the next try.
    assert!(running.stop().await < Duration::from_secs(2));
}

#[tokio::test]
async fn a_missing_program_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.catalogue.merge("t", "name = \"script\"\n[launch]\ncommand = \"no-such-engine-here\"").unwrap();
    let running = start_with(Config { engines: vec![script("")], ..config }).await;
    eventually("said", || {
        running
            .engine(0)
            .last_output
            .iter()
            .any(|line| line.contains("`no-such-engine-here` was not found; install it"))
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn an_engine_that_ignores_sigterm_is_killed_with_its_children() {
    let running = start(vec![script("--ignore-sigterm --worker")]).await;
    let status = running.ready(0).await;
    let (pid, worker) = (status.process.as_ref().unwrap().pid().unwrap(), worker(&status));
    let took = running.stop().await;
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(5), "{took:?}");
    assert!(!runs(pid) && !runs(worker));
}

#[tokio::test]
async fn an_engine_may_take_its_time_to_load() {
    let running = start(vec![script("--load-s 1.5")]).await;
    eventually("loading", || running.engine(0).reason.is_some_and(|reason| reason.contains("503"))).await;
    running.ready(0).await;
    assert_eq!(running.engine(0).restarts, 0);
    running.stop().await;
}

/// C16: from the first moment on proxies know what will be served here, so that they hold requests for it.
#[tokio::test]
async fn a_loading_engines_models_are_known_and_their_requests_may_come_again() {
    let mut engine = script("--load-s 1.5");
    engine.models = vec!["tiny".parse().unwrap()];
    let running = start(vec![engine]).await;
    let announced = || {
        let model = "tiny".parse().unwrap();
        running.node.directory().read(|directory| directory.replicas(&model).map(|replica| replica.state).next())
    };
    eventually("announced", || announced().is_some()).await;
    assert_eq!(announced(), Some(ReplicaState::Starting));
    let early = running.chat("tiny", json!({})).await;
    assert_eq!(
        (early.status.as_u16(), early.header(FAULT), early.header(RETRY_SAFE)),
        (503, Some("agent"), Some("yes"))
    );
    assert_eq!(early.json()["error"]["code"], "replica_not_ready");
    running.ready(0).await;
    eventually("announced as ready", || announced() == Some(ReplicaState::Ready)).await;
    assert_eq!(running.chat("tiny", json!({})).await.status, 200);
    running.stop().await;
}

/// C16: the same while the only engine is started again, whose models nobody configured.
#[tokio::test]
async fn a_restarting_engines_models_stay_known() {
    let running = start(vec![script("--exit-after-s 0.8")]).await;
    let announced = || {
        let model = "tiny".parse().unwrap();
        running.node.directory().read(|directory| directory.replicas(&model).map(|replica| replica.state).next())
    };
    eventually("announced as ready", || announced() == Some(ReplicaState::Ready)).await;
    eventually("down", || running.engine(0).restarts == 1 || running.engine(0).state == ReplicaState::Starting).await;
    eventually("announced as starting", || announced() != Some(ReplicaState::Ready)).await;
    assert_eq!(announced(), Some(ReplicaState::Starting));
    running.stop().await;
}

#[tokio::test]
async fn an_engine_that_writes_much_is_neither_stopped_nor_kept_whole() {
    let running = start(vec![script("--chatter")]).await;
    running.ready(0).await;
    let log = running.directory.join("0.log");
    let rotated = running.directory.join("0.log.1");
    eventually("rotated", || rotated.exists()).await;
    let size = |path: &std::path::Path| std::fs::metadata(path).unwrap().len();
    assert!(size(&log) <= 8 << 20 && size(&rotated) <= 8 << 20);
    running.stop().await;
}

#[tokio::test]
async fn an_aborted_agent_leaves_nothing() {
    let running = start(vec![script("--worker")]).await;
    let status = running.ready(0).await;
    let (pid, worker) = (status.process.as_ref().unwrap().pid().unwrap(), worker(&status));
    running.agent.abort();
    eventually("killed", || !runs(pid) && !runs(worker)).await;
}

//! An agent that is killed with -9 can end nothing. The next one in its directory does.

use crate::support::{demo, eventually, runs, script, signal, start_in, worker};
use rustix::process::Signal;
use std::{path::Path, process::Stdio, time::Duration};

/// Names the directory in which the process below shall run its agent.
const DIRECTORY: &str = "DUNLIN_TEST_AGENT_DIRECTORY";

/// Not a test by itself: the agent that gets killed, as a process of its own. It says the process ids of its engine and
/// the engine's worker.
#[tokio::test]
#[ignore = "started by the test below"]
async fn agent_to_be_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let running = start_in(Path::new(&directory), vec![script("--worker")]).await;
    let status = running.ready(0).await;
    let pids = format!("{} {}", status.process.as_ref().unwrap().pid().unwrap(), worker(&status));
    std::fs::write(Path::new(&directory).join("pids"), pids).unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// Runs an agent and kills it; returns the orphans, engine and worker.
async fn make_orphans(directory: &Path) -> (u32, u32) {
    let mut agent = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "orphans::agent_to_be_killed"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pids = directory.join("pids");
    eventually("the agent's engine is ready", || pids.exists()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    agent.kill().await.unwrap();
    let pids = std::fs::read_to_string(pids).unwrap();
    let (engine, worker) = pids.split_once(' ').unwrap();
    (engine.parse().unwrap(), worker.parse().unwrap())
}

#[tokio::test]
async fn the_next_agent_ends_what_the_killed_one_left() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, worker) = make_orphans(directory.path()).await;
    assert!(runs(engine) && runs(worker), "killing the agent left them");
    let running = start_in(directory.path(), vec![script("")]).await;
    let new = running.ready(0).await.process.unwrap().pid().unwrap();
    assert!(!runs(engine) && !runs(worker) && new != engine);
    running.stop().await;
    assert!(!directory.path().join("0.pid").exists());
}

#[tokio::test]
async fn also_when_only_a_child_of_the_engine_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, worker) = make_orphans(directory.path()).await;
    signal(engine, Signal::KILL);
    eventually("engine ended", || !runs(engine)).await;
    assert!(runs(worker));
    // And when the new agent has no engine of that number to launch.
    let running = start_in(directory.path(), vec![demo(|_| {})]).await;
    running.ready(0).await;
    assert!(!runs(worker));
    running.stop().await;
}

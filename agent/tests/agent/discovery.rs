//! Engines that nobody names: they are found, they change, they go away.

use crate::{
    replay::{Page, Replay, models},
    support::{Running, config, demo, eventually, start_with},
};
use dunlin_agent::{Config, EngineConfig, Source};
use dunlin_protocol::{announcement::ReplicaState, id::ModelId};
use std::time::{Duration, Instant};

/// Two seconds are promised; the rest is for a busy machine.
const WITHIN: Duration = Duration::from_secs(3);

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn start_looking(ports: &[u16], engines: Vec<EngineConfig>) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let discover = ports.iter().copied().collect();
    let running = start_with(Config { engines, discover, ..config(&directory.path().join("engines")) }).await;
    let _ = directory.keep();
    running
}

async fn ollama_at(port: u16, names: &[&str]) -> Replay {
    let version = Page::of("documented/ollama_version.json");
    Replay::start_at(port, &[("/api/version", version), ("/v1/models", models("library", names.iter().copied()))]).await
}

impl Running {
    /// Names of the models that the mesh knows to be ready here.
    fn ready_models(&self) -> Vec<String> {
        self.node.directory().read(|directory| {
            let ready = directory.all_replicas().filter(|replica| replica.state == ReplicaState::Ready);
            let mut names: Vec<_> =
                ready.flat_map(|replica| replica.models.iter().map(|model| model.id.to_string())).collect();
            names.sort();
            names
        })
    }

    async fn serves(&self, what: &str, names: &[&str]) -> Duration {
        eventually(what, || self.ready_models() == names).await
    }
}

#[tokio::test]
async fn several_engines_appear_and_vanish_while_the_agent_runs() {
    let (first, second) = (free_port(), free_port());
    let running = start_looking(&[first, second], Vec::new()).await;
    assert!(running.status.engines().is_empty());
    let ollama = ollama_at(first, &["llama3.2:1b"]).await;
    running.serves("the first", &["llama3.2:1b"]).await;
    let vllm = [
        ("/health", Page::of("vllm/health.txt")),
        ("/v1/models", Page::of("vllm/models.txt")),
        ("/metrics", Page::of("vllm/metrics.txt")),
    ];
    let vllm = Replay::start_at(second, &vllm).await;
    running.serves("both", &["llama3.2:1b", "my-lora", "smollm2-135m"]).await;
    let kinds: Vec<_> = running.status.engines().iter().map(|engine| engine.runtime.to_string()).collect();
    assert_eq!(kinds, ["ollama", "vllm"]);

    drop(ollama);
    running.serves("the second alone", &["my-lora", "smollm2-135m"]).await;
    let started = Instant::now();
    while running.engine(0).state != ReplicaState::Gone {
        assert!(started.elapsed() < Duration::from_secs(30), "still waited for");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // At the same place something else, under the same index.
    let _ollama = ollama_at(first, &["qwen3:8b"]).await;
    running.serves("back", &["my-lora", "qwen3:8b", "smollm2-135m"]).await;
    assert_eq!(running.status.engines().len(), 2);
    drop(vllm);
    running.serves("the first alone", &["qwen3:8b"]).await;
    running.stop().await;
}

#[tokio::test]
async fn three_hundred_models_come_and_go_within_two_seconds() {
    let port = free_port();
    let names: Vec<String> =
        (0..300).map(|n| format!("some-namespace/model-{n:03}:{}b-instruct-q4_K_M", n % 70)).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ollama = ollama_at(port, &names).await;
    let running = start_looking(&[port], Vec::new()).await;
    running.serves("all", &names).await;

    names.push("zephyr:7b");
    ollama.show("/v1/models", models("library", names.iter().copied()));
    let took = running.serves("pulled", &names).await;
    assert!(took < WITHIN, "{took:?}");
    let removed = names.remove(7);
    ollama.show("/v1/models", models("library", names.iter().copied()));
    let took = running.serves("removed", &names).await;
    assert!(took < WITHIN, "{took:?}");
    assert_eq!(running.chat(removed, serde_json::json!({})).await.status, 404);
    running.stop().await;
}

#[tokio::test]
async fn adapters_are_announced_as_they_are_loaded_and_unloaded() {
    let vllm =
        Replay::start(&[("/health", Page::of("vllm/health.txt")), ("/v1/models", Page::of("vllm/models.txt"))]).await;
    let running = start_looking(&[vllm.port], Vec::new()).await;
    running.serves("with its adapter", &["my-lora", "smollm2-135m"]).await;
    vllm.show("/v1/models", models("vllm", ["smollm2-135m"]));
    let took = running.serves("without", &["smollm2-135m"]).await;
    assert!(took < WITHIN, "{took:?}");
    vllm.show("/v1/models", Page::of("vllm/models.txt"));
    let took = running.serves("with it again", &["my-lora", "smollm2-135m"]).await;
    assert!(took < WITHIN, "{took:?}");
    running.stop().await;
}

/// Somebody else's server at one of the usual ports: asked now and then, not each second.
#[tokio::test]
async fn a_server_that_is_no_engine_is_left_in_peace() {
    let other = Replay::start(&[("/health", Page::body("ok"))]).await;
    let running = start_looking(&[other.port], Vec::new()).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(running.status.engines().is_empty());
    let asked = other.asked("/v1/models");
    assert!((1..=3).contains(&asked), "asked {asked} times in seven seconds");
    // And yet it is found when it becomes one.
    other.show("/v1/models", models("somebody", ["late"]));
    let started = Instant::now();
    while running.ready_models() != ["late"] {
        assert!(started.elapsed() < Duration::from_secs(20), "never found");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    running.stop().await;
}

#[tokio::test]
async fn the_demo_engine_leaves_when_there_is_a_real_one() {
    let port = free_port();
    let stand_in = EngineConfig { stand_in: true, ..demo(|_| {}) };
    let running = start_looking(&[port], vec![stand_in]).await;
    running.serves("the demo", &["demo"]).await;
    let _ollama = ollama_at(port, &["llama3.2:1b"]).await;
    running.serves("the real one", &["llama3.2:1b"]).await;
    assert_eq!(running.engine(0).state, ReplicaState::Gone);
    running.stop().await;
}

/// An engine that was named is not found a second time.
#[tokio::test]
async fn an_engine_is_one_replica_however_it_is_known() {
    let ollama = ollama_at(0, &["llama3.2:1b"]).await;
    let named = format!("http://localhost:{}/v1", ollama.port).parse().unwrap();
    let running = start_looking(&[ollama.port], vec![EngineConfig::new(Source::Attach(named))]).await;
    running.serves("it", &["llama3.2:1b"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(running.status.engines().len(), 1);
    running.stop().await;
}

/// Another kind of engine with another model takes the port over between two looks: the old topic is left at once, and
/// requests for the old model are refused and not answered by the new one.
#[tokio::test]
async fn an_engine_that_serves_something_else_now_leaves_the_old_topic() {
    let engine =
        Replay::start(&[("/health", Page::of("vllm/health.txt")), ("/v1/models", Page::of("vllm/models.txt"))]).await;
    let url = engine.url().parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let engines = vec![EngineConfig::new(Source::Attach(url))];
    let running = start_with(Config { engines, ..config(directory.path()) }).await;
    running.serves("the old", &["my-lora", "smollm2-135m"]).await;
    engine.show("/v1/models", Page::of("documented/trtllm_models.json"));
    // What an engine says that knows the model no longer.
    engine.show("/v1/chat/completions", Page::status(404));
    let old = ModelId::new("smollm2-135m").unwrap();
    running.chat(old.as_str(), serde_json::json!({})).await;
    let took = running.serves("the new", &["TinyLlama-1.1B-Chat-v1.0"]).await;
    assert!(took < WITHIN, "{took:?}");
    assert_eq!(running.engine(0).runtime.as_str(), "tensorrt-llm");
    assert_eq!(running.chat(old.as_str(), serde_json::json!({})).await.json()["error"]["code"], "model_not_found");
    running.stop().await;
}

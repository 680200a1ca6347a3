//! Each built-in runtime: recognised by its answers, read, and served.

use crate::{
    replay::{Page, Replay},
    support::{eventually, start, whole},
};
use dunlin_agent::{EngineConfig, EngineStatus, Source};
use dunlin_protocol::load::EngineLoad;

/// What a kind of engine answers, and what is to be made of it.
struct Kind {
    runtime: &'static str,
    pages: Vec<(&'static str, Page)>,
    models: &'static [&'static str],
    slots: u16,
    load: Option<EngineLoad>,
}

fn load(running: u32, waiting: u32) -> EngineLoad {
    EngineLoad { running: Some(running), waiting: Some(waiting), ..EngineLoad::default() }
}

fn kinds() -> Vec<Kind> {
    let page = Page::of;
    vec![
        Kind {
            runtime: "vllm",
            pages: vec![
                ("/health", page("vllm/health.txt")),
                ("/version", page("vllm/version.txt")),
                ("/v1/models", page("vllm/models.txt")),
                ("/metrics", page("vllm/metrics_during_lora.txt")),
            ],
            models: &["smollm2-135m", "my-lora"],
            slots: 64,
            load: Some(EngineLoad {
                kv_used_permille: Some(3),
                prompt_tokens: Some(509),
                generated_tokens: Some(171),
                prefix_hit_permille: Some(0),
                ..load(1, 0)
            }),
        },
        Kind {
            runtime: "sglang",
            pages: vec![
                ("/health", page("sglang/health.txt")),
                ("/v1/models", page("sglang/models.txt")),
                ("/metrics", page("sglang/metrics_after.txt")),
                ("/get_server_info", page("documented/sglang_server_info.json")),
            ],
            models: &["smollm2-135m"],
            slots: 128,
            load: Some(EngineLoad {
                kv_used_permille: Some(0),
                prompt_tokens: Some(308 + 232),
                generated_tokens: Some(121 + 48),
                prefix_hit_permille: Some(968),
                ..load(0, 0)
            }),
        },
        Kind {
            runtime: "llamacpp",
            pages: vec![
                ("/health", page("llamacpp/health.txt")),
                ("/props", page("llamacpp/props.txt")),
                ("/v1/models", page("llamacpp/models.txt")),
                ("/metrics", page("llamacpp/metrics.txt")),
            ],
            models: &["smollm2-135m"],
            slots: 2,
            load: Some(EngineLoad { prompt_tokens: Some(37), generated_tokens: Some(20), ..load(0, 0) }),
        },
        // Whisper on vLLM, with vLLM's metrics.
        Kind {
            runtime: "vllm",
            pages: vec![
                ("/health", page("vllm/health.txt")),
                ("/v1/models", page("vllm_whisper/models.txt")),
                ("/metrics", page("vllm_whisper/metrics.txt")),
            ],
            models: &["whisper-base"],
            slots: 64,
            load: Some(EngineLoad {
                kv_used_permille: Some(0),
                prompt_tokens: Some(35),
                generated_tokens: Some(25),
                ..load(0, 0)
            }),
        },
        Kind {
            runtime: "ollama",
            pages: vec![
                ("/api/version", page("documented/ollama_version.json")),
                ("/v1/models", page("documented/ollama_models.json")),
            ],
            models: &["llama3.2:1b", "someone/qwen3:8b"],
            slots: 1,
            load: None,
        },
        Kind {
            runtime: "tgi",
            pages: vec![
                ("/health", Page::body("")),
                ("/info", page("documented/tgi_info.json")),
                ("/v1/models", page("documented/tgi_models.json")),
                ("/metrics", page("documented/tgi_metrics.txt")),
            ],
            models: &["HuggingFaceTB/SmolLM2-135M-Instruct"],
            slots: 64,
            load: Some(EngineLoad {
                kv_used_permille: Some(250),
                prompt_tokens: Some(640),
                generated_tokens: Some(300),
                ..load(5, 3)
            }),
        },
        Kind {
            runtime: "tensorrt-llm",
            pages: vec![
                ("/health", Page::body("")),
                ("/v1/models", page("documented/trtllm_models.json")),
                // JSON statistics, which would be read in vain.
                ("/metrics", Page::body("[]")),
                ("/prometheus/metrics", page("documented/trtllm_metrics.txt")),
            ],
            models: &["TinyLlama-1.1B-Chat-v1.0"],
            slots: 64,
            load: Some(EngineLoad { kv_used_permille: Some(620), prefix_hit_permille: Some(250), ..load(4, 2) }),
        },
        Kind {
            runtime: "parakeet",
            pages: vec![
                ("/v1/health/ready", page("documented/nim_ready.json")),
                ("/v1/models", crate::replay::models("nvidia", ["parakeet-ctc-1.1b"])),
            ],
            models: &["parakeet-ctc-1.1b"],
            slots: 4,
            load: None,
        },
    ]
}

#[tokio::test]
async fn every_kind_is_recognised_read_and_served() {
    let kinds = kinds();
    let mut servers = Vec::new();
    for kind in &kinds {
        servers.push(Replay::start(&kind.pages).await);
    }
    let attach = |server: &Replay| EngineConfig::new(Source::Attach(server.url().parse().unwrap()));
    let running = start(servers.iter().map(attach).collect()).await;
    for (index, kind) in kinds.iter().enumerate() {
        let EngineStatus { runtime, models, slots, .. } = running.ready(index).await;
        let models: Vec<_> = models.iter().map(ToString::to_string).collect();
        assert_eq!((runtime.as_str(), &models[..], slots), (kind.runtime, &owned(kind.models)[..], kind.slots));
        if kind.load.is_some() {
            eventually("read", || running.engine(index).engine.is_some()).await;
        }
        assert_eq!(running.engine(index).engine, kind.load, "{}", kind.runtime);
    }
    running.stop().await;
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Servers that list nothing serve what their user says, whatever name the engine itself would take.
#[tokio::test]
async fn speech_servers_without_a_list_serve_what_is_configured() {
    let whisper =
        Replay::start(&[("/health", Page::of("whisper/health.txt")), ("/v1/models", Page::of("whisper/models.txt"))])
            .await;
    let small = Replay::start(&[("/health", Page::body("{\"status\":\"healthy\"}"))]).await;
    let attach = |server: &Replay, runtime: &str, model: &str| EngineConfig {
        runtime: Some(runtime.parse().unwrap()),
        models: vec![model.parse().unwrap()],
        ..EngineConfig::new(Source::Attach(server.url().parse().unwrap()))
    };
    let running =
        start(vec![attach(&whisper, "whisper", "whisper-1"), attach(&small, "parakeet", "parakeet-tdt-0.6b-v3")]).await;
    for (index, model, slots) in [(0, "whisper-1", 1), (1, "parakeet-tdt-0.6b-v3", 4)] {
        let status = running.ready(index).await;
        assert_eq!((status.models[0].as_str(), status.slots), (model, slots));
    }
    running.stop().await;
}

/// Triton with the TensorRT-LLM backend tells its load at another port.
#[tokio::test]
async fn metrics_may_lie_at_another_port_and_path() {
    let metrics = Replay::start(&[("/metrics", Page::of("documented/triton_metrics.txt"))]).await;
    let api = Replay::start(&[("/v1/models", Page::of("documented/trtllm_models.json"))]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = crate::support::config(directory.path());
    let runtime = "tensorrt-llm".parse().unwrap();
    config.catalogue.set("test", &runtime, "metrics.path", "/metrics").unwrap();
    config.catalogue.set("test", &runtime, "metrics.port", &metrics.port.to_string()).unwrap();
    config.engines =
        vec![EngineConfig { runtime: Some(runtime), ..EngineConfig::new(Source::Attach(api.url().parse().unwrap())) }];
    let running = crate::support::start_with(config).await;
    running.ready(0).await;
    eventually("read", || running.engine(0).engine.is_some()).await;
    assert_eq!(running.engine(0).engine, Some(EngineLoad { kv_used_permille: Some(250), ..load(3, 1) }));
    running.stop().await;
}

/// Streams, whole answers and errors of each kind, as they were captured: the agent changes nothing, whatever it watches.
#[tokio::test]
async fn what_real_engines_answer_passes_to_the_letter() {
    let engine = Replay::start(&[("/v1/models", crate::replay::models("somebody", ["m"]))]).await;
    let running = start(vec![EngineConfig::new(Source::Attach(engine.url().parse().unwrap()))]).await;
    running.ready(0).await;
    let mut seen = 0;
    for kind in ["llamacpp", "sglang", "vllm", "vllm_whisper", "whisper"] {
        let folder = format!("{}/tests/data/{kind}", env!("CARGO_MANIFEST_DIR"));
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        files.sort();
        for file in files {
            let name = format!("{kind}/{}", file.display());
            let captured = Page::of(&name);
            let Some(path) = captured.asked.as_deref().filter(|path| path.starts_with("/v1/") && *path != "/v1/models")
            else {
                continue;
            };
            engine.show(path, captured.clone());
            let request = running.request(0, "m", path, &serde_json::json!({"model": "m"}));
            let answer = whole(running.send(request).await.unwrap()).await;
            assert_eq!(answer.status.as_u16(), captured.status, "{name}");
            assert_eq!(answer.body.as_bytes(), captured.body, "{name}");
            seen += 1;
        }
    }
    assert!(seen >= 45, "{seen} answers");
    running.stop().await;
}

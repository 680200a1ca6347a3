//! What real engines answered (`agent/tests/data`, each `curl -i` of one request), through the front door.

use crate::{
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use http::StatusCode;
use std::path::{Path, PathBuf};

/// One answer of a real engine.
struct Captured {
    file: PathBuf,
    path: String,
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

/// Answers to requests for inference: what else was captured is asked of engines by their agents alone.
fn all() -> Vec<Captured> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/data");
    let engines = ["llamacpp", "sglang", "vllm", "vllm_whisper", "whisper"];
    let files = engines.iter().flat_map(|engine| std::fs::read_dir(data.join(engine)).unwrap());
    let mut all: Vec<_> = files.filter_map(|file| Captured::read(file.unwrap().path())).collect();
    all.sort_by(|a, b| a.file.cmp(&b.file));
    all
}

impl Captured {
    fn read(file: PathBuf) -> Option<Self> {
        let text = std::fs::read_to_string(&file).unwrap();
        let (asked, answer) = text.strip_prefix("# curl ")?.split_once('\n')?;
        let url = asked.split(' ').next()?.trim_start_matches("http://");
        let path = &url[url.find('/')?..];
        let inference = asked.contains(" -d ") || asked.contains(" -F ");
        let (head, body) = answer.split_once("\r\n\r\n").or_else(|| answer.split_once("\n\n"))?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let kind = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-type: ").map(str::to_owned));
        inference.then(|| Self {
            path: path.to_owned(),
            status,
            kind: kind.unwrap_or_default().leak(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            file,
        })
    }

    /// Whether clients find in it what they look for: an error of another shape is brought into this one.
    fn has_the_shape(&self) -> bool {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let messages = self.path.starts_with("/v1/messages");
        let shape = json["error"]["message"].is_string() && (!messages || json["type"] == "error");
        self.status.is_success() || shape
    }

    /// A request of that kind.
    fn request(&self) -> String {
        let stream = self.kind.starts_with("text/event-stream");
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"stream":{stream}}}"#)
    }
}

#[tokio::test]
async fn what_real_engines_answer_reaches_the_client_to_the_letter() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let (mut seen, mut streams, mut reshaped) = (0, 0, 0);
    for captured in all().into_iter().filter(|captured| !captured.path.contains("/audio/")) {
        engine.play(Play::Say(captured.status, captured.kind, captured.body.clone()));
        let answer = mesh.client().post(&captured.path, captured.request()).await;
        let file = captured.file.display();
        assert_eq!((answer.status, answer.header("content-type")), (captured.status, captured.kind), "{file}");
        if captured.has_the_shape() {
            assert_eq!(answer.text(), String::from_utf8_lossy(&captured.body), "{file}");
        } else {
            let error = &answer.json()["error"];
            let message = error["message"].as_str().unwrap_or_else(|| panic!("{file}: {}", answer.text()));
            assert!(!message.is_empty() && !message.contains("/usr/"), "{file}: {message}");
            assert!(error["type"].is_string(), "{file}");
            reshaped += 1;
        }
        seen += 1;
        streams += usize::from(captured.kind.starts_with("text/event-stream"));
    }
    // vLLM, SGLang and llama.cpp: chats, completions, responses, messages, embeddings, tools, errors.
    assert!(seen >= 36 && streams >= 15, "{seen} answers, {streams} streams");
    assert!((2..10).contains(&reshaped), "{reshaped} errors of another shape");
}

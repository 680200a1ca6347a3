//! What engines of speech, images and ranking answer, in the shapes that OpenAI, Jina, Cohere and vLLM document: these
//! are played, since no such engine runs here.

use serde_json::{Value, json};

/// One PNG of one pixel, base64.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
/// What is played for speech: no text in any encoding.
const SOUND: &[u8] = b"RIFF\x00\xff\x00\xfe";

/// The head and the body of the answer at `path`.
pub(super) fn answer(path: &str, asked: &Value, form: &str) -> Option<(String, Vec<u8>)> {
    let head = |kind: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}");
    let stream = asked["stream"] == true || form.contains("name=\"stream\"\r\n\r\ntrue");
    if stream {
        let kind = if path.ends_with("/edits") { "image_edit" } else { "image_generation" };
        let mut kinds = vec![format!("{kind}.completed")];
        if kind == "image_generation" {
            kinds.insert(0, format!("{kind}.partial_image"));
        }
        let event =
            |kind: &String| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"b64_json\":\"{PIXEL}\"}}\n\n");
        return Some((head("text/event-stream"), kinds.iter().map(event).collect::<String>().into_bytes()));
    }
    let said = match path {
        "/v1/models" => json!({"object": "list", "data": [{"id": "artist", "object": "model", "owned_by": "played"}]}),
        "/health" => json!({}),
        "/v1/audio/speech" => return Some((head("audio/wav"), SOUND.to_vec())),
        "/v1/images/generations" => json!({"created": 1, "data": [{"b64_json": PIXEL}]}),
        "/v1/images/edits" if form.contains("name=\"image") && form.contains("redder") => {
            json!({"created": 1, "data": [{"b64_json": PIXEL}]})
        }
        "/v1/moderations" => {
            json!({"id": "modr-1", "model": "artist", "results": [{"flagged": false, "categories": {}, "category_scores": {}}]})
        }
        "/v1/rerank" | "/v2/rerank" | "/rerank" => {
            json!({"id": "rerank-1", "results": [{"index": 0, "relevance_score": 0.9}, {"index": 1, "relevance_score": 0.1}]})
        }
        "/v1/score" | "/score" => {
            json!({"object": "list", "data": [{"index": 0, "object": "score", "score": 0.9}]})
        }
        "/pooling" => json!({"object": "list", "data": [{"index": 0, "object": "pooling", "data": [[0.5, 0.25]]}]}),
        "/classify" => {
            json!({"object": "list", "data": [{"index": 0, "label": "day", "probs": [0.9, 0.1], "num_classes": 2}]})
        }
        _ => return None,
    };
    Some((head("application/json"), said.to_string().into_bytes()))
}

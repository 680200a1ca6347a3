//! Everything here that reads what an engine answered or a person wrote: no bytes may panic, and what must hold of any is
//! checked. A test tries it with bytes that are nearly right, `fuzz/` with whatever libFuzzer finds.

use crate::{
    engine::{EngineUrl, continuation::Said, models},
    metrics::page::Reader,
};
use dunlin_protocol::{id::ModelId, runtime::Catalogue};
use std::sync::OnceLock;

/// Panics where something is wrong with what it made of the bytes.
pub type Parser = fn(&[u8]);

/// The parsers, by name.
pub const PARSERS: &[(&str, Parser)] =
    &[("metrics", page), ("models", list), ("self-test", self_test), ("address", address)];

fn catalogue() -> &'static Catalogue {
    static BUILT_IN: OnceLock<Catalogue> = OnceLock::new();
    BUILT_IN.get_or_init(|| Catalogue::built_in().unwrap_or_default())
}

/// A page of metrics, as each kind of engine's: reading it leaves nothing behind.
fn page(bytes: &[u8]) {
    for metrics in catalogue().iter().filter_map(|runtime| runtime.metrics.as_ref()) {
        let mut reader = Reader::new(metrics);
        let (first, again) = (reader.read(bytes), reader.read(bytes));
        assert_eq!(first, again, "the page before makes a difference");
    }
}

/// A list of models.
fn list(bytes: &[u8]) {
    if let Ok(listed) = models::parse(bytes) {
        let served = models::served(&[], Some(&listed));
        let mut ids: Vec<&ModelId> = served.iter().map(|model| &model.id).collect();
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all, "a model is listed twice");
    }
}

/// The stream that answers the agent's own question.
fn self_test(bytes: &[u8]) {
    if let Ok(said) = Said::read(bytes)
        && let Ok(cuts) = said.cuts()
    {
        for cut in cuts {
            let _ = said.is_continued_by(cut, &said);
        }
    }
}

/// An engine's address.
fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(url) = text.parse::<EngineUrl>() {
        let again = url.to_string().parse::<EngineUrl>();
        assert_eq!(again.ok().as_ref(), Some(&url), "{url} is not read as it is written");
    }
}

#[cfg(test)]
#[path = "../../fuzz/nearly.rs"]
mod nearly;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 3.0\nvllm:num_requests_running{engine=\"1\",model_name=\"a\"} 1e0 1700000000\nvllm:num_requests_waiting{engine=\"0\"} 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 4\nsglang:num_running_reqs{model_name=\"m\"} 2.0\nvllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"\"} 1.7e9\n";
    const LIST: &str = r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","root":"/m","parent":null,"max_model_len":4096},{"id":"lora","parent":"m","aliases":["x"],"meta":{"n_ctx":128}}]}"#;
    const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two three four five six\"},\"finish_reason\":null}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" seven eight\"},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";

    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let texts: &[&str] = match name {
            "metrics" => &[PAGE],
            "models" => &[LIST],
            "self-test" => &[STREAM],
            _ => &["http://127.0.0.1:8000", "https://gpu.example/v1/", "http://[::1]:9/", "localhost:1"],
        };
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn bytes_that_are_nearly_right_break_nothing() {
        for (name, parser) in PARSERS {
            nearly::try_with(name, &seeds(name), parser);
        }
    }
}

//! What an engine lists under `/v1/models`, whichever engine it is.

use dunlin_protocol::{
    announcement::{ServedModel, root_tag},
    id::ModelId,
    limits,
};
use serde::Deserialize;
use std::collections::HashSet;

/// Largest list that is read, bytes: Ollama with hundreds of models stays far below.
pub const LIST_BYTES: usize = 4 << 20;

/// A list of models as it matters to the mesh.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// At most [`limits::MODELS_PER_REPLICA`], without repeats, in the engine's order.
    pub models: Vec<ServedModel>,
    /// What the engine says that it is (`owned_by` of the first entry).
    pub owner: Option<String>,
    /// Entries left out: names that no model id may have, or more than a replica may announce.
    pub left_out: usize,
}

/// Not a list of models.
#[derive(Debug, thiserror::Error)]
#[error("not a list of models: {0}")]
pub struct Error(#[from] serde_json::Error);

/// OpenAI's shape. What engines add and leave out is optional, and a field of an unexpected type spoils only itself.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    data: Option<Vec<serde_json::Value>>,
}

/// Reads a list of models. An entry without a usable id is left out and spoils no other.
///
/// vLLM and SGLang list adapters with `parent`; llama.cpp lists the further names of its model as `aliases`; Ollama
/// lists what it could load.
///
/// # Errors
/// Not JSON, or not OpenAI's shape.
pub fn parse(body: &[u8]) -> Result<Listed, Error> {
    let list: List = serde_json::from_slice(body)?;
    let mut listed = Listed::default();
    let mut seen = HashSet::new();
    for entry in list.data.unwrap_or_default() {
        let text = |name: &str| entry.get(name).and_then(serde_json::Value::as_str);
        if listed.owner.is_none() {
            listed.owner = text("owned_by").map(str::to_owned);
        }
        let parent = text("parent").and_then(|parent| ModelId::new(parent).ok());
        let context = ["max_model_len", "context_length"]
            .iter()
            .find_map(|name| entry.get(*name)?.as_u64())
            .or_else(|| entry.pointer("/meta/n_ctx")?.as_u64())
            .and_then(|tokens| u32::try_from(tokens).ok());
        let root = root(&entry);
        let aliases = entry.get("aliases").and_then(serde_json::Value::as_array).into_iter().flatten();
        for name in text("id").into_iter().chain(aliases.filter_map(serde_json::Value::as_str)) {
            match ModelId::new(name) {
                Ok(id) if !seen.insert(id.clone()) => {}
                Ok(id) if listed.models.len() < limits::MODELS_PER_REPLICA => {
                    listed.models.push(ServedModel { id, parent: parent.clone(), context, root });
                }
                _ => listed.left_out += 1,
            }
        }
    }
    Ok(listed)
}

/// What the engine loaded, as it says itself: vLLM and SGLang name the folder or the hub's id, llama.cpp the file's size,
/// parameters, vocabulary and quantization.
fn root(entry: &serde_json::Value) -> Option<u64> {
    if let Some(root) = entry.get("root").and_then(serde_json::Value::as_str).filter(|root| !root.is_empty()) {
        return Some(root_tag(root));
    }
    let meta = |name: &str| entry.get("meta")?.get(name).map(ToString::to_string);
    let quantization = meta("ftype").unwrap_or_default();
    Some(root_tag(&[meta("size")?, meta("n_params")?, meta("n_vocab")?, quantization].join(" ")))
}

/// What a replica serves: the configured models, which count as listed, and the adapters on top of them; everything that
/// the engine lists when none is configured.
#[must_use]
pub fn served(configured: &[ModelId], listed: Option<&Listed>) -> Vec<ServedModel> {
    let listed = listed.map_or(&[][..], |listed| &listed.models);
    if configured.is_empty() {
        return listed.to_vec();
    }
    let known = |id: &ModelId| listed.iter().find(|model| model.id == *id).cloned();
    let own = configured
        .iter()
        .map(|id| known(id).unwrap_or_else(|| ServedModel { id: id.clone(), parent: None, context: None, root: None }));
    let adapters = listed
        .iter()
        .filter(|model| !configured.contains(&model.id))
        .filter(|model| model.parent.as_ref().is_some_and(|parent| configured.contains(parent)))
        .cloned();
    own.chain(adapters).take(limits::MODELS_PER_REPLICA).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::body;

    fn names(listed: &Listed) -> Vec<&str> {
        listed.models.iter().map(|model| model.id.as_str()).collect()
    }
    fn id(text: &str) -> ModelId {
        ModelId::new(text).unwrap()
    }

    #[test]
    fn llamacpp() {
        let listed = parse(&body("llamacpp/models.txt")).unwrap();
        assert_eq!(names(&listed), ["smollm2-135m"]);
        assert_eq!(listed.models[0].context, Some(2048));
        assert_eq!(listed.owner.as_deref(), Some("llamacpp"));
    }

    #[test]
    fn vllm_with_an_adapter() {
        let listed = parse(&body("vllm/models.txt")).unwrap();
        assert_eq!(names(&listed), ["smollm2-135m", "my-lora"]);
        assert_eq!(listed.models[0].context, Some(2048));
        assert_eq!(listed.models[1].parent, Some(id("smollm2-135m")));
    }

    #[test]
    fn what_is_loaded_is_told_apart() {
        let root = |body: &[u8]| parse(body).unwrap().models[0].root;
        let llamacpp = body("llamacpp/models.txt");
        let text = String::from_utf8(llamacpp.clone()).unwrap();
        let other = text.replace("\"size\":96576768", "\"size\":96576769");
        assert_ne!(other, text);
        assert!(root(&llamacpp).is_some());
        assert_ne!(root(other.as_bytes()), root(&llamacpp));
        assert_eq!(root(text.replace("smollm2-135m", "alias").as_bytes()), root(&llamacpp));
        let vllm = parse(&body("vllm/models.txt")).unwrap();
        assert_eq!(vllm.models[0].root, Some(root_tag("/models/smollm2-135m-hf")));
        assert_eq!(vllm.models[1].root, Some(root_tag("/models/lora-smollm2")));
        // Ollama says nothing of it; llama.cpp neither while it loads.
        assert_eq!(root(br#"{"data":[{"id":"m","meta":null}]}"#), None);
    }

    #[test]
    fn sglang_and_whisper() {
        assert_eq!(names(&parse(&body("sglang/models.txt")).unwrap()), ["smollm2-135m"]);
        assert_eq!(names(&parse(&body("vllm_whisper/models.txt")).unwrap()), ["whisper-base"]);
        // faster-whisper-server answers 404 with a JSON body that is no list: nothing is listed, and nothing breaks.
        assert_eq!(parse(&body("whisper/models.txt")).unwrap(), Listed::default());
    }

    #[test]
    fn ollama_lists_null_when_it_has_none() {
        // Ollama's Go encoder writes a nil slice as null.
        assert_eq!(parse(br#"{"object":"list","data":null}"#).unwrap(), Listed::default());
    }

    #[test]
    fn one_bad_entry_spoils_no_other() {
        let listed =
            parse(br#"{"data":[{"id":""},{"no":1},7,{"id":5},{"id":"a\u0007"},{"id":"a"},{"id":"a"}]}"#).unwrap();
        assert_eq!(names(&listed), ["a"]);
        assert_eq!(listed.left_out, 2);
    }

    #[test]
    fn aliases_are_models_too() {
        let listed = parse(br#"{"data":[{"id":"a","aliases":["a","b"]}]}"#).unwrap();
        assert_eq!(names(&listed), ["a", "b"]);
    }

    #[test]
    fn a_list_without_end_is_cut() {
        let entries: Vec<_> = (0..600).map(|n| format!(r#"{{"id":"m{n}"}}"#)).collect();
        let listed = parse(format!(r#"{{"data":[{}]}}"#, entries.join(",")).as_bytes()).unwrap();
        assert_eq!(
            (listed.models.len(), listed.left_out),
            (limits::MODELS_PER_REPLICA, 600 - limits::MODELS_PER_REPLICA)
        );
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(parse(b"<html>").is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn configured_models_count_as_listed_and_bring_their_adapters() {
        let listed = parse(&body("vllm/models.txt")).unwrap();
        let all: Vec<_> = served(&[], Some(&listed)).into_iter().map(|model| model.id).collect();
        assert_eq!(all, [id("smollm2-135m"), id("my-lora")]);
        let served_ids = |configured: &[ModelId], listed| -> Vec<ModelId> {
            served(configured, listed).into_iter().map(|model| model.id).collect()
        };
        assert_eq!(served_ids(&[id("whisper")], None), [id("whisper")]);
        assert_eq!(served_ids(&[id("smollm2-135m")], Some(&listed)), [id("smollm2-135m"), id("my-lora")]);
        assert_eq!(served_ids(&[id("my-lora")], Some(&listed)), [id("my-lora")]);
        assert_eq!(served(&[id("smollm2-135m")], Some(&listed))[0].context, Some(2048));
    }
}

//! The models that the demo engine says it has.

use super::{
    config::{Adapter, Config},
    error::Error,
};
use serde::Serialize;
use std::sync::{PoisonError, RwLock};

/// Who owns the models: the engine always says that it is a demo.
const OWNER: &str = "dunlin-demo";

/// The one model under its names, and adapters that come and go.
#[derive(Debug)]
pub(super) struct Models {
    names: Vec<String>,
    root: String,
    context: u32,
    adapters: RwLock<Vec<Adapter>>,
}

/// A model that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    /// As the client named it.
    pub(super) asked: String,
    /// What the text depends on.
    pub(super) root: String,
    /// The adapter, when it is one.
    pub(super) adapter: Option<String>,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'a str,
    data: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    object: &'a str,
    created: u64,
    owned_by: &'a str,
    root: &'a str,
    parent: Option<&'a str>,
    max_model_len: Option<u32>,
}

impl Models {
    pub(super) fn new(config: &Config) -> Self {
        let names = if config.models.is_empty() { vec!["demo".to_owned()] } else { config.models.clone() };
        let root = config.root.clone().or_else(|| names.first().cloned()).unwrap_or_default();
        Self { root, names, context: config.context, adapters: RwLock::new(config.adapters.clone()) }
    }

    /// The name that the model is listed under.
    pub(super) fn first(&self) -> &str {
        self.names.first().map_or("demo", String::as_str)
    }

    /// The model or adapter of a request; without a name, the model.
    pub(super) fn resolve(&self, asked: Option<String>) -> Result<Resolved, Error> {
        let asked = asked.unwrap_or_else(|| self.first().to_owned());
        if self.names.contains(&asked) {
            return Ok(Resolved { asked, root: self.root.clone(), adapter: None });
        }
        let adapters = self.adapters.read().unwrap_or_else(PoisonError::into_inner);
        let Some(adapter) = adapters.iter().find(|adapter| adapter.name == asked) else {
            let known = self.names.iter().map(String::as_str).chain(adapters.iter().map(|a| a.name.as_str()));
            let known = known.collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownModel { model: asked, known });
        };
        let root = format!("{}\0{}", self.root, adapter.path);
        Ok(Resolved { adapter: Some(asked.clone()), asked, root })
    }

    /// As vLLM's `/v1/load_lora_adapter`.
    pub(super) fn load(&self, adapter: Adapter) -> Result<String, Error> {
        let mut adapters = self.adapters.write().unwrap_or_else(PoisonError::into_inner);
        if adapters.iter().any(|known| known.name == adapter.name) {
            return Err(Error::Adapter(format!("The lora adapter '{}' has already been loaded.", adapter.name)));
        }
        let done = format!("Success: LoRA adapter '{}' added successfully.", adapter.name);
        adapters.push(adapter);
        Ok(done)
    }

    /// As vLLM's `/v1/unload_lora_adapter`.
    pub(super) fn unload(&self, name: &str) -> Result<String, Error> {
        let mut adapters = self.adapters.write().unwrap_or_else(PoisonError::into_inner);
        let before = adapters.len();
        adapters.retain(|adapter| adapter.name != name);
        if adapters.len() == before {
            return Err(Error::Adapter(format!("The lora adapter '{name}' cannot be found.")));
        }
        Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
    }

    /// The body of `/v1/models`.
    pub(super) fn list(&self, created: u64) -> Vec<u8> {
        let adapters = self.adapters.read().unwrap_or_else(PoisonError::into_inner);
        let entry = |id, root, parent, max_model_len| Entry {
            id,
            object: "model",
            created,
            owned_by: OWNER,
            root,
            parent,
            max_model_len,
        };
        let names = self.names.iter().map(|name| entry(name, &self.root, None, Some(self.context)));
        let adapters = adapters.iter().map(|adapter| entry(&adapter.name, &adapter.path, Some(self.first()), None));
        let list = List { object: "list", data: names.chain(adapters).collect() };
        serde_json::to_vec(&list).unwrap_or_default()
    }
}

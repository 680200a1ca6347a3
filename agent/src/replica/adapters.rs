//! LoRA adapters that an engine may be told to load: only those that its user listed, from where the user said.

use super::Replica;
use crate::{config::AdapterConfig, engine::Client};
use dunlin_protocol::{
    announcement::{ServedModel, root_tag},
    id::ModelId,
    limits,
    runtime::Lora,
};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// How long an engine may take to load one: it may have to be downloaded.
const LOAD: Duration = Duration::from_secs(120);
/// How long it may take to drop one.
const UNLOAD: Duration = Duration::from_secs(30);
/// Largest answer to that, bytes.
const ANSWER: usize = 64 << 10;
/// Of what an engine says about it, so much is repeated.
const SAID: usize = 500;

/// Why an adapter is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Not on the list.
    #[error("the adapter `{0}` is not one that may be loaded here (--adapter NAME=SOURCE)")]
    NotAllowed(ModelId),
    /// The kind of engine loads none while it runs.
    #[error("an engine of the runtime {0} loads no adapters while it runs")]
    Unable(String),
    /// The engine is not there.
    #[error("the engine is not running")]
    NoEngine,
    /// The engine can't.
    #[error("the engine does not {verb} the adapter `{adapter}`: {said}")]
    Refused {
        /// What it was told to do.
        verb: &'static str,
        /// Which one.
        adapter: ModelId,
        /// In its words.
        said: String,
    },
}

/// One adapter as it stands.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Listed {
    replica: u16,
    adapter: ModelId,
    parent: Option<ModelId>,
    loaded: bool,
    /// Whether it can be loaded and unloaded through the agent.
    allowed: bool,
}

/// What a replica serves: what the engine lists, and the adapters that it can load beside its first model. These have no
/// `root` until they are loaded, by which proxies tell them apart.
pub(super) fn with_loadable(mut models: Vec<ServedModel>, allowed: &[AdapterConfig], able: bool) -> Vec<ServedModel> {
    for adapter in allowed {
        if let Some(listed) = models.iter_mut().find(|model| model.id == adapter.name) {
            listed.root = listed.root.or_else(|| Some(root_tag(&adapter.source)));
        }
    }
    let Some(parent) = models.iter().find(|model| model.parent.is_none()).map(|model| model.id.clone()) else {
        return models;
    };
    let missing =
        allowed.iter().filter(|_| able).filter(|adapter| !models.iter().any(|model| model.id == adapter.name));
    let loadable: Vec<ServedModel> = missing
        .map(|adapter| {
            let parent = Some(parent.clone());
            ServedModel { id: adapter.name.clone(), parent, context: None, root: None }
        })
        .collect();
    models.extend(loadable);
    models.truncate(limits::MODELS_PER_REPLICA);
    models
}

impl Replica {
    /// Sees to it that `model` is loaded if it is an adapter that the engine hasn't loaded yet.
    ///
    /// # Errors
    /// The engine does not load it.
    pub(crate) async fn ensure_loaded(&self, client: &Client, model: &ModelId) -> Result<(), Error> {
        let waits = |replica: &Self| {
            replica
                .view()
                .models
                .iter()
                .any(|served| served.id == *model && served.parent.is_some() && served.root.is_none())
        };
        if !waits(self) || !self.allowed.iter().any(|adapter| adapter.name == *model) {
            return Ok(());
        }
        // Of many requests for it the first loads it.
        let _one = self.loading.lock().await;
        if waits(self) { self.load_adapter_now(client, model).await } else { Ok(()) }
    }

    /// Has the engine load an adapter of the list.
    ///
    /// # Errors
    /// It is not on the list, or the engine does not load it.
    pub(crate) async fn load_adapter(&self, client: &Client, model: &ModelId) -> Result<(), Error> {
        let _one = self.loading.lock().await;
        self.load_adapter_now(client, model).await
    }

    async fn load_adapter_now(&self, client: &Client, model: &ModelId) -> Result<(), Error> {
        let adapter = self.allowed(model)?;
        let (url, lora) = self.way()?;
        let body = json!({(lora.name.as_str()): model, (lora.source.as_str()): adapter.source});
        let refused = |said: String| Error::Refused { verb: "load", adapter: model.clone(), said };
        let answer = client.post_json(&url, lora.load.as_str(), &body, LOAD, ANSWER).await;
        let answer = answer.map_err(|error| refused(error.to_string()))?;
        let said = String::from_utf8_lossy(&answer.body);
        // vLLM's word for one that is there: another process, or an earlier one of ours, was quicker.
        if !answer.status.is_success() && !said.contains("already") {
            return Err(refused(format!("{} {}", answer.status, said.chars().take(SAID).collect::<String>())));
        }
        self.set_root(model, Some(root_tag(&adapter.source)));
        tracing::info!(replica = self.index, adapter = %model, "adapter loaded");
        Ok(())
    }

    /// Has the engine drop an adapter of the list.
    ///
    /// # Errors
    /// It is not on the list, or the engine does not drop it.
    pub(crate) async fn unload_adapter(&self, client: &Client, model: &ModelId) -> Result<(), Error> {
        let _one = self.loading.lock().await;
        self.allowed(model)?;
        let (url, lora) = self.way()?;
        let body = json!({(lora.name.as_str()): model});
        let refused = |said: String| Error::Refused { verb: "unload", adapter: model.clone(), said };
        let answer = client.post_json(&url, lora.unload.as_str(), &body, UNLOAD, ANSWER).await;
        let answer = answer.map_err(|error| refused(error.to_string()))?;
        if !answer.status.is_success() {
            let said: String = String::from_utf8_lossy(&answer.body).chars().take(SAID).collect();
            return Err(refused(format!("{} {said}", answer.status)));
        }
        self.set_root(model, None);
        tracing::info!(replica = self.index, adapter = %model, "adapter unloaded");
        Ok(())
    }

    /// Whether `model` is an adapter here.
    pub(crate) fn is_adapter(&self, model: &ModelId) -> bool {
        self.view().models.iter().any(|served| served.id == *model && served.parent.is_some())
    }

    /// The engine says that it has no such adapter, whatever it said before.
    pub(crate) fn adapter_missed(&self, model: &ModelId) {
        if self.allowed.iter().any(|adapter| adapter.name == *model) {
            self.set_root(model, None);
        }
        self.model_missed();
    }

    /// Its adapters, loaded or not.
    pub(crate) fn adapters_listed(&self) -> Vec<Listed> {
        let allowed = |model: &ModelId| self.allowed.iter().any(|adapter| adapter.name == *model);
        let view = self.view();
        let adapters = view.models.iter().filter(|served| served.parent.is_some());
        adapters
            .map(|served| Listed {
                replica: self.index,
                adapter: served.id.clone(),
                parent: served.parent.clone(),
                loaded: served.root.is_some() || !allowed(&served.id),
                allowed: allowed(&served.id),
            })
            .collect()
    }

    fn allowed(&self, model: &ModelId) -> Result<&AdapterConfig, Error> {
        self.allowed.iter().find(|adapter| adapter.name == *model).ok_or_else(|| Error::NotAllowed(model.clone()))
    }

    fn way(&self) -> Result<(crate::engine::EngineUrl, Lora), Error> {
        let view = self.view();
        let lora = view.runtime.lora.clone().ok_or_else(|| Error::Unable(view.runtime.name.to_string()))?;
        Ok((view.url.clone().ok_or(Error::NoEngine)?, lora))
    }

    fn set_root(&self, model: &ModelId, root: Option<u64>) {
        self.change(|view| {
            if let Some(served) = view.models.iter_mut().find(|served| served.id == *model) {
                served.root = root;
            }
        });
        self.look.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    fn served(name: &str, parent: Option<&str>, root: Option<u64>) -> ServedModel {
        ServedModel { id: id(name), parent: parent.map(id), context: None, root }
    }

    #[test]
    fn what_can_be_loaded_is_served_as_not_loaded() {
        let allowed = [("a", "/adapters/a"), ("b", "/adapters/b")]
            .map(|(name, source)| AdapterConfig { name: id(name), source: source.to_owned() });
        let listed = vec![served("base", None, Some(1)), served("a", Some("base"), None)];
        let told = with_loadable(listed.clone(), &allowed, true);
        let a = served("a", Some("base"), Some(root_tag("/adapters/a")));
        assert_eq!(told, [served("base", None, Some(1)), a.clone(), served("b", Some("base"), None)]);
        assert_eq!(with_loadable(listed, &allowed, false), [served("base", None, Some(1)), a]);
        assert!(with_loadable(Vec::new(), &allowed, true).is_empty());
    }
}

//! Which kind of engine answers at a URL: the signs of the runtime catalogue, tried on real answers.

use super::{
    Client, EngineUrl,
    client::Answer,
    models::{self, LIST_BYTES},
};
use dunlin_protocol::{
    id::{ModelId, RuntimeName},
    runtime::{Catalogue, Runtime, Sign},
};
use std::{collections::HashMap, time::Duration};

/// One question while identifying an engine. It answers at once when it is there.
const DEADLINE: Duration = Duration::from_millis(1500);
/// Where anything that is OpenAI-compatible lists its models.
const OPENAI_MODELS: &str = "/v1/models";
/// What only a Dunlin proxy says of a model. A proxy is no engine: taking it for one would send requests in circles.
const PROXY_SIGN: &str = "/data/0/replicas";

/// What was found at a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its kind; `openai` when it only lists models.
    pub runtime: RuntimeName,
    /// What it lists now.
    pub models: Vec<ModelId>,
}

/// Finds out what answers at `url`; `None` when nothing does, or nothing that is known and nothing that lists models.
pub async fn identify(client: &Client, url: &EngineUrl, catalogue: &Catalogue) -> Option<Identity> {
    let mut answers = Answers { client, url, known: HashMap::new() };
    let list = answers.get(OPENAI_MODELS).await.filter(|answer| answer.status.is_success());
    if list.is_some_and(is_proxy) {
        return None;
    }
    let listed = list.and_then(|answer| models::parse(&answer.body).ok()).unwrap_or_default();
    let models: Vec<_> = listed.models.into_iter().map(|model| model.id).collect();
    for runtime in catalogue.iter() {
        if answers.show(runtime).await {
            return Some(Identity { runtime: runtime.name.clone(), models });
        }
    }
    let fallback = RuntimeName::new("openai").ok()?;
    (!models.is_empty()).then_some(Identity { runtime: fallback, models })
}

/// Answers of one engine, each path asked for once.
struct Answers<'a> {
    client: &'a Client,
    url: &'a EngineUrl,
    known: HashMap<String, Option<Answer>>,
}

impl Answers<'_> {
    async fn get(&mut self, path: &str) -> Option<&Answer> {
        if !self.known.contains_key(path) {
            let answer = self.client.get(self.url, path, DEADLINE, LIST_BYTES).await.ok();
            self.known.insert(path.to_owned(), answer);
        }
        self.known.get(path)?.as_ref()
    }

    async fn show(&mut self, runtime: &Runtime) -> bool {
        for sign in &runtime.probe.identify {
            if self.get(sign.path.as_str()).await.is_some_and(|answer| shows(answer, sign)) {
                return true;
            }
        }
        false
    }
}

pub(super) fn is_proxy(list: &Answer) -> bool {
    let json: Option<serde_json::Value> = serde_json::from_slice(&list.body).ok();
    json.is_some_and(|json| json.pointer(PROXY_SIGN).is_some())
}

fn shows(answer: &Answer, sign: &Sign) -> bool {
    let found = match (&sign.header, &sign.pointer) {
        (Some(header), _) => answer.headers.get(header).and_then(|value| value.to_str().ok()).map(str::to_owned),
        (None, Some(pointer)) if answer.status.is_success() => {
            let json: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
            json.and_then(|json| json.pointer(pointer.as_str()).map(text))
        }
        _ => None,
    };
    match (&sign.equals, found) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(wanted), Some(found)) => *wanted == found,
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

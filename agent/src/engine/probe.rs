//! What a running engine says of itself: whether it is well, what it serves, how much it does at once.

use super::{
    Client, EngineUrl,
    client::{self, Answer},
    models::{self, LIST_BYTES, Listed},
};
use dunlin_protocol::runtime::{HttpPath, Runtime};
use http::StatusCode;
use std::time::Duration;

/// An answer that tells the engine's state, bytes: `/props` holds whole chat templates.
const STATE_BYTES: usize = 1 << 20;

/// Why an engine is not known to be well.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No answer.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// It answered that it isn't; llama.cpp does so while it loads.
    #[error("the engine answered {0}")]
    Status(StatusCode),
    /// Its list of models cannot be read.
    #[error(transparent)]
    List(#[from] models::Error),
}

impl Problem {
    /// Nobody listens: the engine is not there, as against slow or unwell.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Client(client::Error::Connect(_)))
    }
}

/// Asks the engine's health endpoint. An engine that has none is well as far as this goes.
///
/// # Errors
/// No answer within `deadline`, or not a good one.
pub async fn health(client: &Client, url: &EngineUrl, runtime: &Runtime, deadline: Duration) -> Result<(), Problem> {
    let Some(path) = &runtime.probe.health else { return Ok(()) };
    let answer = client.get(url, path.as_str(), deadline, STATE_BYTES).await?;
    match answer.status {
        status if status.is_success() => Ok(()),
        // A server of this kind without this endpoint has not said that it is unwell.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(()),
        status => Err(Problem::Status(status)),
    }
}

/// Asks for the list of models; `None` when the engine keeps none.
///
/// # Errors
/// No answer within `deadline`, or not a list.
pub async fn models(
    client: &Client,
    url: &EngineUrl,
    runtime: &Runtime,
    deadline: Duration,
) -> Result<Option<Listed>, Problem> {
    let Some(path) = &runtime.probe.models else { return Ok(None) };
    let Answer { status, body, .. } = client.get(url, path.as_str(), deadline, LIST_BYTES).await?;
    match status {
        status if status.is_success() => Ok(Some(models::parse(&body)?)),
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Ok(None),
        status => Err(Problem::Status(status)),
    }
}

/// How many requests the engine says that it works on at once; `None` when it does not say. Each page is asked for once,
/// however many fields of it may tell.
pub async fn slots(client: &Client, url: &EngineUrl, runtime: &Runtime, deadline: Duration) -> Option<u16> {
    let mut last: Option<(&HttpPath, Option<serde_json::Value>)> = None;
    for field in &runtime.slots.read {
        if last.as_ref().is_none_or(|(path, _)| **path != field.path) {
            last = Some((&field.path, json(client, url, field.path.as_str(), deadline).await));
        }
        let told = last.as_ref().and_then(|(_, page)| page.as_ref()?.pointer(field.pointer.as_str())?.as_u64());
        if let Some(slots) = told.and_then(|slots| u16::try_from(slots).ok()).filter(|slots| *slots > 0) {
            return Some(slots);
        }
    }
    None
}

async fn json(client: &Client, url: &EngineUrl, path: &str, deadline: Duration) -> Option<serde_json::Value> {
    let answer = client.get(url, path, deadline, STATE_BYTES).await.ok().filter(|answer| answer.status.is_success())?;
    serde_json::from_slice(&answer.body).ok()
}

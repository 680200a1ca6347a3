//! `GET /mesh/adapters`: the LoRA adapters of this agent's engines. `POST /mesh/adapters` with `{"adapter": "...",
//! "action": "load"}` or `"unload"`: at each engine that may load it.

use super::Service;
use crate::replica::adapters::{Error, Listed};
use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use dunlin_protocol::id::ModelId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is to be done.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Load,
    Unload,
}

/// With which adapter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    adapter: ModelId,
    action: Action,
}

/// What came of it at one engine.
#[derive(Debug, Serialize)]
struct Done {
    replica: u16,
    /// `None`: it worked.
    error: Option<String>,
}

pub(super) async fn list(State(service): State<Arc<Service>>) -> Json<Vec<Listed>> {
    Json(service.replicas.all().iter().flat_map(|replica| replica.adapters_listed()).collect())
}

pub(super) async fn order(State(service): State<Arc<Service>>, Json(order): Json<Order>) -> Response {
    let mut done = Vec::new();
    for replica in service.replicas.all().iter() {
        let result = match order.action {
            Action::Load => replica.load_adapter(&service.client, &order.adapter).await,
            Action::Unload => replica.unload_adapter(&service.client, &order.adapter).await,
        };
        match result {
            Err(Error::NotAllowed(_)) => {}
            result => done.push(Done { replica: replica.index, error: result.err().map(|error| error.to_string()) }),
        }
    }
    let status = if done.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    (status, Json(done)).into_response()
}

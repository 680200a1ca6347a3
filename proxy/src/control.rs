//! What the command line asks a running proxy over the node's control socket: keys, so that a revocation holds at once,
//! the endpoint itself, for `dunlin chat`, and what it counts, for `dunlin top`.

use crate::{
    http::Door,
    keys::{Created, Error, Key, Keys},
};
use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{any, delete, get},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Body of `POST /keys`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// What the key is to be called in lists.
    #[serde(default)]
    pub name: String,
}

/// The routes. Whoever can open the socket owns the proxy, so nothing more is asked: `owner` answers without a key.
pub(crate) fn routes(keys: Keys, owner: Arc<Door>) -> Router {
    let page = {
        let owner = owner.clone();
        // Not asked through the endpoint: looking at the counts must not change them.
        move || async move { owner.metrics_page() }
    };
    let ask = move |request: Request| async move { owner.answer(request, None).await.map(Body::new) };
    Router::new()
        .route("/keys", get(list).post(create))
        .route("/keys/{id}", delete(revoke))
        .with_state(keys)
        .route("/metrics", get(page))
        .route("/v1/{*path}", any(ask))
}

async fn list(State(keys): State<Keys>) -> Result<Json<Vec<Key>>, Failed> {
    blocking(move || keys.list()).await.map(Json)
}

async fn create(State(keys): State<Keys>, Json(asked): Json<Create>) -> Result<(StatusCode, Json<Created>), Failed> {
    let created = blocking(move || keys.create(&asked.name)).await?;
    tracing::info!(id = created.about.id, "key created");
    Ok((StatusCode::CREATED, Json(created)))
}

async fn revoke(State(keys): State<Keys>, Path(id): Path<String>) -> Result<Json<Key>, Failed> {
    let key = blocking(move || keys.revoke(&id)).await?;
    tracing::info!(id = key.id, "key revoked");
    Ok(Json(key))
}

/// SQLite waits for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Failed> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| Failed(Some(error))),
        Err(_) => Err(Failed(None)),
    }
}

/// `None`: the process is ending.
struct Failed(Option<Error>);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let (status, message) = match self.0 {
            Some(error @ Error::Unknown(_)) => (StatusCode::NOT_FOUND, error.to_string()),
            Some(error @ Error::Name) => (StatusCode::BAD_REQUEST, error.to_string()),
            Some(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            None => (StatusCode::SERVICE_UNAVAILABLE, "the proxy is ending".to_owned()),
        };
        (status, Json(serde_json::json!({"error": {"message": message}}))).into_response()
    }
}

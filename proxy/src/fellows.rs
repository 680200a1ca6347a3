//! What proxies ask each other on the hop. The node wants its routes before there is a proxy to answer them, so these
//! are given to the one first and to the other later.

use crate::{
    keys::sync::{self, Keeper},
    limits::{self as shared, Limits},
    usage::{self, Usage},
};
use axum::{
    Extension, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    response::{IntoResponse, Response},
    routing::post,
};
use dunlin_node::hop::Caller;
use dunlin_protocol::limits;
use http::StatusCode;
use std::sync::{Arc, OnceLock};

/// The answering part of one process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Fellows(Arc<Parts>);

#[derive(Default)]
struct Parts {
    /// `None`: this process keeps none.
    keeper: OnceLock<Option<Keeper>>,
    meters: OnceLock<Option<(Limits, Usage)>>,
}

impl Fellows {
    /// The routes for the node.
    pub fn router(&self) -> Router {
        Router::new()
            .route(sync::PATH, post(keys))
            .route(shared::PATH, post(leases))
            .route(usage::PATH, post(rows))
            .layer(DefaultBodyLimit::max(limits::KEY_MESSAGE_BYTES))
            .with_state(self.clone())
    }

    /// From now on questions about keys are answered.
    pub fn keep(&self, keeper: Keeper) {
        // A second one would be this process's as well.
        let _ = self.0.keeper.set(Some(keeper));
    }

    /// From now on questions about limits and usage are answered; `None`: with that there are none here.
    pub(crate) fn meter(&self, meters: Option<(Limits, Usage)>) {
        let _ = self.0.meters.set(meters);
    }

    /// The same of what is for proxies only.
    pub fn count_nothing(&self) {
        self.meter(None);
    }

    /// From now on questions are answered with that nobody answers them here.
    pub fn keep_nothing(&self) {
        let _ = self.0.keeper.set(None);
        self.count_nothing();
    }
}

async fn keys(State(fellows): State<Fellows>, body: Bytes) -> Response {
    match fellows.0.keeper.get() {
        Some(Some(keeper)) => keeper.answer(body).await,
        Some(None) => StatusCode::NOT_FOUND.into_response(),
        // 404 would say for a while that there never is one.
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn leases(State(fellows): State<Fellows>, Extension(caller): Extension<Caller>, body: Bytes) -> Response {
    match fellows.0.meters.get() {
        Some(Some((limits, _))) => limits.answer(&caller, &body),
        Some(None) => StatusCode::NOT_FOUND.into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn rows(State(fellows): State<Fellows>, body: Bytes) -> Response {
    match fellows.0.meters.get() {
        Some(Some((_, usage))) => usage.answer(body).await,
        Some(None) => StatusCode::NOT_FOUND.into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

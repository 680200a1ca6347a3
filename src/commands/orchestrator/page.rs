//! `/metrics` and `/health` of an orchestrator.

use anyhow::{Context, Result};
use axum::{Router, http::header::CONTENT_TYPE, routing::get};
use dunlin_k8s::controller::Metrics;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// As Prometheus takes it.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("metrics can't be shown at {address}; choose another address with --metrics-http"))
}

/// Answers until `stop`.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, stop: CancellationToken) {
    let shown = move || async move { ([(CONTENT_TYPE, TEXT)], metrics.text()) };
    let routes = Router::new().route("/metrics", get(shown)).route("/health", get(|| async { "well\n" }));
    if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await {
        tracing::warn!(%error, "metrics are not shown any more");
    }
}

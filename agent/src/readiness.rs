//! Whether this agent serves, for the kubelet: `GET /ready` on a port that carries nothing else.

use crate::{
    replica::status::Status,
    small_http::{self, Answer},
};
use http::StatusCode;
use tokio::net::TcpListener;

/// Answers until dropped: 200 while an engine serves, else 503 and why.
pub(crate) async fn serve(listener: TcpListener, status: Status) {
    small_http::serve(listener, "/ready", move || answer(&status)).await;
}

fn answer(status: &Status) -> Answer {
    let (status, text) = if status.any_ready() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        let reasons = status.engines().into_iter().map(|engine| {
            let state = serde_json::to_value(engine.state).unwrap_or_default();
            let state = state.as_str().unwrap_or("not ready").to_owned();
            engine.reason.map_or(state.clone(), |reason| format!("{state}: {reason}"))
        });
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", reasons.collect::<Vec<_>>().join("\n")))
    };
    Answer { status, kind: "text/plain", text }
}

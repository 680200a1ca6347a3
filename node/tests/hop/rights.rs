//! Whom the hop refuses: asked anew for each request on a connection that stays.

use crate::fixture::{Options, Pair, Wire, pair};
use axum::{Router, routing::post};
use dunlin_protocol::id::Role;
use http_body_util::BodyExt;

crate::over_tcp_and_quic!(role_missing, unknown_path, revoked_between_requests, expired_between_requests);

async fn connected(wire: Wire) -> Pair {
    let routes = Router::new()
        .route("/engine/v1/chat/completions", post(async || "inference"))
        .route("/mesh/info", post(async || "info"))
        .route("/mesh/logs/0", post(async || "logs"));
    pair(Options::new(wire, routes)).await
}

/// Status and OpenAI's error code, or the body of a good answer.
async fn ask(pair: &Pair, path: &str) -> (u16, String) {
    let response = pair.get(path).await;
    let status = response.status().as_u16();
    let refused = response.headers().contains_key("x-dunlin-fault");
    let retry_safe = response.headers().get("x-dunlin-retry-safe").is_some_and(|value| value == "yes");
    assert_eq!(refused, retry_safe);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    if !refused {
        return (status, String::from_utf8(body.to_vec()).unwrap());
    }
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let error = &json["error"];
    assert!(error["message"].is_string() && error["type"].is_string());
    (status, error["code"].as_str().unwrap().to_owned())
}

fn answer(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

async fn role_missing(wire: Wire) {
    let pair = connected(wire).await;
    pair.server.admit(pair.client.peer, [Role::Agent], u64::MAX);
    assert_eq!(ask(&pair, "/engine/v1/chat/completions").await, answer(403, "role_missing"));
    assert_eq!(ask(&pair, "/mesh/logs/0").await, answer(403, "role_missing"));
    assert_eq!(ask(&pair, "/mesh/info").await, answer(200, "info"));
    pair.server.admit(pair.client.peer, [Role::Proxy], u64::MAX);
    assert_eq!(ask(&pair, "/engine/v1/chat/completions").await, answer(200, "inference"));
    assert_eq!(ask(&pair, "/mesh/logs/0").await, answer(200, "logs"));
    assert_eq!(pair.client.hop.links_opened(), 1);
}

async fn unknown_path(wire: Wire) {
    let pair = connected(wire).await;
    for path in ["/", "/engine", "/v1/chat/completions", "/mesh/infos", "/mesh/../engine/v1/chat/completions"] {
        assert_eq!(ask(&pair, path).await, answer(404, "unknown_path"), "{path}");
    }
    assert_eq!(ask(&pair, "/mesh/info").await, answer(200, "info"));
}

async fn revoked_between_requests(wire: Wire) {
    let pair = connected(wire).await;
    assert_eq!(ask(&pair, "/engine/v1/chat/completions").await, answer(200, "inference"));
    pair.server.revoke(pair.client.peer);
    assert_eq!(ask(&pair, "/engine/v1/chat/completions").await, answer(403, "revoked"));
    assert_eq!(ask(&pair, "/mesh/info").await, answer(403, "revoked"));
    assert_eq!(ask(&pair, "/nothing").await, answer(403, "revoked"));
    assert_eq!(pair.client.hop.links_opened(), 1);
}

async fn expired_between_requests(wire: Wire) {
    let pair = connected(wire).await;
    assert_eq!(ask(&pair, "/mesh/info").await, answer(200, "info"));
    pair.server.admit(pair.client.peer, [Role::Proxy], 1_700_000_000);
    assert_eq!(ask(&pair, "/mesh/info").await, answer(403, "certificate_expired"));
}

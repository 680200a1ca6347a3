//! Who gets in.

use crate::{
    engine::{Engine, Play},
    mesh::Mesh,
};
use axum::body::Body;
use dunlin_protocol::hop::Fault;
use dunlin_proxy::keys::{Limits, NewKey};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use tower::ServiceExt;

#[tokio::test]
async fn only_keys_in_force_get_in() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let made = mesh.keys.create("second").unwrap();
    for wrong in [None, Some("sk-dunlin-aaaaaaaa-bbbb"), Some("other"), Some(&made.key[..made.key.len() - 1])] {
        let answer = mesh.client_with(wrong).chat("m").await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::UNAUTHORIZED, "invalid_api_key"), "{wrong:?}");
        assert!(wrong.is_none_or(|key| !answer.text().contains(key)), "the key is not repeated");
        assert_eq!(mesh.client_with(wrong).get("/v1/models").await.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(engine.asked(), 0);
    let client = mesh.client_with(Some(&made.key));
    assert_eq!(client.chat("m").await.status, StatusCode::OK);
    let mut as_anthropic = mesh.client_with(None).request(Method::POST, "/v1/messages", r#"{"model":"m"}"#);
    as_anthropic.headers_mut().insert("x-api-key", made.key.parse().unwrap());
    assert_eq!(client.send(as_anthropic).await.status, StatusCode::OK);
    for open in ["/health", "/ready", "/metrics"] {
        assert_eq!(mesh.client_with(None).get(open).await.status, StatusCode::OK, "{open}");
    }
    assert!(mesh.metric("dunlin_proxy_auth_failures_total").await >= 8.0);
}

#[tokio::test]
async fn a_revocation_over_the_control_routes_holds_at_once() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let control = |method: Method, path: String, body: &'static str| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let router = mesh.control.clone();
        async move {
            let answer = router.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
            let status = answer.status();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        }
    };
    let (status, made) = control(Method::POST, "/keys".into(), r#"{"name":"editor"}"#).await;
    assert_eq!(status, StatusCode::CREATED);
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    assert_eq!(mesh.client_with(Some(key)).chat("m").await.status, StatusCode::OK);
    let (_, list) = control(Method::GET, "/keys".into(), "").await;
    assert!(list.as_array().unwrap().iter().any(|listed| listed["id"] == id && listed["name"] == "editor"));
    assert!(!list.to_string().contains(key), "shown once only");
    assert_eq!(control(Method::DELETE, format!("/keys/{id}"), "").await.0, StatusCode::OK);
    let answer = mesh.client_with(Some(key)).chat("m").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    assert!(answer.text().contains("revoked"), "{}", answer.text());
    assert_eq!(control(Method::DELETE, "/keys/nobody".into(), "").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_keys_only_requests_to_this_machine_are_taken() {
    let mesh = Mesh::with(|config| config.no_auth = true).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let client = mesh.client_with(None);
    assert_eq!(client.chat("m").await.status, StatusCode::OK);
    for (name, value) in [("host", "evil.test"), ("origin", "http://evil.test")] {
        for path in ["/v1/models", "/metrics"] {
            let mut request = client.request(Method::GET, path, "");
            request.headers_mut().insert(name, value.parse().unwrap());
            let answer = client.send(request).await;
            assert_eq!((answer.status, answer.code().as_str()), (StatusCode::FORBIDDEN, "host_not_allowed"), "{name}");
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
}

/// A request that failed somewhere before it was answered is one request.
#[tokio::test]
async fn a_request_counts_once_however_many_replicas_are_asked() {
    const LIMIT: u32 = 12;
    let mesh = Mesh::new().await;
    let (bad, good) = (Engine::new(Play::Refuse(Fault::Agent)), Engine::saying("{}"));
    let (_bad, _good) = (mesh.agent(&["m"], 4, &bad).await, mesh.agent(&["m"], 4, &good).await);
    let limits = Limits { requests_per_minute: Some(LIMIT), ..Limits::default() };
    let key = mesh.keys.make(NewKey { limits, ..NewKey::default() }).unwrap().0.key;
    let client = mesh.client_with(Some(&key));
    for left in (0..LIMIT).rev() {
        let answer = client.chat("m").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), left.to_string());
    }
    assert!(bad.asked() > 0, "the scene: nobody was asked in vain");
    assert_eq!(client.chat("m").await.status, StatusCode::TOO_MANY_REQUESTS);
}

//! What goes through unchanged, and what the front door answers itself.

use crate::{
    client::CHAT,
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use http::{Method, StatusCode};

#[tokio::test]
async fn bodies_pass_byte_for_byte_both_ways() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{ \"odd\" :\t[1e400, \"\\ud800\"] }\n");
    let agent = mesh.agent(&["Qwen/a b%é"], 4, &engine).await;
    let odd = "\u{feff}{ \"future\": 1e999,\"model\" : \"Qwen/a b%\\u00e9\" , \"x\":\"\\ud800\", \"x\":2 }\r\n";
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses?a=%2F&b",
        "/v1/messages",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/pooling",
        "/classify",
        "/v1/moderations",
        "/v1/messages/count_tokens",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/apply-template",
        "/tokenize",
        "/detokenize",
    ] {
        let answer = mesh.client().post(path, odd).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        assert_eq!(answer.text(), "{ \"odd\" :\t[1e400, \"\\ud800\"] }\n");
        assert_eq!(answer.header("x-dunlin-replica"), agent.replica().to_string());
        assert_eq!(answer.header("x-engine"), "yes");
        assert!(answer.header("x-request-id").starts_with("req-"));
        engine.last(|asked| {
            assert_eq!(asked.path, format!("/engine{path}"));
            assert_eq!(asked.body, odd.as_bytes());
        });
    }
}

#[tokio::test]
async fn the_key_does_not_travel_and_the_request_id_does() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let mut request = mesh.client().request(Method::POST, CHAT, r#"{"model":"m"}"#);
    for (name, value) in [("x-request-id", "mine-1"), ("traceparent", "00-aa-bb-01"), ("x-dunlin-model", "other")] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let answer = mesh.client().send(request).await;
    assert_eq!(answer.header("x-request-id"), "mine-1");
    engine.last(|asked| {
        assert_eq!(asked.headers["x-request-id"], "mine-1");
        assert_eq!(asked.headers["traceparent"], "00-aa-bb-01");
        assert_eq!(asked.headers["x-dunlin-model"], "m");
        assert_eq!(asked.headers["x-dunlin-replica-index"], "0");
        let all = format!("{:?}", asked.headers);
        assert!(!all.contains("sk-dunlin") && !asked.headers.contains_key("authorization"), "{all}");
    });
}

/// As `curl -d` sends it, and who names nothing at all.
#[tokio::test]
async fn what_is_read_as_json_is_called_so() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    for named in [Some("application/x-www-form-urlencoded"), None] {
        let mut request = mesh.client().request(Method::POST, CHAT, r#"{"model":"m"}"#);
        request.headers_mut().remove("content-type");
        if let Some(named) = named {
            request.headers_mut().insert("content-type", named.parse().unwrap());
        }
        assert_eq!(mesh.client().send(request).await.status, StatusCode::OK);
        engine.last(|asked| {
            let kinds: Vec<_> = asked.headers.get_all("content-type").iter().collect();
            assert_eq!(kinds, ["application/json"]);
        });
    }
}

#[tokio::test]
async fn an_engines_client_errors_pass_untouched_and_once() {
    let mesh = Mesh::new().await;
    let body = Bytes::from_static(b"{ \"error\":{\"message\":\"no\",\"odd\" :1} }");
    let engine = Engine::new(Play::Say(StatusCode::UNPROCESSABLE_ENTITY, "application/json", body.clone()));
    let (_a, _b) = (mesh.agent(&["m"], 4, &engine).await, mesh.agent(&["m"], 4, &engine).await);
    let answer = mesh.client().chat("m").await;
    assert_eq!((answer.status, answer.body), (StatusCode::UNPROCESSABLE_ENTITY, body));
    assert_eq!(engine.asked(), 1);
    // A plain 500 is the engine's answer too: it may have to do with the request, and costs what the request cost.
    engine.play(Play::Say(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Bytes::from_static(b"boom")));
    let answer = mesh.client().chat("m").await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["message"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &"boom".into())
    );
    assert_eq!(engine.asked(), 2);
}

#[tokio::test]
async fn models_are_listed_with_slashes_and_found_by_id() {
    let mesh = Mesh::new().await;
    let client = mesh.client();
    assert_eq!(client.get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let engine = Engine::saying("{}");
    let _a = mesh.agent(&["Qwen/Qwen3-8B", "lora-1"], 4, &engine).await;
    let _b = mesh.agent(&["Qwen/Qwen3-8B"], 4, &engine).await;
    let list = client.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["Qwen/Qwen3-8B", "lora-1"]));
    for path in ["/v1/models/Qwen/Qwen3-8B", "/v1/models/Qwen%2FQwen3-8B"] {
        assert_eq!(client.get(path).await.json()["id"], "Qwen/Qwen3-8B");
    }
    let missing = client.get("/v1/models/no/such").await;
    assert_eq!((missing.status, missing.code().as_str()), (StatusCode::NOT_FOUND, "model_not_found"));
    assert_eq!(client.get("/ready").await.status, StatusCode::OK);
    let head = client.send(client.request(Method::HEAD, "/v1/models", "")).await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn what_cannot_be_served_is_said_in_openais_shape() {
    let mesh = Mesh::new().await;
    let client = mesh.client();
    let unknown = client.chat("no-such-model").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (StatusCode::NOT_FOUND, "model_not_found"));
    assert_eq!(unknown.json()["error"]["param"], "model");
    // That it was not found is remembered, until somebody serves it.
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["no-such-model"], 4, &engine).await;
    assert_eq!(client.chat("no-such-model").await.status, StatusCode::OK);
    let cases = [
        (r#"{"messages":[]}"#, "invalid_value", "model"),
        (r#"{"model":"m","model":"m"}"#, "invalid_value", "more than once"),
        (r#"{"model":"m","messages":[}"#, "invalid_json", "line 1, column 26"),
        ("", "invalid_json", "no body"),
    ];
    for (body, code, says) in cases {
        let answer = client.post(CHAT, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, code), "{body}");
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    assert_eq!(client.get(CHAT).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(client.get(CHAT).await.header("allow"), "POST, OPTIONS");
    assert_eq!(client.post("/v1/nothing", "{}").await.status, StatusCode::NOT_FOUND);
    let mut zipped = client.request(Method::POST, CHAT, "x");
    zipped.headers_mut().insert("content-encoding", "br".parse().unwrap());
    assert_eq!(client.send(zipped).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn browsers_get_their_preflight_without_a_key() {
    let mesh = Mesh::new().await;
    let client = mesh.client_with(None);
    let mut asked = client.request(Method::OPTIONS, CHAT, "");
    for (name, value) in [("origin", "https://app.test"), ("access-control-request-headers", "authorization")] {
        asked.headers_mut().insert(name, value.parse().unwrap());
    }
    let answer = client.send(asked).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(answer.header("access-control-allow-headers"), "authorization");
}

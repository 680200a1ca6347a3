//! Aliases, models that stand in for others, and words about names that nobody has.

use crate::{
    client::CHAT,
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use dunlin_protocol::id::ModelId;
use dunlin_proxy::names::Names;
use http::StatusCode;

fn id(name: &str) -> ModelId {
    ModelId::new(name).unwrap()
}

async fn mesh() -> Mesh {
    let aliases = [(id("gpt-4o"), id("big")), (id("nobody"), id("gone"))].into();
    let fallbacks = [(id("big"), vec![id("gone"), id("small")]), (id("gone"), vec![id("also-gone")])].into();
    let names = Names::new(aliases, fallbacks).unwrap();
    Mesh::with(move |config| {
        config.names = names;
        config.hold = std::time::Duration::from_millis(300);
    })
    .await
}

#[tokio::test]
async fn an_alias_is_written_over_and_everything_else_stays() {
    let mesh = mesh().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["big"], 4, &engine).await;
    let answer = mesh.client().post(CHAT, "{ \"x\":1e999,\"model\" : \"gpt-4o\" ,\"y\":\"gpt-4o\" }\n").await;
    assert_eq!((answer.status, answer.header("x-dunlin-model")), (StatusCode::OK, "big"));
    engine.last(|asked| {
        assert_eq!(asked.body, "{ \"x\":1e999,\"model\" : \"big\" ,\"y\":\"gpt-4o\" }\n");
        assert_eq!(asked.headers["x-dunlin-model"], "big");
    });
    // The place at which the usage is asked for moves along.
    mesh.client().post(CHAT, r#"{"model":"gpt-4o","stream":true,"stream_options":null}"#).await;
    engine.last(|asked| assert_eq!(asked.headers["x-dunlin-ask-usage"], "46 4"));
    let listed = mesh.client().get("/v1/models").await.json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["big", "gpt-4o"]);
    assert_eq!(mesh.client().get("/v1/models/gpt-4o").await.json()["root"], "big");
    let direct = mesh.client().chat("big").await;
    assert!(!direct.headers.contains_key("x-dunlin-model"));
}

#[tokio::test]
async fn another_model_stands_in_while_one_is_down_or_fails() {
    let mesh = mesh().await;
    let (big, small) = (Engine::saying("{}"), Engine::saying("{}"));
    let _small = mesh.agent(&["small"], 4, &small).await;
    for model in ["big", "gpt-4o"] {
        let answer = mesh.client().chat(model).await;
        assert_eq!((answer.status, answer.header("x-dunlin-model")), (StatusCode::OK, "small"), "{}", answer.text());
        small.last(|asked| assert_eq!(asked.body, r#"{"model":"small","messages":[]}"#));
    }
    let _big = mesh.agent(&["big"], 4, &big).await;
    assert!(!mesh.client().chat("big").await.headers.contains_key("x-dunlin-model"));
    let html = Bytes::from_static(b"<h1>Bad Gateway</h1>");
    big.play(Play::Say(StatusCode::BAD_GATEWAY, "text/html", html));
    assert_eq!(mesh.client().stream("big").await.header("x-dunlin-model"), "small");
    // What the request is to blame for is nobody else's to answer.
    big.play(Play::Say(StatusCode::BAD_REQUEST, "text/plain", Bytes::from_static(b"no")));
    assert_eq!(mesh.client().chat("big").await.status, StatusCode::BAD_REQUEST);
    // Where nobody stands in either, it is told of the model that was asked for.
    let gone = mesh.client().chat("nobody").await;
    assert_eq!((gone.status, gone.code().as_str()), (StatusCode::NOT_FOUND, "model_not_found"));
    assert!(gone.text().contains("`gone`"), "{}", gone.text());
}

#[tokio::test]
async fn who_mistypes_a_name_is_told_the_right_one() {
    let mesh = mesh().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["Qwen/Qwen3-8B"], 4, &engine).await;
    for said in [
        mesh.client().chat("qwen3-8b").await,
        mesh.client().get("/v1/models/Qwen/Qwen3_8B").await,
        mesh.client().post("/v1/messages", r#"{"model":"Qwen/Qwen-8B"}"#).await,
    ] {
        assert_eq!(said.status, StatusCode::NOT_FOUND);
        assert!(said.text().contains("did you mean `Qwen/Qwen3-8B`?"), "{}", said.text());
    }
}

#[tokio::test]
async fn engines_errors_have_the_shape_that_clients_look_for() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Say(StatusCode::OK, "text/plain", Bytes::new()));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    for (status, kind, body, message) in [
        (
            500,
            "text/plain; charset=utf-8",
            "Internal Server Error",
            "the engine of `m` answered 500 Internal Server Error and did not say why",
        ),
        (
            422,
            "application/json",
            r#"{"detail":[{"loc":["body","file"],"msg":"Field required"}]}"#,
            "file: Field required",
        ),
        (404, "application/json", r#"{"detail":"Not Found"}"#, "the engine of `m` does not offer /v1/chat/completions"),
        (400, "application/json", r#"{"object":"error","message":"at /usr/lib/x/y.py","code":400}"#, "at y.py"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        engine.play(Play::Say(status, kind, Bytes::from_static(body.as_bytes())));
        for answer in [mesh.client().chat("m").await, mesh.client().stream("m").await] {
            assert_eq!((answer.status, answer.header("content-type")), (status, "application/json"));
            assert_eq!(answer.json()["error"]["message"], message);
            assert!(answer.json()["error"]["type"].is_string());
        }
    }
    // One without end is cut.
    engine.play(Play::Say(StatusCode::BAD_REQUEST, "text/plain", Bytes::from(vec![b'x'; 3 << 20])));
    assert!(mesh.client().chat("m").await.body.len() < 20_000);
}

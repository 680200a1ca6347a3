//! The endpoint byte by byte: versions of HTTP, and requests that two servers in a row might read in two ways.

use crate::{
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use http::StatusCode;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const BODY: &str = r#"{"model":"m"}"#;

/// Everything that comes back on one connection until it closes, or nothing more comes.
async fn exchange(mesh: &Mesh, pieces: &[&str]) -> String {
    let mut socket = TcpStream::connect(mesh.endpoint).await.unwrap();
    let mut answer = Vec::new();
    for piece in pieces {
        // The other side may have hung up already.
        let _ = socket.write_all(piece.as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut read = [0; 4096];
    while let Ok(Ok(size @ 1..)) = timeout(Duration::from_millis(700), socket.read(&mut read)).await {
        answer.extend_from_slice(&read[..size]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A chat with these further lines in its head.
fn chat(mesh: &Mesh, lines: &[&str], body: &str) -> String {
    let key = &mesh.key;
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{lines}\r\n{body}")
}

async fn with_engine() -> (Mesh, Engine, crate::mesh::Agent) {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let agent = mesh.agent(&["m"], 4, &engine).await;
    (mesh, engine, agent)
}

fn statuses(answer: &str) -> Vec<&str> {
    // An answer may begin right behind the body of the one before, which may speak of HTTP itself.
    let statuses = answer.match_indices("HTTP/1.").filter_map(|(at, _)| answer.get(at + 9..at + 12));
    statuses.filter(|status| status.bytes().all(|byte| byte.is_ascii_digit())).collect()
}

#[tokio::test]
async fn old_and_new_ways_of_http_are_understood() {
    let (mesh, engine, _agent) = with_engine().await;
    let length = format!("content-length: {}", BODY.len());
    let answer = exchange(&mesh, &[&chat(&mesh, &[&length], BODY).replace("HTTP/1.1", "HTTP/1.0")]).await;
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(!answer.to_lowercase().contains("transfer-encoding"), "{answer}");
    // In chunks, with an extension and a trailer.
    let chunked = format!("4;x=y\r\n{}\r\n9\r\n{}\r\n0\r\nx-late: 1\r\n\r\n", &BODY[..4], &BODY[4..]);
    let answer = exchange(&mesh, &[&chat(&mesh, &["transfer-encoding: chunked", "connection: close"], &chunked)]).await;
    assert_eq!(statuses(&answer), ["200"], "{answer}");
    engine.last(|asked| assert!(asked.body == BODY && !asked.headers.contains_key("x-late")));
    // The client waits for the word to go on, and gets none where its key is wrong.
    let expect = chat(&mesh, &[&length, "expect: 100-continue", "connection: close"], "");
    let answer = exchange(&mesh, &[&expect, BODY]).await;
    assert_eq!(statuses(&answer), ["100", "200"], "{answer}");
    let answer = exchange(&mesh, &[&expect.replace(&mesh.key, "sk-no"), BODY]).await;
    assert_eq!(statuses(&answer), ["401"], "{answer}");
    let head = format!(
        "HEAD /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        mesh.key
    );
    let answer = exchange(&mesh, &[&head]).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    // A later request on the same connection.
    let two = chat(&mesh, &[&length], BODY) + &chat(&mesh, &[&length, "connection: close"], BODY);
    assert_eq!(statuses(&exchange(&mesh, &[&two]).await), ["200", "200"]);
}

/// Where a request ends must not be read in two ways: what follows would be another client's request to a server behind.
#[tokio::test]
async fn no_request_hides_in_another() {
    let (mesh, engine, _agent) = with_engine().await;
    let hidden = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    let length = format!("content-length: {}", BODY.len());
    let chunked = format!("d\r\n{BODY}\r\n0\r\n\r\n");
    for (lines, body) in [
        // Both lengths: the chunks count, as RFC 9112 has it, and the connection ends; or it is refused.
        (vec!["content-length: 4", "transfer-encoding: chunked"], chunked.clone()),
        (vec!["transfer-encoding: chunked", "content-length: 4"], chunked.clone()),
        (vec!["content-length: 4", "content-length: 13"], BODY.to_owned()),
        (vec!["content-length: 13, 4"], BODY.to_owned()),
        (vec!["content-length: +13"], BODY.to_owned()),
        (vec!["content-length: 0x0d"], BODY.to_owned()),
        (vec!["content-length: -1"], BODY.to_owned()),
        (vec!["transfer-encoding: xchunked"], chunked.clone()),
        (vec!["transfer-encoding: chunked, identity"], chunked.clone()),
        (vec!["transfer-encoding : chunked"], chunked.clone()),
        (vec![" transfer-encoding: chunked"], chunked.clone()),
        (vec!["transfer-encoding: chunked"], format!("d \n{BODY}\r\n0\r\n\r\n")),
        (vec!["transfer-encoding: chunked"], format!("fffffffffffffffff\r\n{BODY}\r\n0\r\n\r\n")),
        (vec!["transfer-encoding: chunked"], format!("-d\r\n{BODY}\r\n0\r\n\r\n")),
    ] {
        let before = engine.asked();
        let answer = exchange(&mesh, &[&chat(&mesh, &lines, &(body + hidden))]).await;
        let statuses = statuses(&answer);
        // One answer, and never the hidden request's, which has no key: 401.
        assert!(statuses.len() <= 1 && statuses != ["401"], "{lines:?}: {answer}");
        if engine.asked() > before {
            engine.last(|asked| assert_eq!(asked.body, BODY, "{lines:?}"));
        }
        assert!(engine.asked() <= before + 1);
    }
    // What the engine gets has one length: the hop's.
    exchange(&mesh, &[&chat(&mesh, &[&length, "connection: close"], BODY)]).await;
    engine.last(|asked| {
        assert_eq!(asked.headers.get_all("content-length").iter().count(), 1);
        assert!(!asked.headers.contains_key("transfer-encoding"));
    });
}

#[tokio::test]
async fn no_header_is_smuggled_in_either_direction() {
    let (mesh, engine, _agent) = with_engine().await;
    let length = format!("content-length: {}", BODY.len());
    for line in ["x-a: 1\nx-dunlin-replica-index: 7", "x-a: 1\rx-b: 2", "x-a: a\0b", "x a: 1", ": 1", "x-a\u{e9}: 1"] {
        let before = engine.asked();
        let answer = exchange(&mesh, &[&chat(&mesh, &[&length, line, "connection: close"], BODY)]).await;
        // A bare LF ends a line for hyper too; what follows it is a header like any other, and not one of ours.
        if engine.asked() > before {
            engine.last(|asked| assert_eq!(asked.headers["x-dunlin-replica-index"], "0", "{line:?}: {answer}"));
        } else {
            assert_eq!(statuses(&answer), ["400"], "{line:?}: {answer}");
        }
    }
    // Everything of the mesh's own, and the key in each of its places.
    let own = [
        length.as_str(),
        "x-dunlin-model: other",
        "x-dunlin-replica-index: 7",
        "x-dunlin-line: 0 0",
        "x-dunlin-usage: 1 1 1",
        "x-dunlin-ask-usage: 1 0",
        "X-Dunlin-Fault: full",
        "x-api-key: sk-dunlin-secret",
        "cookie: a=b",
        "proxy-authorization: Basic x",
        "connection: close, x-private",
        "x-private: 1",
        "te: trailers",
        "upgrade: h2c",
    ];
    let answer = exchange(&mesh, &[&chat(&mesh, &own, BODY)]).await;
    assert_eq!(statuses(&answer), ["200"], "{answer}");
    engine.last(|asked| {
        let said = format!("{:?}", asked.headers);
        assert_eq!(
            (&asked.headers["x-dunlin-model"], &asked.headers["x-dunlin-replica-index"]),
            (&"m".parse().unwrap(), &"0".parse().unwrap())
        );
        for gone in [
            "sk-dunlin",
            "secret",
            "cookie",
            "proxy-authorization",
            "x-private",
            "\"te\"",
            "upgrade",
            "x-dunlin-usage",
            "x-dunlin-fault",
        ] {
            assert!(!said.contains(gone), "{gone}: {said}");
        }
        assert!(!asked.headers.contains_key("x-dunlin-ask-usage"), "it does not stream: {said}");
    });
    // Two of a kind are no other kind.
    let twice =
        exchange(&mesh, &[&chat(&mesh, &[&length, "authorization: Bearer sk-no", "connection: close"], BODY)]).await;
    assert_eq!(statuses(&twice).len(), 1);
}

#[tokio::test]
async fn too_much_of_a_head_is_refused_in_words() {
    let (mesh, engine, _agent) = with_engine().await;
    let length = format!("content-length: {}", BODY.len());
    let long = format!("x-long: {}", "y".repeat(40 << 10));
    let many: Vec<String> = (0..150).map(|n| format!("x-{n}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain([length.as_str()]).collect();
    for lines in [vec![length.as_str(), &long], many] {
        let answer = exchange(&mesh, &[&chat(&mesh, &lines, BODY)]).await;
        assert_eq!(statuses(&answer), ["431"], "{answer}");
        assert!(answer.contains("headers_too_large"), "{answer}");
    }
    let path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(70_000));
    let answer = exchange(&mesh, &[&path]).await;
    assert!(matches!(statuses(&answer)[..], ["414" | "431"]), "{answer}");
    assert_eq!(engine.asked(), 0);
}

#[tokio::test]
async fn a_path_is_what_it_says() {
    let (mesh, engine, _agent) = with_engine().await;
    for path in [
        "/v1/models/../chat/completions",
        "//v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions%00",
        "/v1/responses/..%2f..%2fmetrics",
        "/v1/responses/a%2fb",
        "/engine/v1/chat/completions",
        "/mesh/info",
        "/mesh/responses/resp_1",
    ] {
        let answer = mesh.client().post(path, BODY).await;
        assert!(
            matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED),
            "{path}: {}",
            answer.text()
        );
    }
    assert_eq!(engine.asked(), 0);
    // A question mark changes no endpoint, and reaches the engine as it is.
    assert_eq!(mesh.client().post("/v1/chat/completions?a=/../b", BODY).await.status, StatusCode::OK);
    engine.last(|asked| assert_eq!(asked.path, "/engine/v1/chat/completions?a=/../b"));
    // A slash at the end is not the engine's to make something of.
    assert_eq!(mesh.client().post("/v1/chat/completions/?a=b/", BODY).await.status, StatusCode::OK);
    engine.last(|asked| assert_eq!(asked.path, "/engine/v1/chat/completions?a=b/"));
    // A whole URL in the request line is what proxies are sent.
    let absolute = chat(&mesh, &["content-length: 13", "connection: close"], BODY)
        .replace("POST /v1", "POST http://elsewhere.test/v1");
    assert_eq!(statuses(&exchange(&mesh, &[&absolute]).await), ["200"]);
    engine.last(|asked| assert!(!format!("{:?}", asked.headers).contains("elsewhere")));
}

#[tokio::test]
async fn a_model_given_twice_is_refused_however_it_is_written() {
    let (mesh, engine, _agent) = with_engine().await;
    for body in [
        r#"{"model":"m","model":"m"}"#,
        r#"{"model":"m","mod\u0065l":"other"}"#,
        r#"{"\u006dodel":"other","model":"m"}"#,
        r#"{"model":"m","messages":[],"model":null}"#,
    ] {
        let answer = mesh.client().post("/v1/chat/completions", body).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_value"), "{body}");
    }
    assert_eq!(engine.asked(), 0);
}

/// What an engine says in its head stays in its head.
#[tokio::test]
async fn an_engine_cannot_write_past_its_answer() {
    let (mesh, engine, _agent) = with_engine().await;
    engine.play(Play::Say(
        StatusCode::OK,
        "application/json",
        Bytes::from_static(b"{}\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ));
    let length = format!("content-length: {}", BODY.len());
    // Where any kind of answer is passed on.
    let asked = chat(&mesh, &[&length], BODY).replace("/v1/chat/completions", "/v1/audio/speech");
    let two = asked + "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = exchange(&mesh, &[&two]).await;
    assert!(answer.contains("content-length: 44") && answer.ends_with(r#"{"status":"ok"}"#), "{answer}");
}

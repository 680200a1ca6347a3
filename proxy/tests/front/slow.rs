//! Clients that come byte by byte, or read so, and requests beyond what may be in flight.

use crate::{
    client::CHAT,
    engine::{Engine, Play},
    mesh::Mesh,
};
use http::StatusCode;
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

const DRIP: Duration = Duration::from_millis(40);

/// Sends `bytes` one by one; returns how long the other side took that, and what it said.
async fn drip(mesh: &Mesh, first: &str, bytes: &str) -> (Duration, String) {
    let stream = TcpStream::connect(mesh.endpoint).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    to.write_all(first.as_bytes()).await.unwrap();
    let since = Instant::now();
    let said = tokio::spawn(async move {
        let mut said = Vec::new();
        let _ = from.read_to_end(&mut said).await;
        (since.elapsed(), String::from_utf8_lossy(&said).into_owned())
    });
    for byte in bytes.as_bytes() {
        if said.is_finished() || to.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(DRIP).await;
    }
    said.await.unwrap()
}

#[tokio::test]
async fn heads_and_bodies_that_drip_are_cut_off() {
    let mesh = Mesh::with(|config| {
        config.head = Duration::from_millis(400);
        config.body_pause = Duration::from_millis(400);
    })
    .await;
    let (took, _) = drip(&mesh, "", &format!("POST {CHAT} HTTP/1.1\r\nx-slow: {}", "x".repeat(400))).await;
    assert!(took < Duration::from_secs(3), "a head may drip for {took:?}");
    let key = mesh.keys.create("").unwrap().key;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: 400\r\n\r\n");
    let (took, said) = drip(&mesh, &head, &" ".repeat(400)).await;
    assert!(took < Duration::from_secs(4), "a body may drip for {took:?}");
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("request_timeout"), "{said}");
}

/// Each holds its own buffers, and its replica's slot no longer than it stands still; others are served meanwhile.
#[tokio::test]
async fn readers_of_a_byte_a_second_are_cut_off_and_hinder_nobody() {
    const READERS: usize = 30;
    let mesh = Mesh::with(|config| config.stalled = Duration::from_millis(900)).await;
    let long: &'static str = Box::leak(format!("data: {}\n\n", "x".repeat(900_000)).into_boxed_str());
    let engine = Engine::new(Play::By(std::sync::Arc::new(move |asked, _| {
        if asked.body.windows(4).any(|word| word == b"slow") {
            return Play::Stream(vec![long; 64], Duration::from_millis(1), true);
        }
        Play::Say(StatusCode::OK, "application/json", bytes::Bytes::from_static(b"{}"))
    })));
    let _agent = mesh.agent(&["m"], 256, &engine).await;
    let key = mesh.keys.create("").unwrap().key;
    let body = r#"{"model":"m","stream":true,"messages":["slow"]}"#;
    let request =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut readers = Vec::new();
    for _ in 0..READERS {
        // Else the kernel takes megabytes for each before it stands still.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        let mut stream = socket.connect(mesh.endpoint).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        readers.push(tokio::spawn(async move {
            let mut byte = [0];
            while stream.read(&mut byte).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }));
    }
    mesh.until(|_| engine.now() == READERS).await;
    let since = Instant::now();
    while engine.now() > 0 {
        assert!(since.elapsed() < Duration::from_secs(15), "{} slots are still taken", engine.now());
        let asked = Instant::now();
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for reader in readers {
        reader.abort();
    }
}

#[tokio::test]
async fn requests_in_flight_are_bounded_and_counted_to_the_end_of_their_answers() {
    let mesh = Mesh::with(|config| config.requests = 2).await;
    let engine = Engine::new(Play::Stream(vec!["data: x\n\n"; 3], Duration::from_secs(60), true));
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    let client = mesh.client();
    let ask = |client: crate::client::Client| tokio::spawn(async move { client.stream("m").await });
    let held = [ask(client.clone()), ask(client.clone())];
    mesh.until(|_| engine.now() == 2).await;
    let refused = client.chat("m").await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "proxy_overloaded"));
    assert!(refused.headers.contains_key("retry-after") && refused.text().contains("in flight"), "{}", refused.text());
    assert_eq!(client.get("/health").await.status, StatusCode::OK);
    held.iter().for_each(tokio::task::JoinHandle::abort);
    mesh.until(|_| engine.now() == 0).await;
    engine.play(Play::Say(StatusCode::OK, "application/json", bytes::Bytes::from_static(b"{}")));
    let since = Instant::now();
    while client.chat("m").await.status != StatusCode::OK {
        assert!(since.elapsed() < Duration::from_secs(5), "the places were not given back");
    }
    for _ in 0..20 {
        assert_eq!(client.chat("m").await.status, StatusCode::OK);
    }
}

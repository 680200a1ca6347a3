//! Clients that send too much, too slowly, or not at all.

use crate::{
    client::{CHAT, read},
    engine::{Engine, Play},
    mesh::Mesh,
};
use http::StatusCode;
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

#[tokio::test]
async fn bodies_over_the_cap_are_refused_announced_or_not() {
    let mesh = Mesh::with(|config| config.body = 100_000).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = |size: usize| format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(size));
    let answer = mesh.client().post(CHAT, body(100_001)).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "request_too_large"));
    let chunked = format!("{:x}\r\n{}\r\n0\r\n\r\n", body(100_001).len(), body(100_001));
    let answer = raw(&mesh, "transfer-encoding: chunked", &chunked).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_eq!(mesh.client().post(CHAT, body(90_000)).await.status, StatusCode::OK);
    engine.last(|asked| assert_eq!(asked.body.len(), body(90_000).len()));
}

#[tokio::test]
async fn large_bodies_and_many_pieces_arrive_whole() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = format!(r#"{{"x":"{}","model":"m"}}"#, "é".repeat(4 << 20));
    assert_eq!(mesh.client().post(CHAT, body.clone()).await.status, StatusCode::OK);
    engine.last(|asked| assert!(asked.body == body.as_bytes()));
}

#[tokio::test]
async fn all_bodies_together_are_bounded() {
    let mesh = Mesh::with(|config| config.buffered = 100_000).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(150_000));
    let answer = mesh.client().post(CHAT, body).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "proxy_overloaded"));
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
}

/// Clients that stop in the middle of large bodies keep what they have sent in memory until they are given up. Whoever
/// has another key is served all the same.
#[tokio::test]
async fn bodies_that_stop_do_not_shut_others_out() {
    let mesh = Mesh::with(|config| config.buffered = 1_000_000).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let key = mesh.keys.create("").unwrap().key;
    let mut stopped = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: 200000\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // Refused ones hang up.
        let _ = stream.write_all(&[b' '; 190_000]).await;
        stopped.push(stream);
    }
    let fills = || async {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(300_000));
        mesh.client_with(Some(&key)).post(CHAT, body).await.status
    };
    let since = Instant::now();
    while fills().await != StatusCode::SERVICE_UNAVAILABLE {
        assert!(since.elapsed() < Duration::from_secs(10), "the memory is never full");
    }
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(100_000));
    assert_eq!(mesh.client().post(CHAT, body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn slow_heads_and_slow_bodies_are_cut_off() {
    let mesh = Mesh::with(|config| {
        config.head = Duration::from_millis(200);
        config.body_pause = Duration::from_millis(200);
    })
    .await;
    for begun in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM", "POST / HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        let since = Instant::now();
        let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begun:?} is still open after {:?}", since.elapsed());
    }
    let since = Instant::now();
    let answer = raw(&mesh, "content-length: 50", "{\"model\":").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(since.elapsed() < Duration::from_secs(4));
}

/// Whoever can connect could take all connections otherwise; between requests a client may rest for longer.
#[tokio::test]
async fn who_says_nothing_is_cut_off_sooner_than_who_has_asked() {
    let mesh = Mesh::with(|config| config.first_head = Duration::from_millis(300)).await;
    // The last: HTTP/2 with its settings, and never a request.
    for begun in ["", "GET / HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"] {
        let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begun:?} is still open");
    }
    let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 512];
        let read = stream.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "closed between requests");
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
}

/// A request that is sent in the moment in which its idle connection is closed is lost; half a head is nobody's request.
#[tokio::test]
async fn an_idle_connection_stays_for_longer_than_half_a_head() {
    let mesh = Mesh::with(|config| {
        config.head = Duration::from_millis(300);
        config.idle = Duration::from_millis(2500);
    })
    .await;
    let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = [0; 512];
        let read = stream.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "closed between requests");
    };
    ask(&mut stream).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    ask(&mut stream).await;
    stream.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
    let closed = tokio::time::timeout(Duration::from_millis(1200), stream.read(&mut [0; 64])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "half a head is still waited for: {closed:?}");

    let mut idle = TcpStream::connect(mesh.endpoint).await.unwrap();
    ask(&mut idle).await;
    let closed = tokio::time::timeout(Duration::from_secs(6), idle.read(&mut [0; 64])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "idle for ever: {closed:?}");
}

#[tokio::test]
async fn connections_are_bounded() {
    let mesh = Mesh::with(|config| config.connections = 2).await;
    let open = [TcpStream::connect(mesh.endpoint).await.unwrap(), TcpStream::connect(mesh.endpoint).await.unwrap()];
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut third = TcpStream::connect(mesh.endpoint).await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(1), third.read(&mut [0; 1])).await.expect("still open");
    assert!(matches!(read, Ok(0) | Err(_)));
    drop(open);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(mesh.client().get("/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn heads_that_the_hop_could_not_carry_are_refused() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let long = format!("x-long: {}\r\ncontent-length: 13", "x".repeat(40_000));
    let answer = raw(&mesh, &long, r#"{"model":"m"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let fits = format!("x-long: {}\r\ncontent-length: 13", "x".repeat(20_000));
    let answer = raw(&mesh, &fits, r#"{"model":"m"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// What never becomes a request is answered in the shape that SDKs read, too.
#[tokio::test]
async fn what_is_no_request_is_refused_with_an_error_object() {
    let mesh = Mesh::new().await;
    let long = "x".repeat(200_000);
    let many = "x-many: 1\r\n".repeat(150);
    for (head, status, code) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "invalid_http"),
        ("GET / HTTP/1.1\r\nbad header: x\r\n\r\n".to_owned(), 400, "invalid_http"),
        (format!("GET / HTTP/1.1\r\nx-long: {long}\r\n\r\n"), 431, "headers_too_large"),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431, "headers_too_large"),
        // hyper's buffer is full before it has seen the end of the line.
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), 431, "headers_too_large"),
    ] {
        let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer)).await;
        assert!(matches!(read, Ok(Ok(_))), "{read:?}: {answer}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["code"], code, "{answer}");
    }
}

/// Python's clients send the whole body before they read; what is refused meanwhile must be readable after.
#[tokio::test]
async fn a_refusal_is_readable_by_a_client_that_sends_first() {
    let mesh = Mesh::new().await;
    let body = "x".repeat(4_000_000);
    for _ in 0..5 {
        let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        for piece in body.as_bytes().chunks(200_000) {
            stream.write_all(piece).await.expect("closed while sending");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("reset before the answer");
        assert_eq!(&answer, b"HTTP/1.1 401");
    }
}

/// A client that stops reading must not keep the slot of a replica.
#[tokio::test]
async fn a_client_that_stops_reading_gives_the_slot_back() {
    let mesh = Mesh::with(|config| {
        config.stalled = Duration::from_millis(600);
        config.hold = Duration::from_secs(5);
    })
    .await;
    let long: &'static str = Box::leak(format!("data: {}\n\n", "x".repeat(900_000)).into_boxed_str());
    let endless = Play::Stream(vec![long; 64], Duration::from_millis(1), true);
    let engine = Engine::with_slots(1, endless.clone());
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let body = r#"{"model":"m","stream":true}"#;

    // HTTP/1: the socket fills.
    let mut unread = TcpStream::connect(mesh.endpoint).await.unwrap();
    unread.write_all(post(&mesh, body).as_bytes()).await.unwrap();
    served_after_a_stall(&mesh, &engine).await;
    drop(unread);

    // HTTP/2: the connection goes on, and the stream is given no room.
    engine.play(endless);
    let stream = TcpStream::connect(mesh.endpoint).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = mesh.client().request(http::Method::POST, CHAT, body);
    let unread = sender.send_request(request).await.unwrap();
    served_after_a_stall(&mesh, &engine).await;
    assert!(read(unread).await.broken);
    let request = mesh.client().request(http::Method::GET, "/health", "");
    assert_eq!(sender.send_request(request).await.unwrap().status(), StatusCode::OK, "other streams go on");
}

async fn served_after_a_stall(mesh: &Mesh, engine: &Engine) {
    mesh.until(|_| engine.now() == 1).await;
    engine.play(Play::Slow(Duration::from_millis(1)));
    let since = Instant::now();
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    assert!(since.elapsed() >= Duration::from_millis(300), "not stalled: {:?}", since.elapsed());
}

/// A slow client is no stalled one.
#[tokio::test]
async fn a_client_that_reads_slowly_gets_everything() {
    let mesh = Mesh::with(|config| config.stalled = Duration::from_secs(1)).await;
    let long: &'static str = Box::leak(format!("data: {}\n\n", "x".repeat(900_000)).into_boxed_str());
    let engine = Engine::new(Play::Stream([vec![long; 12], vec!["data: [DONE]\n\n"]].concat(), Duration::ZERO, true));
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let (mut stream, body) = (TcpStream::connect(mesh.endpoint).await.unwrap(), r#"{"model":"m","stream":true}"#);
    stream.write_all(post(&mesh, body).as_bytes()).await.unwrap();
    let (since, mut answer, mut piece) = (Instant::now(), Vec::new(), vec![0; 60_000]);
    while !answer.ends_with(b"0\r\n\r\n") {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "cut off after {} bytes and {:?}", answer.len(), since.elapsed());
        answer.extend_from_slice(&piece[..read]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(since.elapsed() > Duration::from_millis(1500), "{:?}", since.elapsed());
}

fn post(mesh: &Mesh, body: &str) -> String {
    let key = mesh.keys.create("").unwrap().key;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {}", body.len());
    format!("{head}\r\n\r\n{body}")
}

async fn raw(mesh: &Mesh, headers: &str, body: &str) -> String {
    let key = mesh.keys.create("").unwrap().key;
    let mut stream = TcpStream::connect(mesh.endpoint).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nconnection: close\r\n{headers}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

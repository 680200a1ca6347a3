//! Clients that mean harm: what they send costs little, is refused in words, and hinders nobody else.

use crate::{
    client::{CHAT, Client},
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    io::Write,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// What any of this may take, on a busy machine too.
const SOON: Duration = Duration::from_secs(10);

async fn served(mesh: &Mesh) {
    let asked = Instant::now();
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn http2(mesh: &Mesh) -> Sender {
    let socket = TcpStream::connect(mesh.endpoint).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// HTTP/2's rapid reset: each request costs its sender nothing, since it hangs up at once.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_and_hangs_up_again_and_again_hinders_nobody() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Slow(Duration::from_millis(200)));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    for _ in 0..4 {
        let sender = http2(&mesh).await;
        for _ in 0..500 {
            let mut sender = sender.clone();
            let asked = mesh.client().request(Method::POST, CHAT, r#"{"model":"m"}"#);
            // The connection may have been given up by then.
            let Ok(()) = sender.ready().await else { break };
            let answer = sender.send_request(asked);
            tokio::task::yield_now().await;
            drop(answer);
        }
    }
    engine.play(Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{}")));
    served(&mesh).await;
    let begun = Instant::now();
    while engine.now() > 0 {
        assert!(begun.elapsed() < SOON, "{} of them are still at the engine", engine.now());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What HTTP/2 leaves to its user: lengths that are not so, headers that belong to HTTP/1, names of other hosts.
#[tokio::test]
async fn http2_smuggles_nothing_into_http1() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = r#"{"model":"m"}"#;
    for (name, value) in [
        ("content-length", "5"),
        ("content-length", "500"),
        ("transfer-encoding", "chunked"),
        ("connection", "keep-alive, x-private"),
        ("upgrade", "h2c"),
        ("te", "trailers, deflate"),
        ("host", "elsewhere.test"),
        ("x-dunlin-replica-index", "7"),
    ] {
        let before = engine.asked();
        let mut asked = mesh.client().request(Method::POST, CHAT, body);
        asked.headers_mut().insert(name, value.parse().unwrap());
        let mut sender = http2(&mesh).await;
        // An error of the stream is a refusal too.
        let answer = tokio::time::timeout(SOON, sender.send_request(asked)).await;
        drop(answer.unwrap_or_else(|_| panic!("{name}: {value}: no answer")));
        if engine.asked() > before {
            engine.last(|asked| {
                assert_eq!(asked.body, body, "{name}: {value}");
                let told = format!("{:?}", asked.headers);
                assert!(!told.contains("elsewhere") && !told.contains("h2c") && !told.contains("x-private"), "{told}");
                assert_eq!(asked.headers["x-dunlin-replica-index"], "0");
                assert!(!asked.headers.contains_key("transfer-encoding"), "{told}");
                assert_eq!(asked.headers["content-length"], body.len().to_string());
            });
        }
        assert!(engine.asked() <= before + 1);
    }
}

/// A few bytes that unpack to a gigabyte, and JSON that is all beginning.
#[tokio::test]
async fn small_bodies_that_grow_are_refused() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"{\"model\":\"m\",\"x\":\"").unwrap();
    let zeros = vec![b'0'; 1 << 20];
    (0..256).for_each(|_| gzip.write_all(&zeros).unwrap());
    gzip.write_all(b"\"}").unwrap();
    let mut bomb = mesh.client().request(Method::POST, CHAT, gzip.finish().unwrap());
    bomb.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    let answer = mesh.client().send(bomb).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.text());
    // Two times packed is not undone two times.
    let mut twice = mesh.client().request(Method::POST, CHAT, "x");
    twice.headers_mut().insert("content-encoding", "gzip, gzip".parse().unwrap());
    assert_eq!(mesh.client().send(twice).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for deep in
        ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 18), format!("{}{}", "[".repeat(200_000), "]".repeat(200_000))]
    {
        for body in
            [deep.clone(), format!("{{\"model\":\"m\",\"x\":{deep}"), format!("{{\"model\":\"m\",\"x\":{deep}}}")]
        {
            let answer = mesh.client().post(CHAT, body).await;
            assert!(matches!(answer.status.as_u16(), 200 | 400), "{}: {}", answer.status, answer.text());
        }
    }
    served(&mesh).await;
}

#[tokio::test]
async fn names_of_models_are_bounded_and_not_written_into_heads() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    for name in [
        "x".repeat(1 << 20),
        "a\\u0000b".to_owned(),
        "m\\r\\nx-dunlin-replica-index: 7".to_owned(),
        "\\ud800".to_owned(),
        "../../mesh/logs".to_owned(),
        " m".to_owned(),
        "m ".to_owned(),
        String::new(),
        "\u{202e}m".to_owned(),
    ] {
        let answer = mesh.client().post(CHAT, format!(r#"{{"model":"{name}"}}"#)).await;
        assert!(matches!(answer.status.as_u16(), 400 | 404), "{name:.40}: {}", answer.status);
        assert!(answer.body.len() < 2000, "{name:.40}: {} bytes said", answer.body.len());
    }
    assert_eq!(engine.asked(), 0);
}

/// A form of nothing but beginnings of parts.
#[tokio::test]
async fn forms_of_many_parts_and_endless_heads_end() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let part = "--e\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\ny\r\n";
    let many = part.repeat(100_000) + "--e\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--e--\r\n";
    let endless = format!("--e\r\nContent-Disposition: form-data; name=\"model\"; x=\"{}", "y".repeat(1 << 20));
    let heads = format!("--e\r\n{}", "x-a: b\r\n".repeat(200_000));
    let long =
        format!("--e\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{}\r\n--e--\r\n", "m".repeat(1 << 20));
    for (body, fine) in [(many, true), (endless, false), (heads, false), (long, false)] {
        let asked = Instant::now();
        let mut request = mesh.client().request(Method::POST, "/v1/audio/transcriptions", body);
        request.headers_mut().insert("content-type", "multipart/form-data; boundary=e".parse().unwrap());
        let answer = mesh.client().send(request).await;
        let right = if fine { matches!(answer.status.as_u16(), 200 | 400) } else { answer.status == 400 };
        assert!(right, "{}: {}", answer.status, answer.text());
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    }
    let mut request = mesh.client().request(Method::POST, "/v1/audio/transcriptions", "--\r\n");
    request
        .headers_mut()
        .insert("content-type", format!("multipart/form-data; boundary={}", "b".repeat(5000)).parse().unwrap());
    assert_eq!(mesh.client().send(request).await.status, StatusCode::BAD_REQUEST);
    served(&mesh).await;
}

/// Whoever sends many requests and reads no answer is not answered without end.
#[tokio::test]
async fn who_reads_nothing_fills_no_memory() {
    let mesh = Mesh::with(|config| config.stalled = Duration::from_secs(1)).await;
    let engine = Engine::new(Play::Say(
        StatusCode::OK,
        "application/json",
        format!("{{\"x\":\"{}\"}}", "y".repeat(64 << 10)).into(),
    ));
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let body = r#"{"model":"m"}"#;
    let one = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        mesh.key,
        body.len()
    );
    let mut socket = TcpStream::connect(mesh.endpoint).await.unwrap();
    let writing = async { while socket.write_all(one.as_bytes()).await.is_ok() {} };
    // Sooner or later it is not read from either, and then hung up on.
    tokio::time::timeout(SOON, writing).await.expect("it was read from for ever");
    let asked = engine.asked();
    assert!(asked < 500, "{asked} requests were answered that nobody read");
    served(&mesh).await;
}

/// The address that counts is the connection's, whatever a header says.
#[tokio::test]
async fn guesses_are_counted_whatever_address_they_claim() {
    let mesh = Mesh::new().await;
    let wrong = mesh.client_with(Some("sk-dunlin-aaaaaaaa-bbbb"));
    let mut last = StatusCode::OK;
    for n in 0..40 {
        let mut asked = wrong.request(Method::GET, "/v1/models", "");
        for name in ["x-forwarded-for", "x-real-ip", "forwarded"] {
            asked.headers_mut().insert(name, format!("10.0.0.{n}").parse().unwrap());
        }
        last = wrong.send(asked).await.status;
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(mesh.client().get("/v1/models").await.status, StatusCode::OK, "who has a key is let in all the while");
}

/// A body that is announced and never wanted: the answer comes, and the connection is not read to its end.
#[tokio::test]
async fn nobody_waits_for_bodies_that_are_not_wanted() {
    let mesh = Mesh::new().await;
    for (head, status) in [
        (format!("GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", mesh.key), "200"),
        ("POST /v1/nothing HTTP/1.1\r\nhost: x\r\n".to_owned(), "401"),
        ("GET /health HTTP/1.1\r\nhost: x\r\n".to_owned(), "200"),
    ] {
        let mut socket = TcpStream::connect(mesh.endpoint).await.unwrap();
        let head = format!("{head}content-length: 99999999999\r\n\r\n{{");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut read = [0; 12];
        tokio::time::timeout(SOON, socket.read_exact(&mut read)).await.expect("no answer").unwrap();
        assert!(read.ends_with(status.as_bytes()), "{}", String::from_utf8_lossy(&read));
    }
}

/// Trailers of a client are nobody's business.
#[tokio::test]
async fn trailers_of_clients_go_nowhere() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let mut late = HeaderMap::new();
    late.insert("x-dunlin-usage", "1 1 1".parse().unwrap());
    late.insert("authorization", "Bearer other".parse().unwrap());
    let body = Full::new(Bytes::from_static(br#"{"model":"m"}"#)).with_trailers(std::future::ready(Some(Ok(late))));
    let asked = Request::post(format!("http://{}{CHAT}", mesh.endpoint))
        .header("authorization", format!("Bearer {}", mesh.key));
    let socket = TcpStream::connect(mesh.endpoint).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let answer = sender.send_request(asked.body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    engine.last(|asked| assert!(!format!("{:?}", asked.headers).contains("other")));
}

/// All at once: nobody's request is lost among them, and none is answered with another's.
#[tokio::test(flavor = "multi_thread")]
async fn answers_are_not_mixed_up() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::By(std::sync::Arc::new(|asked, _| {
        Play::Say(StatusCode::OK, "application/json", asked.body.clone())
    })));
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    let client = mesh.client();
    let all = (0..300).map(|n| {
        let (client, body) = (client.clone(), format!(r#"{{"model":"m","n":{n},"choices":[]}}"#));
        async move {
            let answer = client.post(CHAT, body.clone()).await;
            (answer.status, answer.text() == body)
        }
    });
    let answers = join_all(all).await;
    assert!(answers.iter().all(|answer| *answer == (StatusCode::OK, true)), "{answers:?}");
}

/// Connections that ask nothing take no place of the admin API from those who ask.
#[tokio::test]
async fn who_asks_nothing_keeps_nobody_from_the_admin_api() {
    let mesh = Mesh::with(|config| config.admin = Some(([127, 0, 0, 1], 0).into())).await;
    let admin = mesh.admin.unwrap();
    let mut idle = Vec::new();
    for n in 0..200 {
        let mut socket = TcpStream::connect(admin).await.unwrap();
        // Some begin a head, and leave it at that.
        if n % 2 == 0 {
            let _ = socket.write_all(b"GET /admin/v1/keys HTTP/1.1\r\n").await;
        }
        idle.push(socket);
    }
    let asked = Instant::now();
    let answer = Client::new(admin, None).get("/admin/v1/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    // The first one was hung up on.
    let mut byte = [0];
    let read = tokio::time::timeout(SOON, idle[0].read(&mut byte)).await.expect("the first one is still there");
    assert!(!matches!(read, Ok(1..)), "{read:?}");
}

//! Forms: their model found wherever it stands, passed on while they arrive, and sent again when a replica fails.

use crate::{
    client::read,
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use dunlin_protocol::{hop::Fault, id::ModelId};
use dunlin_proxy::names::Names;
use http::{Method, Request, StatusCode};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const TRANSCRIBE: &str = "/v1/audio/transcriptions";
const KIND: &str = "multipart/form-data; boundary=edge";

fn part(name: &str, value: &str) -> Vec<u8> {
    format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes()
}

fn file(size: usize) -> Vec<u8> {
    let head = "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    let audio = (0..size).map(|at| (at * 31 % 251) as u8);
    head.bytes().chain(audio).chain(*b"\r\n").collect()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat().as_slice(), b"--edge--\r\n"].concat()
}

fn request(mesh: &Mesh, path: &str, body: Vec<u8>) -> Request<http_body_util::Full<Bytes>> {
    let mut request = mesh.client().request(Method::POST, path, body);
    request.headers_mut().insert("content-type", KIND.parse().unwrap());
    request
}

#[tokio::test]
async fn forms_pass_byte_for_byte_wherever_the_model_stands() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["ears"], 4, &engine).await;
    let (vtt, image) = (("text/vtt", "WEBVTT\n\n"), ("application/json", "{\"data\":[]}"));
    for (path, (kind, said)) in [(TRANSCRIBE, vtt), ("/v1/audio/translations", vtt), ("/v1/images/edits", image)] {
        engine.play(Play::Say(StatusCode::OK, kind, Bytes::from_static(said.as_bytes())));
        for body in [
            form(&[part("model", "ears"), file(10)]),
            form(&[file(3 << 20), part("response_format", "vtt"), part("model", "ears")]),
        ] {
            let answer = mesh.client().send(request(&mesh, path, body.clone())).await;
            assert_eq!((answer.status, answer.text().as_str()), (StatusCode::OK, said));
            assert_eq!(answer.header("content-type"), kind);
            engine.last(|asked| {
                assert!(asked.body == body);
                assert_eq!(asked.headers["content-type"], KIND);
                assert_eq!(asked.headers["content-length"], body.len().to_string());
            });
        }
    }
}

#[tokio::test]
async fn another_replica_gets_the_whole_form_and_another_model_its_name() {
    let names = Names::new(
        [(ModelId::new("whisper-1").unwrap(), ModelId::new("ears").unwrap())].into(),
        [(ModelId::new("ears").unwrap(), vec![ModelId::new("other-ears").unwrap()])].into(),
    );
    let mesh = Mesh::with(move |config| config.names = names.unwrap()).await;
    let (bad, good) = (Engine::new(Play::Refuse(Fault::Engine)), Engine::saying("{}"));
    let _bad = mesh.agent(&["ears"], 4, &bad).await;
    let _good = mesh.agent(&["other-ears"], 4, &good).await;
    let body = form(&[file(2 << 20), part("model", "whisper-1")]);
    let answer = mesh.client().send(request(&mesh, TRANSCRIBE, body)).await;
    assert_eq!((answer.status, answer.header("x-dunlin-model")), (StatusCode::OK, "other-ears"), "{}", answer.text());
    assert!(bad.asked() > 0);
    let expected = form(&[file(2 << 20), part("model", "other-ears")]);
    good.last(|asked| assert!(asked.body == expected));
    bad.last(|asked| assert!(asked.body == form(&[file(2 << 20), part("model", "ears")])));
}

#[tokio::test]
async fn what_is_wrong_with_a_form_is_said() {
    let mesh = Mesh::with(|config| config.form = 4 << 20).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["ears"], 4, &engine).await;
    for (body, status, code, says) in [
        (form(&[file(9)]), 400, "invalid_value", "`model` field"),
        (form(&[part("model", "ears"), part("model", "ears")]), 400, "invalid_value", "more than one `model`"),
        (form(&[part("model", "earss")]), 404, "model_not_found", "did you mean `ears`?"),
        (part("model", "ears"), 400, "invalid_form", "closing boundary"),
        (b"{\"model\":\"ears\"}".to_vec(), 400, "invalid_form", "does not begin with its boundary"),
        (form(&[part("model", "ears"), file(5 << 20)]), 413, "request_too_large", "larger than"),
    ] {
        let answer = mesh.client().send(request(&mesh, TRANSCRIBE, body)).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{}", answer.text());
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    let json = mesh.client().post(TRANSCRIBE, r#"{"model":"ears"}"#).await;
    assert_eq!((json.status, json.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_form"));
    let mut packed = request(&mesh, TRANSCRIBE, form(&[part("model", "ears")]));
    packed.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    assert_eq!(mesh.client().send(packed).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let mut other = request(&mesh, TRANSCRIBE, form(&[file(9), part("model", "ears")]));
    other.headers_mut().insert("x-dunlin-model", "nose".parse().unwrap());
    let other = mesh.client().send(other).await;
    assert!(other.text().contains("x-dunlin-model"), "{}", other.text());
    let before = engine.asked();
    let mut named = request(&mesh, TRANSCRIBE, form(&[file(9)]));
    named.headers_mut().insert("x-dunlin-model", "ears".parse().unwrap());
    assert_eq!(mesh.client().send(named).await.status, StatusCode::OK, "the header is enough");
    assert_eq!(engine.asked(), before + 1);
}

/// The engine gets the beginning before the end has come, and nothing is left of a client that goes away.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_passed_on_while_it_arrives() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["ears"], 4, &engine).await;
    let body = form(&[part("model", "ears"), file(1 << 20)]);
    let head = format!(
        "POST {TRANSCRIBE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: {KIND}\r\ncontent-length: {}\r\n\r\n",
        mesh.key,
        body.len()
    );
    let endpoint = mesh.endpoint;
    let (first, rest) = body.split_at(body.len() - 100);
    let send = |pieces: Vec<Vec<u8>>| {
        tokio::task::spawn_blocking(move || {
            let mut socket = TcpStream::connect(endpoint).unwrap();
            for piece in pieces {
                socket.write_all(&piece).unwrap();
            }
            socket
        })
    };
    let mut socket = send(vec![head.clone().into_bytes(), first.to_vec()]).await.unwrap();
    mesh.until(|_| engine.now() == 1).await;
    let rest = rest.to_vec();
    let answer = tokio::task::spawn_blocking(move || {
        socket.write_all(&rest).unwrap();
        let mut answer = [0; 64];
        let read = socket.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    });
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 OK"));
    engine.last(|asked| assert!(asked.body == body));

    let socket = send(vec![head.into_bytes(), first.to_vec()]).await.unwrap();
    mesh.until(|_| engine.now() == 1).await;
    drop(socket);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(engine.asked(), 1, "what broke off was answered");
}

#[tokio::test]
async fn bodies_may_be_compressed() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    let text = br#"{"model":"m","messages":[],"x":1e999}"#;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text).unwrap();
    let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    deflate.write_all(text).unwrap();
    for (coding, packed) in [("gzip", gzip.finish().unwrap()), ("deflate", deflate.finish().unwrap())] {
        let mut request = mesh.client().request(Method::POST, "/v1/chat/completions", packed);
        request.headers_mut().insert("content-encoding", coding.parse().unwrap());
        let answer = read(mesh.client().begin(request).await).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        engine.last(|asked| {
            assert_eq!(asked.body.as_ref(), text);
            assert!(!asked.headers.contains_key("content-encoding"));
        });
    }
    let mut broken = mesh.client().request(Method::POST, "/v1/chat/completions", "not packed");
    broken.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    let answer = mesh.client().send(broken).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, "invalid_encoding"));
}

/// Speech streams as engines send it: OpenAI's end, vLLM's, and none at all.
#[tokio::test]
async fn streams_of_speech_end_as_their_engine_ends_them() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Say(StatusCode::OK, "", Bytes::new()));
    let _agent = mesh.agent(&["ears"], 4, &engine).await;
    let gap = Duration::from_millis(2);
    for events in [
        vec![
            "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a\"}\n\n",
            "data: {\"type\":\"transcript.text.done\",\"text\":\"a\"}\n\n",
        ],
        vec!["data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "data: [DONE]\n\n"],
        vec!["data: a\n\n", "data: b\n\n"],
    ] {
        engine.play(Play::Stream(events.clone(), gap, true));
        let body = form(&[part("model", "ears"), part("stream", "true"), file(9)]);
        let answer = mesh.client().send(request(&mesh, TRANSCRIBE, body)).await;
        assert_eq!(answer.text(), events.concat());
    }
    engine.play(Play::Stream(vec!["data: a\n\n"], gap, false));
    let cut = mesh.client().send(request(&mesh, TRANSCRIBE, form(&[part("model", "ears")]))).await;
    assert!(cut.text().contains("stream_interrupted"), "{}", cut.text());
    // Speech that an engine makes is no text at all.
    let audio = Bytes::from((0..=255).cycle().take(300_000).collect::<Vec<u8>>());
    engine.play(Play::Say(StatusCode::OK, "audio/mpeg", audio.clone()));
    let answer = mesh.client().post("/v1/audio/speech", r#"{"model":"ears","input":"hi","voice":"x"}"#).await;
    assert!(answer.body == audio);
    assert_eq!(answer.header("content-type"), "audio/mpeg");
}

use super::*;
use crate::{engine::Client, replica::tests::replica, replicas::Replicas, serve::router};
use dunlin_protocol::{
    announcement::ServedModel,
    hop::{FAULT, RETRY_SAFE, model_to_header},
    id::ModelId,
};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::ServiceExt;

/// An engine that one request has reached, and that has not answered yet.
struct Engine(TcpListener);

impl Engine {
    async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// The agent's routes in front of it, with `model` served.
    fn agent(&self, model: &ModelId) -> axum::Router {
        let replica = replica(&[]);
        replica.set_url(Some(EngineUrl::loopback(self.0.local_addr().unwrap().port()).unwrap()));
        replica.set_serving(Ok(vec![ServedModel { id: model.clone(), parent: None, context: None, root: None }]));
        let replicas = Replicas::default();
        replicas.push(Arc::new(replica));
        router(Arc::new(Service::new(replicas, Client::new())))
    }

    async fn asked(&self) -> TcpStream {
        let (mut stream, _) = self.0.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream
    }
}

async fn answer(mut stream: TcpStream) {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate").await.unwrap();
}

fn request(model: &ModelId) -> Request {
    let request =
        Request::post("/engine/v1/completions").header(REPLICA_INDEX, "0").header(MODEL, model_to_header(model));
    request.body(Body::empty()).unwrap()
}

/// What the user of the proxy set counts; dropping the stream ends it.
#[tokio::test]
async fn the_agent_waits_as_long_as_its_caller_says() {
    let engine = Engine::listen().await;
    let model = ModelId::new("tiny").unwrap();
    let mut request = request(&model);
    let hour = Bounds { whole_s: 3600.0, ..Bounds::default() }.to_header();
    request.headers_mut().insert(BOUNDS, hour.parse().unwrap());
    let waiting = tokio::spawn(engine.agent(&model).oneshot(request));
    let stream = engine.asked().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3590)).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "the agent gave up first");
    answer(stream).await;
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "late");
}

/// And else as long as the runtime says, for an engine that sends a head and nothing more, too.
#[tokio::test]
async fn an_engine_that_never_answers_is_given_up() {
    for (prompt, seconds) in [("1 1", 120), ("1", 600), ("256 1", 240)] {
        for head in ["", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"] {
            let engine = Engine::listen().await;
            let model = ModelId::new("tiny").unwrap();
            let mut request = request(&model);
            request.headers_mut().insert(PROMPT, prompt.parse().unwrap());
            let waiting = tokio::spawn(engine.agent(&model).oneshot(request));
            let mut stream = engine.asked().await;
            stream.write_all(head.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds - 2)).await;
            tokio::time::resume();
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!waiting.is_finished(), "{prompt}: too early");
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(4)).await;
            tokio::time::resume();
            let answer = waiting.await.unwrap().unwrap();
            assert_eq!((answer.status().as_u16(), &answer.headers()[RETRY_SAFE]), (504, &"no".parse().unwrap()));
            let said = Bounds::from_header(answer.headers()[BOUNDS].to_str().unwrap()).unwrap();
            assert_eq!((said.first_byte_s, said.whole_s), (120.0, 600.0));
        }
    }
}

#[tokio::test]
async fn a_model_of_any_name_is_found_again() {
    for name in ["a b%\u{e9}", "100%", "Qwen/Qwen3-8B:latest"] {
        let engine = Engine::listen().await;
        let model = ModelId::new(name).unwrap();
        let asked = tokio::spawn(engine.agent(&model).oneshot(request(&model)));
        answer(engine.asked().await).await;
        assert_eq!(asked.await.unwrap().unwrap().status(), 200, "{name}");
    }
}

/// More headers than the hop takes would end the connection to the proxy, and every answer on it.
#[tokio::test]
async fn too_large_a_head_stays_off_the_hop() {
    // The last is over what is read at all.
    for (bytes, status) in [(20 * 1024, 200), (40 * 1024, 502), (200 * 1024, 502)] {
        let engine = Engine::listen().await;
        let model = ModelId::new("tiny").unwrap();
        let waiting = tokio::spawn(engine.agent(&model).oneshot(request(&model)));
        let mut stream = engine.asked().await;
        let head = format!("HTTP/1.1 200 OK\r\nx-big: {}\r\ncontent-length: 0\r\n\r\n", "a".repeat(bytes));
        // The agent may close the connection before all of it is written.
        let _ = stream.write_all(head.as_bytes()).await;
        let answer = waiting.await.unwrap().unwrap();
        assert_eq!(answer.status(), status, "{bytes}");
        if status == 200 {
            continue;
        }
        let said = |name| answer.headers()[name].to_str().unwrap().to_owned();
        assert_eq!((said(FAULT), said(RETRY_SAFE)), ("engine".to_owned(), "no".to_owned()), "{bytes}");
        assert!(headers::size(answer.headers()) < 1024);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let error: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("headers") || message.contains("head is too large"), "{message}");
    }
}

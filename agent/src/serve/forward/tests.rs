use super::*;
use crate::{engine::Client, replica::tests::replica, serve::router};
use dunlin_protocol::{announcement::ServedModel, hop::model_to_header, id::ModelId};
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
        replica.set_serving(Ok(vec![ServedModel { id: model.clone(), parent: None, context: None }]));
        router(Arc::new(Service::new(Arc::from([Arc::new(replica)]), Client::new())))
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

/// How long to wait is the proxy's decision, whose user may allow an hour; dropping the stream ends it.
#[tokio::test]
async fn the_agent_waits_longer_than_any_proxy() {
    let engine = Engine::listen().await;
    let model = ModelId::new("tiny").unwrap();
    let waiting = tokio::spawn(engine.agent(&model).oneshot(request(&model)));
    let stream = engine.asked().await;
    tokio::time::pause();
    tokio::time::advance(limits::FIRST_BYTE).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "the agent gave up first");
    answer(stream).await;
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "late");
}

/// And yet nothing stays for ever.
#[tokio::test]
async fn an_engine_that_never_answers_is_given_up_at_last() {
    let engine = Engine::listen().await;
    let model = ModelId::new("tiny").unwrap();
    let waiting = tokio::spawn(engine.agent(&model).oneshot(request(&model)));
    let _stream = engine.asked().await;
    tokio::time::pause();
    tokio::time::advance(FIRST_BYTE).await;
    tokio::time::resume();
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[dunlin_protocol::hop::RETRY_SAFE]),
        (504, &"no".parse().unwrap())
    );
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

//! What the hop carries when nothing is wrong.

use crate::fixture::{Chunks, Options, Pair, Slot, Wire, endless, pair};
use axum::{Router, body::Body as AxumBody, extract::Request, response::Response, routing::post};
use bytes::Bytes;
use dunlin_node::hop::{Body, Caller};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::time::Duration;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

crate::over_tcp_and_quic!(unary, streams_unbuffered, trailers, cancelled_body, cancelled_before_head, upload, prepared);

async fn connected(wire: Wire, routes: Router) -> Pair {
    pair(Options::new(wire, routes)).await
}

async fn unary(wire: Wire) {
    let echo = post(|request: Request| async move {
        let (parts, body) = request.into_parts();
        let caller = parts.extensions.get::<Caller>().unwrap().peer.to_string();
        Response::builder().header("caller", caller).header("kept", &parts.headers["kept"]).body(body).unwrap()
    });
    let pair = connected(wire, Router::new().route("/engine/v1/echo", echo)).await;
    for size in [0, 1, 1000, 300_000] {
        let sent = Bytes::from(vec![b'a'; size]);
        let request = http::Request::post("/engine/v1/echo?x=1").header("kept", "as it was");
        let request = request.version(http::Version::HTTP_2).body(Body::from(sent.clone())).unwrap();
        let response = pair.client.hop.send(pair.server.peer, request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["caller"], pair.client.peer.to_string());
        assert_eq!(response.headers()["kept"], "as it was");
        assert!(!response.headers().contains_key("date"));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), sent);
    }
    assert_eq!(pair.client.hop.links_opened(), 1);
}

/// Each chunk is there before the next one is made.
async fn streams_unbuffered(wire: Wire) {
    let (chunks, source) = mpsc::channel::<Bytes>(1);
    let source = Slot::new(source);
    let routes = Router::new().route(
        "/engine/stream",
        post(async move || {
            let frames = futures::stream::unfold(source.take(), |mut source| async move {
                let chunk = source.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(Frame::data(chunk)), source))
            });
            AxumBody::new(StreamBody::new(frames))
        }),
    );
    let pair = connected(wire, routes).await;
    let mut body = pair.get("/engine/stream").await.into_body();
    for n in 0..50 {
        let chunk = Bytes::from(format!("data: {n}\n\n"));
        chunks.send(chunk.clone()).await.unwrap();
        let frame = timeout(Duration::from_secs(2), body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
    }
    drop(chunks);
    assert!(body.frame().await.is_none());
}

async fn trailers(wire: Wire) {
    let routes = Router::new().route(
        "/engine/trailers",
        post(async || {
            AxumBody::new(Chunks::new(|n| match n {
                0..3 => Some(Frame::data(Bytes::from_static(b"abc"))),
                3 => Some(Frame::trailers(
                    [("x-dunlin-load".parse().unwrap(), "9".parse().unwrap())].into_iter().collect(),
                )),
                _ => None,
            }))
        }),
    );
    let pair = connected(wire, routes).await;
    let collected = pair.get("/engine/trailers").await.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-dunlin-load"], "9");
    assert_eq!(collected.to_bytes(), "abcabcabc");
}

async fn cancelled_body(wire: Wire) {
    let (gone, is_gone) = oneshot::channel();
    let gone = Slot::new(gone);
    let routes = Router::new()
        .route("/engine/endless", post(async move || AxumBody::new(Chunks::new(endless(100)).telling(gone.take()))));
    let pair = connected(wire, routes).await;
    let mut body = pair.get("/engine/endless").await.into_body();
    body.frame().await.unwrap().unwrap();
    drop(body);
    timeout(Duration::from_secs(1), is_gone).await.expect("the server goes on").unwrap();
}

async fn cancelled_before_head(wire: Wire) {
    struct Tell(Option<oneshot::Sender<()>>);
    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }
    let ((begun, has_begun), (gone, is_gone)) = (oneshot::channel(), oneshot::channel());
    let (begun, tell) = (Slot::new(begun), Slot::new(Tell(Some(gone))));
    let routes = Router::new().route(
        "/engine/slow",
        post(async move || {
            let _tell = tell.take();
            begun.take().send(()).unwrap();
            std::future::pending::<()>().await;
        }),
    );
    let pair = connected(wire, routes).await;
    tokio::select! {
        _ = pair.get("/engine/slow") => panic!("answered"),
        begun = has_begun => begun.unwrap(),
    }
    timeout(Duration::from_secs(1), is_gone).await.expect("the server goes on").unwrap();
}

/// A body sent as it is made, empty chunks among it.
async fn upload(wire: Wire) {
    let routes = Router::new().route("/engine/count", post(async |body: Bytes| body.len().to_string()));
    let pair = connected(wire, routes).await;
    let body = Chunks::new(|n| match n {
        0..400 => Some(Frame::data(Bytes::new())),
        400..500 => Some(Frame::data(Bytes::from_static(&[7; 3000]))),
        _ => None,
    });
    let answer = pair.send("/engine/count", Body::stream(body)).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "300000");
    assert_eq!(pair.client.hop.links_opened(), 1);
}

async fn prepared(wire: Wire) {
    let pair = connected(wire, Router::new()).await;
    let (hop, peer) = (&pair.client.hop, &pair.server.peer);
    assert!(hop.connected(peer) && !hop.ready(peer));
    hop.prepare(*peer);
    hop.prepare(*peer);
    timeout(Duration::from_secs(2), async {
        while !hop.ready(peer) {
            tokio::task::yield_now().await
        }
    })
    .await
    .unwrap();
    assert_eq!(hop.links_opened(), 1);
    assert_eq!(hop.round_trip(peer), None);
    hop.set_round_trip(peer, Duration::from_millis(3));
    assert_eq!(hop.round_trip(peer), Some(Duration::from_millis(3)));
}

//! What the caller learns when there is no way, or no longer one.

use crate::fixture::{Chunks, Options, Slot, Wire, endless, pair, swarm};
use axum::{Router, body::Body as AxumBody, routing::post};
use bytes::Bytes;
use dunlin_node::hop::{Body, Hop, Loss, SendError, Settings, Unsent};
use http_body_util::BodyExt;
use libp2p::PeerId;
use std::time::{Duration, Instant};
use tokio::{sync::oneshot, time::timeout};

crate::over_tcp_and_quic!(
    lost_before_head,
    lost_in_mid_body,
    silent_peer_is_lost,
    slow_stream_outlives_the_deadline,
    suspect_comes_back,
    broken_link_is_replaced,
    waits_for_no_peer_that_refuses,
    drains,
);

#[tokio::test]
async fn not_connected_gives_the_request_back() {
    let (_swarm, control, _incoming) = swarm(Wire::Tcp);
    let hop = Hop::new(control, Settings::default());
    let request = http::Request::post("/engine/x").body(Body::from(Bytes::from_static(b"prompt"))).unwrap();
    let error = hop.send(PeerId::random(), request).await.unwrap_err();
    assert!(matches!(error, SendError::NotConnected(_)), "{error}");
    assert!(!format!("{error:?}").contains("prompt"));
    let body = error.into_request().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "prompt");
}

async fn lost_before_head(wire: Wire) {
    let (begun, has_begun) = oneshot::channel();
    let begun = Slot::new(begun);
    let hang = post(async move || {
        begun.take().send(()).unwrap();
        std::future::pending::<()>().await;
    });
    let pair = pair(Options::new(wire, Router::new().route("/engine/hang", hang))).await;
    let asking = pair.send("/engine/hang", Body::empty());
    let killing = async {
        has_begun.await.unwrap();
        pair.server.kill();
    };
    let (answer, ()) = timeout(Duration::from_secs(8), futures::future::join(asking, killing)).await.unwrap();
    assert!(matches!(answer, Err(SendError::Lost(_))), "{answer:?}");
    let hop = &pair.client.hop;
    // QUIC learns of a peer that ended without a word by its idle timeout only; the hop stops using it at once.
    if matches!(wire, Wire::Tcp) {
        timeout(Duration::from_secs(5), async {
            while hop.connected(&pair.server.peer) {
                tokio::task::yield_now().await
            }
        })
        .await
        .unwrap();
        let error = pair.send("/engine/hang", Body::empty()).await.unwrap_err();
        assert!(matches!(error, SendError::NotConnected(_)), "{error:?}");
        assert_eq!(pair.client.control.connected_peers(), 0);
    }
}

async fn lost_in_mid_body(wire: Wire) {
    let routes = Router::new().route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(100)))));
    let pair = pair(Options::new(wire, routes).both(|settings| settings.dead = Duration::from_secs(4))).await;
    let mut body = pair.get("/engine/endless").await.into_body();
    body.frame().await.unwrap().unwrap();
    pair.server.kill();
    let end = async {
        loop {
            match body.frame().await {
                Some(Ok(_)) => {}
                end => return end,
            }
        }
    };
    // Never a clean end.
    assert!(timeout(Duration::from_secs(8), end).await.unwrap().unwrap().is_err());
}

/// A peer that is there but says nothing is suspect, then dead.
async fn silent_peer_is_lost(wire: Wire) {
    let routes = Router::new()
        .route("/engine/quick", post(async || "here"))
        .route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(100)))));
    let mut options = Options::new(wire, routes);
    options.client.ping = Duration::from_millis(100);
    options.client.suspect = Duration::from_millis(500);
    options.client.dead = Duration::from_millis(1500);
    let pair = pair(options).await;
    assert_eq!(pair.read("/engine/quick").await, "here");
    let mut stream = pair.get("/engine/endless").await.into_body();
    pair.server
        .paused(async {
            let started = Instant::now();
            let error = pair.send("/engine/quick", Body::empty()).await.unwrap_err();
            assert!(matches!(error, SendError::Lost(Loss::Silent)), "{error:?}");
            assert!(started.elapsed() < Duration::from_secs(1));
            let error = pair.send("/engine/quick", Body::empty()).await.unwrap_err();
            assert!(matches!(error, SendError::NotSent(_, Unsent::Silent)), "{error:?}");
            // What has begun goes on, until the peer counts as dead.
            while let Some(Ok(_)) = stream.frame().await {}
            assert!(started.elapsed() > Duration::from_millis(1200) && started.elapsed() < Duration::from_secs(3));
        })
        .await;
    // And found again.
    let found = async { while pair.try_read("/engine/quick").await.is_none() {} };
    timeout(Duration::from_secs(10), found).await.unwrap();
}

/// A stream so slow that its client hears something all the time, and so has no reason to ping, is not silence.
async fn slow_stream_outlives_the_deadline(wire: Wire) {
    let slowly = || {
        let chunks = futures::stream::unfold(0_u8, |number| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            (number < 80).then(|| (Ok::<_, std::convert::Infallible>(bytes::Bytes::from_static(b"token")), number + 1))
        });
        async move { AxumBody::from_stream(chunks) }
    };
    let routes = Router::new().route("/engine/slow", post(slowly));
    let options = Options::new(wire, routes).both(|settings| {
        settings.ping = Duration::from_millis(200);
        settings.dead = Duration::from_millis(1500);
    });
    let pair = pair(options).await;
    let started = Instant::now();
    let mut body = pair.get("/engine/slow").await.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    assert_eq!(bytes, 80 * b"token".len());
    assert!(started.elapsed() > Duration::from_secs(3), "twice the deadline");
}

/// A pause shorter than that costs nothing that has begun.
async fn suspect_comes_back(wire: Wire) {
    let routes = Router::new()
        .route("/engine/quick", post(async || "here"))
        .route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(100)))));
    let mut options = Options::new(wire, routes);
    options.client.ping = Duration::from_millis(100);
    options.client.suspect = Duration::from_millis(300);
    let pair = pair(options).await;
    let mut stream = pair.get("/engine/endless").await.into_body();
    pair.server.paused(tokio::time::sleep(Duration::from_millis(800))).await;
    for _ in 0..2000 {
        stream.frame().await.unwrap().unwrap();
    }
    // Asked anew every 100 ms.
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(pair.read("/engine/quick").await, "here");
    assert_eq!(pair.client.hop.links_opened(), 1);
}

async fn broken_link_is_replaced(wire: Wire) {
    let routes = Router::new().route("/engine/quick", post(async || "here"));
    let pair = pair(Options { drop_first: 2, ..Options::new(wire, routes) }).await;
    pair.client.hop.prepare(pair.server.peer);
    let answered = async { while pair.try_read("/engine/quick").await.is_none() {} };
    timeout(Duration::from_secs(10), answered).await.unwrap();
}

async fn waits_for_no_peer_that_refuses(wire: Wire) {
    let mut options = Options { drop_first: usize::MAX, ..Options::new(wire, Router::new()) };
    options.client.open = Duration::from_millis(500);
    let pair = pair(options).await;
    for _ in 0..5 {
        let answer = timeout(Duration::from_secs(4), pair.send("/mesh/info", Body::empty())).await.unwrap();
        match answer.unwrap_err() {
            SendError::NotSent(_, Unsent::Open(_) | Unsent::Timeout(_) | Unsent::Broken(_)) | SendError::Lost(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A server that ends lets the answer in flight finish.
async fn drains(wire: Wire) {
    let (begun, has_begun) = oneshot::channel();
    let begun = Slot::new(begun);
    let slow = post(async move || {
        begun.take().send(()).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        "in time"
    });
    let pair = pair(Options::new(wire, Router::new().route("/engine/slow", slow))).await;
    let end = async {
        has_begun.await.unwrap();
        pair.server.shutdown.cancel();
    };
    let (answer, ()) = futures::future::join(pair.try_read("/engine/slow"), end).await;
    assert_eq!(answer.unwrap(), "in time");
}

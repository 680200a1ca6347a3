//! Every limit of HTTP/2 that would end the shared connection. Where a test says `too_tight`, it first shows that the
//! tight setting does break the connection, so that the good one proves something.

use crate::fixture::{Chunks, Options, Pair, Slot, Wire, endless, keep_asking, pair};
use axum::{Router, body::Body as AxumBody, extract::Request, response::Response, routing::post};
use bytes::Bytes;
use dunlin_node::hop::{Body, ResponseBody, SendError, Settings, Unsent};
use futures::future::join_all;
use http_body::Frame;
use http_body_util::BodyExt;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

crate::over_tcp_and_quic!(
    many_local_resets,
    cancelled_while_stopped,
    stalled_readers_of_small_chunks,
    readers_that_never_read,
    empty_chunks,
    large_headers,
    many_streams,
    full,
    stalled_reader_is_aborted,
    slow_engine_is_not_aborted,
);

async fn connected(wire: Wire, routes: Router, change: impl Fn(&mut Settings)) -> Pair {
    pair(Options::new(wire, routes).both(change)).await
}

/// Whether a request still goes through on the link that was there from the beginning.
async fn unharmed(pair: &Pair) -> bool {
    let answered = timeout(Duration::from_secs(5), pair.try_read("/engine/quick")).await;
    answered.ok().flatten().is_some_and(|body| body == "here") && pair.client.hop.links_opened() == 1
}

fn quick() -> Router {
    Router::new().route("/engine/quick", post(async || "here"))
}

async fn many_local_resets(wire: Wire) {
    assert!(
        !survives_local_resets(wire, |too_tight| (too_tight.reset_streams, too_tight.local_error_resets) =
            (10, Some(1024)))
        .await
    );
    assert!(survives_local_resets(wire, |_| {}).await);
}

/// 1,100 answers dropped while more of them is under way.
async fn survives_local_resets(wire: Wire, change: impl Fn(&mut Settings)) -> bool {
    let routes = quick().route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(500)))));
    let pair = connected(wire, routes, change).await;
    for _ in 0..11 {
        let answers = join_all((0..100).map(|_| pair.send("/engine/endless", Body::empty()))).await;
        if answers.iter().any(Result::is_err) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(answers);
    }
    unharmed(&pair).await
}

async fn cancelled_while_stopped(wire: Wire) {
    assert!(!survives_cancels_while_stopped(wire, |too_tight| too_tight.pending_accept_resets = 20).await);
    assert!(survives_cancels_while_stopped(wire, |_| {}).await);
}

/// 200 requests sent to a server that is stopped, and cancelled before it goes on.
async fn survives_cancels_while_stopped(wire: Wire, change: impl Fn(&mut Settings)) -> bool {
    let pair = connected(wire, quick(), change).await;
    assert_eq!(pair.read("/engine/quick").await, "here");
    pair.server
        .paused(async {
            let requests = join_all((0..200).map(|_| pair.send("/engine/quick", Body::empty())));
            assert!(timeout(Duration::from_millis(300), requests).await.is_err());
            // Let the resets go out.
            tokio::time::sleep(Duration::from_millis(100)).await;
        })
        .await;
    unharmed(&pair).await
}

async fn stalled_readers_of_small_chunks(wire: Wire) {
    assert!(!survives_small_chunks(wire, |too_tight| too_tight.connection_window = 64 * 1024 * 1024).await);
    assert!(survives_small_chunks(wire, |_| {}).await);
}

/// 160 readers stop reading chunks of 20 bytes until their windows are full; another request goes on all the while.
async fn survives_small_chunks(wire: Wire, change: impl Fn(&mut Settings)) -> bool {
    // Twice as many as it takes to end a connection of 64 MiB: 64 MiB / 2 / 256 frames, of which a window holds 1,638.
    const READERS: usize = 160;
    let all = READERS * (Settings::default().answer_window as usize / 20);
    let made = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&made);
    let tokens = post(async move || AxumBody::new(Chunks::new(endless(20)).counting(&counted)));
    let pair = connected(wire, quick().route("/engine/tokens", tokens), change).await;
    let stalled = join_all((0..READERS).map(|_| pair.get("/engine/tokens"))).await;
    let stop = AtomicBool::new(false);
    let wait = async {
        while made.load(Ordering::Relaxed) < all && pair.client.hop.links_opened() == 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The last chunks are still on their way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.store(true, Ordering::Relaxed);
    };
    let asking = futures::future::join(keep_asking(&pair, "/engine/quick", &stop), wait);
    let ((answered, lost), ()) = timeout(Duration::from_secs(60), asking).await.unwrap();
    let unharmed = !lost && answered > 0 && unharmed(&pair).await;
    drop(stalled);
    unharmed
}

async fn readers_that_never_read(wire: Wire) {
    let (before, during) = with_stalled_readers(wire, |too_tight| too_tight.connection_window = 1024 * 1024).await;
    assert!(during == 0, "{during} of {before}");
    let (before, during) = with_stalled_readers(wire, |_| {}).await;
    // By how much it slows the others is the benchmark's to say; here nobody may be shut out.
    assert!(during > 0, "{before} -> {during}");
}

/// Requests answered in half a second, before and while 40 others never read.
async fn with_stalled_readers(wire: Wire, change: impl Fn(&mut Settings)) -> (usize, usize) {
    let routes = quick().route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(1000)))));
    let pair = connected(wire, routes, change).await;
    pair.read("/engine/quick").await;
    let before = answered_in(&pair, Duration::from_millis(500)).await;
    let stalled = join_all((0..40).map(|_| pair.get("/engine/endless"))).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let during = answered_in(&pair, Duration::from_millis(500)).await;
    assert_eq!(pair.client.hop.links_opened(), 1);
    drop(stalled);
    (before, during)
}

async fn answered_in(pair: &Pair, time: Duration) -> usize {
    let mut answered = 0;
    let asking = async {
        loop {
            pair.read("/engine/quick").await;
            answered += 1;
        }
    };
    let _ = timeout(time, asking).await;
    answered
}

async fn empty_chunks(wire: Wire) {
    let routes = quick().route(
        "/engine/empty",
        post(async || {
            AxumBody::new(Chunks::new(|n| match n {
                0..300 => Some(Frame::data(Bytes::new())),
                300 => Some(Frame::data(Bytes::from_static(b"text"))),
                301..600 => Some(Frame::data(Bytes::new())),
                _ => None,
            }))
        }),
    );
    let pair = connected(wire, routes, |_| {}).await;
    for _ in 0..3 {
        assert_eq!(pair.read("/engine/empty").await, "text");
    }
    assert!(unharmed(&pair).await);
}

async fn large_headers(wire: Wire) {
    assert!(!carries_large_headers(wire, |too_tight| too_tight.header_list = 16 * 1024).await);
    assert!(carries_large_headers(wire, |_| {}).await);
}

/// 60 KiB of headers, there and back.
async fn carries_large_headers(wire: Wire, change: impl Fn(&mut Settings)) -> bool {
    let echo = post(async |request: Request| {
        Response::builder().header("large", &request.headers()["large"]).body(AxumBody::empty()).unwrap()
    });
    let pair = connected(wire, quick().route("/engine/headers", echo), change).await;
    let large = "y".repeat(60 * 1024);
    let request = http::Request::post("/engine/headers").header("large", &large).body(Body::empty()).unwrap();
    let answer = timeout(Duration::from_secs(5), pair.client.hop.send(pair.server.peer, request)).await.unwrap();
    let carried =
        answer.is_ok_and(|response| response.headers().get("large").is_some_and(|value| value == large.as_str()));
    carried && unharmed(&pair).await
}

async fn many_streams(wire: Wire) {
    assert!(!all_at_once(wire, 900, |too_tight| too_tight.streams = 200).await);
    assert!(all_at_once(wire, 900, |_| {}).await);
}

/// So many requests that are answered only once all have come.
async fn all_at_once(wire: Wire, count: usize, change: impl Fn(&mut Settings)) -> bool {
    let (arrived, go) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)));
    let handler = post(async move || {
        if arrived.fetch_add(1, Ordering::SeqCst) + 1 == count {
            go.add_permits(count);
        }
        go.acquire().await.unwrap().forget();
        "here"
    });
    let pair = connected(wire, Router::new().route("/engine/quick", handler), change).await;
    let answers = join_all((0..count).map(|_| pair.try_read("/engine/quick")));
    let Ok(answers) = timeout(Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 3 }), answers).await else {
        return false;
    };
    answers.iter().all(Option::is_some) && pair.client.hop.links_opened() == 1
}

/// What one connection carries is bounded; the refusal is clear and gives the request back.
async fn full(wire: Wire) {
    let routes = quick().route("/engine/endless", post(async || AxumBody::new(Chunks::new(endless(10)))));
    let pair = connected(wire, routes, |settings| settings.in_flight = 3).await;
    let mut held: Vec<_> = join_all((0..3).map(|_| pair.get("/engine/endless"))).await;
    let error = pair.send("/engine/quick", Body::from(Bytes::from_static(b"q"))).await.unwrap_err();
    assert!(matches!(error, SendError::NotSent(_, Unsent::Full(3))), "{error:?}");
    assert!(error.into_request().is_some());
    held.pop();
    assert_eq!(pair.read("/engine/quick").await, "here");
    assert_eq!(pair.read("/engine/quick").await, "here");
}

async fn until_broken(mut body: ResponseBody) -> bool {
    loop {
        match body.frame().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return true,
            None => return false,
        }
    }
}

async fn stalled_reader_is_aborted(wire: Wire) {
    let (gone, is_gone) = oneshot::channel();
    let gone = Slot::new(gone);
    let endless = post(async move || AxumBody::new(Chunks::new(endless(1000)).telling(gone.take())));
    let pair =
        connected(wire, quick().route("/engine/endless", endless), |s| s.stall = Duration::from_millis(400)).await;
    let body = pair.get("/engine/endless").await.into_body();
    let started = Instant::now();
    timeout(Duration::from_secs(3), is_gone).await.expect("not aborted").unwrap();
    assert!(started.elapsed() >= Duration::from_millis(350));
    assert!(until_broken(body).await, "a clean end");
    assert!(unharmed(&pair).await);
}

/// Only the reader's silence counts, however long the engine takes, and however slowly the reader reads.
async fn slow_engine_is_not_aborted(wire: Wire) {
    let slow = post(async || {
        let frames = futures::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            (n < 3).then(|| (Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(b"abc"))), n + 1))
        });
        AxumBody::new(http_body_util::StreamBody::new(frames))
    });
    let much = post(async || AxumBody::from(vec![b'z'; 400_000]));
    let routes = quick().route("/engine/slow", slow).route("/engine/much", much);
    let pair = connected(wire, routes, |settings| settings.stall = Duration::from_millis(400)).await;
    assert_eq!(pair.read("/engine/slow").await, "abcabcabc");
    let mut body = pair.get("/engine/much").await.into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read, 400_000);
}

//! Clients that go, and faults on demand.

use super::*;
use std::error::Error as _;
use tokio::time::timeout;

fn endless(stream: bool) -> String {
    with(hello(), json!({"stream": stream, "ignore_eos": true, "max_tokens": 20_000})).to_string()
}

const CHAT: &str = "/v1/chat/completions";
const SILENCE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_slot_at_once() {
    let demo = start(Config { slots: 1, ..paced(50.0) });
    for stream in [true, false] {
        let request = demo.send("POST", CHAT, endless(stream));
        if stream {
            let mut body = request.await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
            demo.until("vllm:num_requests_running", 1.0).await;
            drop(body);
        } else {
            assert!(timeout(SILENCE, request).await.is_err(), "an endless answer came");
        }
        let gone = Instant::now();
        demo.until("vllm:num_requests_running", 0.0).await;
        assert!(gone.elapsed() < Duration::from_secs(1), "{:?}", gone.elapsed());
    }
    demo.chat(&with(hello(), json!({"max_tokens": 1}))).await;
    let (_, text) = demo.get("/metrics").await;
    assert!(text.contains("finished_reason=\"abort\",model_name=\"demo\"} 2.0"), "{text}");
}

#[tokio::test]
async fn a_client_that_hangs_up_in_the_queue_leaves_it() {
    let demo = start(Config { slots: 1, ..paced(50.0) });
    let first = demo.send("POST", CHAT, endless(true)).await.unwrap();
    let second = demo.send("POST", CHAT, endless(true)).await.unwrap();
    demo.until("vllm:num_requests_waiting", 1.0).await;
    drop(second);
    demo.until("vllm:num_requests_waiting", 0.0).await;
    assert_eq!(demo.metric("vllm:num_requests_running").await, 1.0);
    drop(first);
    demo.until("vllm:num_requests_running", 0.0).await;
}

#[tokio::test]
async fn it_hangs_before_headers_or_after() {
    let demo = start(fast());
    demo.faults(&json!({"hang_before_headers": true, "times": 1})).await;
    assert!(timeout(SILENCE, demo.send("POST", CHAT, endless(true))).await.is_err());
    demo.faults(&json!({"hang_after_headers": true, "times": 1})).await;
    let response = timeout(SILENCE, demo.send("POST", CHAT, endless(true))).await.unwrap().unwrap();
    assert!(timeout(SILENCE, response.into_body().frame()).await.is_err());
    demo.chat(&hello()).await;
}

#[tokio::test]
async fn it_dies_after_so_many_tokens() {
    let demo = start(fast());
    for (death, terminal) in [("reset", false), ("close", false), ("clean_end", true)] {
        for after in [0, 1, 5] {
            demo.faults(&json!({"die_after_tokens": after, "death": death})).await;
            let response = demo.send("POST", CHAT, endless(true)).await.unwrap();
            let streamed = read_stream(response, usize::MAX).await;
            assert_eq!(streamed.deltas.len(), after, "{death} after {after}: {}", streamed.raw);
            assert!(!streamed.done);
            assert_eq!(streamed.error.is_none(), terminal, "{death}: {:?}", streamed.error);
            if death == "reset" {
                let error = streamed.error.unwrap();
                let reset = error.source().is_some_and(|cause| cause.to_string().contains("reset"));
                assert!(reset, "{error:?}");
            }
            let unary = demo.send("POST", CHAT, endless(false)).await;
            assert!(unary.is_err(), "an answer that isn't a stream dies without headers");
        }
    }
    demo.faults(&json!({"die_after_tokens": 3, "death": "hang", "times": 1})).await;
    let response = demo.send("POST", CHAT, endless(true)).await.unwrap();
    assert!(timeout(SILENCE, read_stream(response, usize::MAX)).await.is_err());
    demo.faults(&json!({})).await;
    demo.chat(&hello()).await;
    demo.until("vllm:num_requests_running", 0.0).await;
}

#[tokio::test]
async fn a_share_of_requests_fails() {
    let faults = Faults { error_rate: 0.5, error_status: 502, seed: 7, ..Faults::default() };
    let demo = start(Config { faults, ..fast() });
    let mut failed = 0;
    for _ in 0..60 {
        let (status, answer) = demo.post(CHAT, &with(hello(), json!({"max_tokens": 1}))).await;
        assert!([200, 502].contains(&status), "{answer}");
        failed += u32::from(status == 502);
    }
    assert!((15..45).contains(&failed), "{failed} of 60 failed at a rate of 0.5");
}

#[tokio::test]
async fn metrics_and_health_can_be_slow_or_missing() {
    let demo = start(fast());
    demo.faults(&json!({"metrics_delay_ms": 200, "unhealthy": true})).await;
    let begin = Instant::now();
    assert_eq!(demo.get("/metrics").await.0, 200);
    assert!(begin.elapsed() >= Duration::from_millis(200));
    assert_eq!(demo.get("/health").await.0, 503);
    demo.chat(&hello()).await;
    demo.faults(&json!({"no_metrics": true})).await;
    assert_eq!(demo.get("/metrics").await.0, 404);
    assert_eq!(demo.get("/health").await.0, 200);
}

#[tokio::test]
async fn faults_that_make_no_sense_are_refused() {
    let demo = start(fast());
    for faults in
        [json!({"error_rate": 2}), json!({"error_status": 200}), json!({"death": "exit"}), json!({"hang": true})]
    {
        assert_eq!(demo.post("/demo/faults", &faults).await.0, 400, "{faults}");
    }
    assert!(Engine::bind(Config { faults: Faults { error_rate: -1.0, ..Faults::default() }, ..fast() }).is_err());
}

#[tokio::test]
async fn it_shows_the_last_request_only_where_that_is_wanted() {
    let demo = start(Config { record: true, ..fast() });
    demo.chat(&hello()).await;
    let (_, last) = demo.get("/demo/last").await;
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["body"], hello().to_string());
    assert_eq!(last["path"], CHAT);
    assert_eq!(start(fast()).get("/demo/last").await.0, 404);
}

#[tokio::test]
async fn told_to_end_it_finishes_what_it_has() {
    let engine = Engine::bind(paced(50.0)).unwrap();
    let stop = CancellationToken::new();
    let address = engine.local_addr();
    let running = tokio::spawn(engine.run(stop.clone()));
    let demo = Demo { address, _stop: stop.clone().drop_guard() };
    let body = with(hello(), json!({"stream": true, "ignore_eos": true, "max_tokens": 20})).to_string();
    let response = demo.send("POST", CHAT, body).await.unwrap();
    stop.cancel();
    let streamed = read_stream(response, usize::MAX).await;
    assert!(streamed.done && streamed.deltas.len() == 20);
    timeout(Duration::from_secs(1), running).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

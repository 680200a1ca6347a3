//! Slots, queue, pace, caches, metrics.

use super::*;

/// A request of `tokens` tokens.
fn long(tokens: u32) -> Value {
    with(hello(), json!({"max_tokens": tokens, "ignore_eos": true}))
}

#[tokio::test]
async fn beyond_its_slots_requests_wait_in_their_order() {
    let demo = start(Config { slots: 2, ..paced(100.0) });
    let begin = Instant::now();
    let one = async |delay: u64| {
        tokio::time::sleep(Duration::from_millis(delay)).await;
        demo.chat(&long(20)).await;
        begin.elapsed().as_millis()
    };
    let watch = async {
        tokio::time::sleep(Duration::from_millis(140)).await;
        (demo.metric("vllm:num_requests_running").await, demo.metric("vllm:num_requests_waiting").await)
    };
    // 20 tokens at 100 per second take 190 ms from the first to the last.
    let (a, b, c, d, e, seen) = tokio::join!(one(0), one(20), one(40), one(60), one(80), watch);
    assert_eq!(seen, (2.0, 3.0));
    // Only lower bounds: on a busy machine all of it takes longer.
    let (both, next_both) = (a.max(b), c.max(d));
    assert!(a.min(b) >= 190, "two run at once: {a}, {b}");
    assert!(c.min(d) >= a.min(b) + 190 && c.min(d) >= both.min(380), "two wait for them: {c}, {d} after {a}, {b}");
    assert!(e >= c.min(d) + 190 && e >= next_both, "and one for those: {e} after {c}, {d}");
    demo.until("vllm:num_requests_running", 0.0).await;
    demo.until("vllm:num_requests_waiting", 0.0).await;
}

#[tokio::test]
async fn a_full_queue_refuses() {
    let demo = start(Config { slots: 1, queue: 1, ..paced(50.0) });
    let (ten, two) = (long(10), long(2));
    let (first, second, third) = tokio::join!(demo.chat(&ten), demo.chat(&two), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        demo.post("/v1/chat/completions", &two).await
    });
    assert_eq!(
        (first.1["usage"]["completion_tokens"].as_u64(), second.1["usage"]["completion_tokens"].as_u64()),
        (Some(10), Some(2))
    );
    assert_eq!(third.0, 503, "{}", third.1);
}

#[tokio::test]
async fn a_prompt_that_finds_no_room_in_the_kv_cache_waits() {
    let demo = start(Config { kv_tokens: 100, prefix_cache: false, ..paced(50.0) });
    let prompt = |words: usize| json!({"prompt": " wader".repeat(words), "max_tokens": 10});
    let watch = async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        (demo.metric("vllm:num_requests_running").await, demo.metric("vllm:kv_cache_usage_perc").await)
    };
    let (first, second) = (prompt(60), prompt(60));
    let (_, _, (running, usage)) =
        tokio::join!(demo.post("/v1/completions", &first), demo.post("/v1/completions", &second), watch);
    assert_eq!(running, 1.0);
    assert!((0.6..0.75).contains(&usage), "{usage}");
    demo.until("vllm:kv_cache_usage_perc", 0.0).await;
}

#[tokio::test]
async fn tokens_come_at_the_pace_that_was_set() {
    let speed = Speed {
        first_token: Duration::from_millis(100),
        per_prompt_token: Duration::from_millis(1),
        tokens_per_s: 100.0,
    };
    let demo = start(Config { speed, prefix_cache: false, ..Config::default() });
    let (_, tokenized) = demo.post("/tokenize", &hello()).await;
    let prefill = tokenized["count"].as_u64().unwrap();
    let begin = Instant::now();
    let body = with(long(21), json!({"stream": true})).to_string();
    let mut body = demo.send("POST", "/v1/chat/completions", body).await.unwrap().into_body();
    let headers = begin.elapsed();
    body.frame().await.unwrap().unwrap();
    let first = begin.elapsed();
    while body.frame().await.is_some() {}
    let whole = begin.elapsed();
    assert!(headers < first, "headers come before the first token, as vLLM's do: {headers:?}");
    let expected = Duration::from_millis(100 + prefill);
    assert!(first >= expected && first < expected * 4, "{first:?}, expected {expected:?}");
    // Counted from the request: a busy machine may see the first token late, and then the others too soon after it.
    let decoded = expected + Duration::from_millis(200);
    assert!(whole >= decoded && whole < decoded * 4, "20 further tokens came after {whole:?}, expected {decoded:?}");
}

#[tokio::test]
async fn a_prompt_seen_before_is_cached() {
    let speed = Speed { per_prompt_token: Duration::from_millis(1), ..Speed::UNLIMITED };
    let demo = start(Config { speed, ..Config::default() });
    let ask = |question: &str| {
        let system = " wader flock tide".repeat(100);
        json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}], "max_tokens": 2})
    };
    let timed = async |question: &str| {
        let begin = Instant::now();
        let (_, answer) = demo.chat(&ask(question)).await;
        (begin.elapsed(), answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    };
    let (cold, none) = timed("Who?").await;
    let (warm, most) = timed("What?").await;
    assert_eq!(none, 0);
    assert!(most > 280, "{most} of about 310 tokens were cached");
    assert!(cold >= Duration::from_millis(300) && warm < cold - Duration::from_millis(150), "{cold:?}, then {warm:?}");
    assert_eq!(demo.metric("vllm:prefix_cache_hits_total").await, most as f64);
    assert!(demo.metric("vllm:prefix_cache_queries_total").await > 600.0);
}

#[tokio::test]
async fn metrics_count_and_are_split_over_ranks() {
    let demo = start(Config { ranks: 4, metrics_bytes: 60_000, ..fast() });
    for _ in 0..3 {
        demo.chat(&long(7)).await;
    }
    assert_eq!(demo.metric("vllm:generation_tokens_total").await, 21.0);
    assert_eq!(demo.metric("vllm:time_to_first_token_seconds_count").await, 3.0);
    assert_eq!(demo.metric("vllm:inter_token_latency_seconds_count").await, 18.0);
    let (_, text) = demo.get("/metrics").await;
    assert!(text.len() >= 60_000);
    let ranks = text.lines().filter(|line| line.starts_with("vllm:num_requests_running{engine=")).count();
    assert_eq!(ranks, 4);
    assert!(
        text.contains("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"demo\"} 3.0")
    );
}

#[tokio::test]
async fn an_adapter_shows_in_the_metrics_while_it_works() {
    let adapter = Adapter { name: "shanty".into(), path: "s".into() };
    let demo = start(Config { adapters: vec![adapter], ..paced(50.0) });
    let body = with(long(20), json!({"model": "shanty"}));
    let (_, text) = tokio::join!(demo.chat(&body), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        demo.get("/metrics").await.1
    });
    assert!(text.contains("running_lora_adapters=\"shanty\",waiting_lora_adapters=\"\""), "{text}");
    assert!(demo.get("/metrics").await.1.contains("running_lora_adapters=\"\""));
}

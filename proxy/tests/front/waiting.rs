//! Requests that wait for a slot, or for a replica.

use crate::{
    client::{CHAT, Client},
    engine::{Engine, Play},
    mesh::Mesh,
};
use dunlin_protocol::announcement::ReplicaState;
use dunlin_proxy::keys::NewKey;
use futures::future::join_all;
use http::{Method, StatusCode};
use std::time::{Duration, Instant};

const WORK: Duration = Duration::from_millis(60);

#[tokio::test]
async fn more_requests_than_slots_all_get_their_turn() {
    let mesh = Mesh::new().await;
    let (one, two) = (Engine::with_slots(2, Play::Slow(WORK)), Engine::with_slots(2, Play::Slow(WORK)));
    let _one = mesh.agent(&["m"], 2, &one).await;
    let _two = mesh.agent(&["m"], 2, &two).await;
    let client = mesh.client();
    let since = Instant::now();
    let answers = join_all((0..24).map(|_| client.chat("m"))).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!((one.most(), two.most()), (2, 2));
    assert!(one.asked() >= 8 && two.asked() >= 8, "{} and {}", one.asked(), two.asked());
    // 24 requests of 60 ms on 4 slots take 360 ms at best, one after the other 1.4 s.
    assert!(since.elapsed() < WORK * 24, "{:?}", since.elapsed());
}

/// Who sends much at once waits for itself, not the others for it.
#[tokio::test]
async fn keys_take_turns() {
    let mesh = Mesh::new().await;
    let engine = Engine::with_slots(1, Play::Slow(WORK));
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let (greedy, modest) = (mesh.keys.create("").unwrap().key, mesh.keys.create("").unwrap().key);
    let (greedy, modest) = (mesh.client_with(Some(&greedy)), mesh.client_with(Some(&modest)));
    let many = tokio::spawn(async move { join_all((0..30).map(|_| greedy.chat("m"))).await });
    mesh.until(|_| engine.now() == 1).await;
    let since = Instant::now();
    for _ in 0..3 {
        assert_eq!(modest.chat("m").await.status, StatusCode::OK);
    }
    let answered = engine.asked();
    assert!(answered <= 12, "{answered} were asked before three of the modest one had their answers");
    assert!(since.elapsed() < WORK * 15, "{:?}", since.elapsed());
    assert!(many.await.unwrap().iter().all(|answer| answer.status == StatusCode::OK));
}

/// The priority of a key decides who waits behind whom.
#[tokio::test]
async fn higher_priority_goes_first() {
    let mesh = Mesh::new().await;
    let engine = Engine::with_slots(1, Play::Slow(WORK));
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let of = |priority| {
        let made = mesh.keys.make(NewKey { priority, ..NewKey::default() }).unwrap();
        mesh.client_with(Some(&made.0.key))
    };
    let high = of(5);
    // Each with a key of its own: among equals they would all have their turn before it.
    let many = join_all((0..6).map(|_| {
        let usual = of(0);
        tokio::spawn(async move { (usual.chat("m").await.status, Instant::now()) })
    }));
    let many = tokio::spawn(many);
    mesh.until(|_| engine.now() == 1).await;
    // Until all of them wait.
    tokio::time::sleep(WORK / 2).await;
    assert_eq!(high.chat("m").await.status, StatusCode::OK);
    let first = Instant::now();
    let ends: Vec<_> = many.await.unwrap().into_iter().map(Result::unwrap).collect();
    assert!(ends.iter().all(|(status, _)| *status == StatusCode::OK));
    let before = ends.iter().filter(|(_, end)| *end < first).count();
    assert!(before <= 3, "{before} of six that waited before it were served first");
}

#[tokio::test]
async fn who_would_wait_too_long_is_told_at_once() {
    let mesh = Mesh::with(|config| config.hold = WORK * 40).await;
    let engine = Engine::with_slots(1, Play::Slow(WORK));
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let client = mesh.client();
    let ask = |client: Client| async move { (client.chat("m").await, Instant::now()) };
    let many: Vec<_> = (0..80).map(|_| tokio::spawn(ask(client.clone()))).collect();
    while engine.asked() < 20 {
        tokio::time::sleep(WORK / 4).await;
    }
    let since = Instant::now();
    let answer = client.chat("m").await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.text().contains("will take longer than a request may wait"), "{}", answer.text());
    // Sixty times 60 ms.
    let retry: u64 = answer.header("retry-after").parse().unwrap();
    assert!((3..=8).contains(&retry), "{retry}");
    assert!(since.elapsed() < WORK, "{:?}", since.elapsed());
    for one in many {
        one.abort();
    }
}

/// Another proxy fills the replica: our view of it is wrong, and it refuses.
#[tokio::test]
async fn a_refusal_for_being_full_is_waited_out() {
    let mesh = Mesh::new().await;
    let engine = Engine::with_slots(1, Play::Slow(WORK * 3));
    let _agent = mesh.agent(&["m"], 8, &engine).await;
    let client = mesh.client();
    let answers = join_all((0..4).map(|_| client.chat("m"))).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK), "{answers:?}");
    assert_eq!(engine.most(), 1);
    assert_eq!(mesh.metric("dunlin_proxy_ejections_total").await, 0.0, "full is no failure");
}

#[tokio::test]
async fn the_wait_is_bounded_in_time_and_number() {
    let mesh = Mesh::with(|config| {
        config.hold = Duration::from_millis(200);
        config.waiting_per_model = 2;
    })
    .await;
    let engine = Engine::with_slots(1, Play::Hang);
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let client = mesh.client();
    let holder = tokio::spawn({
        let client = client.clone();
        async move { client.chat("m").await }
    });
    mesh.until(|_| engine.now() == 1).await;
    let since = Instant::now();
    let answers = join_all((0..5).map(|_| client.chat("m"))).await;
    for answer in &answers {
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::TOO_MANY_REQUESTS, "all_replicas_busy"));
        assert_eq!(answer.header("retry-after"), "1");
    }
    assert!(since.elapsed() >= Duration::from_millis(200));
    let many = answers.iter().filter(|answer| answer.text().contains("as many requests wait")).count();
    assert_eq!(many, 3);
    holder.abort();
}

/// C16.
#[tokio::test]
async fn a_request_is_held_while_a_replica_starts_and_refused_when_none_does() {
    let mesh = Mesh::with(|config| config.hold = Duration::from_millis(600)).await;
    let engine = Engine::saying("{}");
    let agent = mesh.agent_not_ready(&engine).await;
    agent.offer(ReplicaState::Starting, &["m"], 2).await;
    mesh.until(|mesh| mesh.knows(&agent, "m", false)).await;
    let client = mesh.client();
    let since = Instant::now();
    let answer = client.chat("m").await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no_replica_available"));
    assert!(answer.headers.contains_key("retry-after") && since.elapsed() >= Duration::from_millis(600));
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.chat("m").await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    agent.offer(ReplicaState::Ready, &["m"], 2).await;
    assert_eq!(held.await.unwrap().status, StatusCode::OK);
    agent.offer(ReplicaState::Draining, &["m"], 2).await;
    mesh.until(|mesh| mesh.knows(&agent, "m", false)).await;
    let since = Instant::now();
    assert_eq!(client.chat("m").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(since.elapsed() < Duration::from_millis(300), "at once");
}

/// How long a start takes is anybody's guess: not everybody may wait for it, whichever model it is.
#[tokio::test]
async fn few_are_held_for_replicas_that_start() {
    let mesh = Mesh::with(|config| (config.starting_per_model, config.starting) = (2, 3)).await;
    let engine = Engine::saying("{}");
    let agent = mesh.agent_not_ready(&engine).await;
    agent.offer(ReplicaState::Starting, &["m", "n"], 8).await;
    mesh.until(|mesh| mesh.knows(&agent, "m", false)).await;
    let client = mesh.client();
    let held = tokio::spawn({
        let client = client.clone();
        async move { join_all(["m", "m", "n"].map(|model| client.chat(model))).await }
    });
    let since = Instant::now();
    while mesh.metric("dunlin_proxy_waiting").await < 3.0 {
        assert!(since.elapsed() < Duration::from_secs(10), "not held");
    }
    for one_too_many in ["m", "n"] {
        let answer = client.chat(one_too_many).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no_replica_available"));
        assert!(
            answer.headers.contains_key("retry-after") && answer.text().contains("that starts"),
            "{}",
            answer.text()
        );
    }
    agent.offer(ReplicaState::Ready, &["m", "n"], 8).await;
    assert!(held.await.unwrap().iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(client.chat("m").await.status, StatusCode::OK);
    // Those that were held count no more.
    agent.offer(ReplicaState::Starting, &["m", "n"], 8).await;
    mesh.until(|mesh| mesh.knows(&agent, "m", false)).await;
    let again = tokio::spawn(async move { client.chat("m").await });
    mesh.until(|_| !again.is_finished()).await;
    agent.offer(ReplicaState::Ready, &["m", "n"], 8).await;
    assert_eq!(again.await.unwrap().status, StatusCode::OK);
}

/// C2: the only replica's report says full and is too old to be believed.
#[tokio::test]
async fn a_single_replica_with_a_stale_report_is_served_at_once() {
    let mesh = Mesh::with(|config| config.fresh = Duration::from_millis(150)).await;
    let engine = Engine::saying("{}");
    let agent = mesh.agent(&["m"], 2, &engine).await;
    agent.report(2, 2);
    mesh.until(|mesh| mesh.proxy.directory().read(|d| d.replica(&agent.replica()).is_some_and(|r| r.load.is_some())))
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let since = Instant::now();
    let answer = mesh.client().chat("m").await;
    assert_eq!((answer.status, answer.header("x-dunlin-route")), (StatusCode::OK, "stale"));
    assert!(since.elapsed() < Duration::from_millis(150), "{:?}", since.elapsed());
}

/// C5: the ladder's step can be seen.
#[tokio::test]
async fn the_step_of_the_ladder_is_named() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let agent = mesh.agent(&["m"], 2, &engine).await;
    assert_eq!(mesh.client().chat("m").await.header("x-dunlin-route"), "round-robin");
    agent.report(2, 0);
    mesh.until(|mesh| mesh.proxy.directory().read(|d| d.replica(&agent.replica()).is_some_and(|r| r.load.is_some())))
        .await;
    assert_eq!(mesh.client().chat("m").await.header("x-dunlin-route"), "fresh");
    for step in ["round-robin", "fresh"] {
        let series = format!("dunlin_proxy_requests_total{{model=\"m\",status=\"200\",route=\"{step}\"}}");
        assert_eq!(mesh.metric(&series).await, 1.0, "{step}");
    }
}

#[tokio::test]
async fn who_hangs_up_while_waiting_is_not_served() {
    let mesh = Mesh::new().await;
    let engine = Engine::with_slots(1, Play::Slow(WORK * 4));
    let _agent = mesh.agent(&["m"], 1, &engine).await;
    let client = mesh.client();
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.chat("m").await }
    });
    mesh.until(|_| engine.now() == 1).await;
    let body = r#"{"model":"m"}"#;
    let gone = tokio::spawn({
        let client = mesh.client();
        async move { client.send(client.request(Method::POST, CHAT, body)).await }
    });
    tokio::time::sleep(WORK).await;
    gone.abort();
    assert_eq!(first.await.unwrap().status, StatusCode::OK);
    tokio::time::sleep(WORK).await;
    assert_eq!((engine.asked(), engine.now()), (1, 0));
    assert_eq!(mesh.metric("dunlin_proxy_waiting").await, 0.0);
}

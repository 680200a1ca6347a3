//! What replicas do wrong, and how little of it the client notices.

use crate::{
    engine::{Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use dunlin_protocol::{announcement::ReplicaState, hop::Fault};
use futures::future::join_all;
use http::StatusCode;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);

/// C6: one of two replicas is killed under load; no request fails before its first byte.
#[tokio::test]
async fn a_replica_killed_under_load_fails_no_request() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Slow(Duration::from_millis(30)));
    let (mut dies, _lives) = (mesh.agent(&["m"], 64, &engine).await, mesh.agent(&["m"], 64, &engine).await);
    let client = mesh.client();
    let loops = (0..8).map(|_| async {
        let mut statuses = Vec::new();
        for _ in 0..25 {
            statuses.push(client.chat("m").await.status);
        }
        statuses
    });
    let killer = async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        dies.kill().await;
    };
    let (statuses, ()) = tokio::join!(join_all(loops), killer);
    let failed: Vec<_> = statuses.iter().flatten().filter(|status| **status != StatusCode::OK).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(statuses.iter().map(Vec::len).sum::<usize>(), 200);
}

/// C7: it takes the request and never answers.
#[tokio::test]
async fn a_hung_replica_costs_one_deadline_and_is_left_for_another() {
    let mesh = Mesh::with(|config| config.first_byte = Some(SHORT)).await;
    let (hangs, good) =
        (Engine::new(Play::Hang), Engine::new(Play::Stream(vec!["data: [DONE]\n\n"], SHORT / 30, true)));
    let _hangs = mesh.agent(&["m"], 4, &hangs).await;
    // Alone, so that it is asked for certain.
    let since = Instant::now();
    let alone = mesh.client().stream("m").await;
    assert_eq!((alone.status, alone.code().as_str()), (StatusCode::GATEWAY_TIMEOUT, "replica_timeout"));
    assert!(since.elapsed() < SHORT * 4, "{:?}", since.elapsed());
    assert!(alone.headers.contains_key("retry-after"));
    let good_agent = mesh.agent(&["m"], 4, &good).await;
    for _ in 0..6 {
        let answer = mesh.client().stream("m").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        assert_eq!(answer.header("x-dunlin-replica"), good_agent.replica().to_string());
    }
    // The engine's head alone is no first byte.
    hangs.play(Play::HeadOnly);
    for _ in 0..4 {
        assert_eq!(mesh.client().stream("m").await.status, StatusCode::OK);
    }
    assert!(hangs.asked() >= 2);
    mesh.until(|_| hangs.now() == 0).await;
}

/// What has never been measured is late after an eighth of its deadline, and then several are asked together.
#[tokio::test]
async fn others_are_asked_beside_those_that_hang_and_the_first_answer_is_taken() {
    let deadline = Duration::from_secs(8);
    let mesh = Mesh::with(|config| config.first_byte = Some(deadline)).await;
    let hangs = Engine::new(Play::Hang);
    let _hang = [mesh.agent(&["m"], 4, &hangs).await, mesh.agent(&["m"], 4, &hangs).await];
    let good = Engine::new(Play::Stream(vec!["data: [DONE]\n\n"], Duration::from_millis(10), true));
    let agent = mesh.agent(&["m"], 4, &good).await;
    // Among three, the good one is the first in its turn for some.
    for _ in 0..6 {
        let since = Instant::now();
        let answer = mesh.client().stream("m").await;
        assert_eq!((answer.status, answer.header("x-dunlin-replica")), (StatusCode::OK, &*agent.replica().to_string()));
        assert!(since.elapsed() < deadline / 2, "{:?}", since.elapsed());
    }
    assert!(hangs.asked() >= 2 && mesh.metric("dunlin_proxy_retries_total{cause=\"late\"}").await >= 2.0);
    mesh.until(|_| hangs.now() == 0).await;
    // An answer in one piece may take as long as it likes, on a connection that is alive.
    let slow = Engine::new(Play::Slow(Duration::from_millis(1500)));
    let _slow = mesh.agent(&["n"], 4, &slow).await;
    let _other = mesh.agent(&["n"], 4, &slow).await;
    assert_eq!(mesh.client().chat("n").await.status, StatusCode::OK);
    assert_eq!(slow.asked(), 1);
}

#[tokio::test]
async fn bad_gateways_go_elsewhere_and_the_replica_is_ejected_and_returns() {
    let mesh = Mesh::new().await;
    let gateway =
        |status| Play::Say(status, "application/json", Bytes::from_static(b"{\"error\":{\"message\":\"words\"}}"));
    let bad = Engine::new(gateway(StatusCode::BAD_GATEWAY));
    let _bad = mesh.agent(&["m"], 64, &bad).await;
    // With nobody else to ask, the engine's own words are the best answer there is.
    let alone = mesh.client().chat("m").await;
    assert_eq!((alone.status, alone.text().as_str()), (StatusCode::BAD_GATEWAY, "{\"error\":{\"message\":\"words\"}}"));
    let good = Engine::saying("{}");
    let _good = mesh.agent(&["m"], 64, &good).await;
    for _ in 0..20 {
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    }
    let while_out = bad.asked();
    assert!((3..=4).contains(&while_out), "ejected after three failures: {while_out}");
    assert!(mesh.metric("dunlin_proxy_ejections_total").await >= 1.0);
    assert!(mesh.metric("dunlin_proxy_retries_total").await >= 2.0);
    bad.play(Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{}")));
    // On a slow machine it was tried in vain meanwhile and is out for two seconds.
    let since = Instant::now();
    while bad.asked() <= while_out + 3 {
        assert!(since.elapsed() < Duration::from_secs(5), "not back in rotation: {}", bad.asked());
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// C15: everybody fails; the client gets a reason and when to come back.
#[tokio::test]
async fn when_all_fail_the_client_is_told_why_and_when_to_return() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::Refuse(Fault::Engine));
    let (_a, _b) = (mesh.agent(&["m"], 4, &engine).await, mesh.agent(&["m"], 4, &engine).await);
    for _ in 0..6 {
        let answer = mesh.client().chat("m").await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_GATEWAY, "replicas_failed"));
        assert!(answer.headers.contains_key("retry-after") && answer.text().contains("engine failed"));
    }
    assert_eq!(engine.asked(), 18, "three tries each, ejected or not: the pool is never empty");
}

/// Its head says that a stream comes, and then it ends or breaks: nothing has been sent yet, so another is asked.
#[tokio::test]
async fn a_stream_that_ends_before_its_first_event_is_asked_for_again_elsewhere() {
    for clean in [true, false] {
        let mesh = Mesh::new().await;
        let empty = Engine::new(Play::Stream(vec![], Duration::from_millis(1), clean));
        let good = Engine::new(Play::Stream(vec!["data: [DONE]\n\n"], Duration::from_millis(1), true));
        let _empty = mesh.agent(&["m"], 4, &empty).await;
        let _good = mesh.agent(&["m"], 4, &good).await;
        for _ in 0..6 {
            let answer = mesh.client().stream("m").await;
            assert_eq!((answer.status, answer.text().as_str()), (StatusCode::OK, "data: [DONE]\n\n"), "{clean}");
        }
        assert!(empty.asked() > 0);
    }
}

/// C19: it announces a model that its agent refuses.
#[tokio::test]
async fn a_liar_is_left_for_another() {
    let mesh = Mesh::new().await;
    let (liar, honest) = (Engine::new(Play::Refuse(Fault::Agent)), Engine::saying("{}"));
    let _liar = mesh.agent(&["m"], 4, &liar).await;
    let _honest = mesh.agent(&["m"], 4, &honest).await;
    for _ in 0..12 {
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    }
    assert!(liar.asked() <= 4, "{}", liar.asked());
}

/// Else clients could eject healthy replicas with requests that an engine can't do, or stumbles over.
#[tokio::test]
async fn errors_that_a_request_may_have_caused_eject_nobody() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    for status in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::NOT_IMPLEMENTED] {
        engine.play(Play::Say(status, "application/json", Bytes::from_static(b"{}")));
        for _ in 0..4 {
            assert_eq!(mesh.client().chat("m").await.status, status);
        }
    }
    assert_eq!(mesh.metric("dunlin_proxy_ejections_total").await, 0.0);
}

/// It lists a model that it has just unloaded: that says nothing of its other models.
#[tokio::test]
async fn a_replica_that_lacks_one_model_serves_the_others() {
    let mesh = Mesh::new().await;
    let (lacks, has) = (Engine::saying("{}"), Engine::saying("{}"));
    let lacking = mesh.agent(&["m", "n"], 64, &lacks).await;
    lacks.play(Play::RefuseAs(Fault::NotServed, StatusCode::SERVICE_UNAVAILABLE, "yes"));
    // Alone, it is asked once per request, and the client may come back.
    let alone = mesh.client().chat("m").await;
    assert_eq!((alone.status, alone.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "replicas_failed"));
    assert_eq!(lacks.asked(), 1);
    let having = mesh.agent(&["m", "n"], 64, &has).await;
    for _ in 0..12 {
        assert_eq!(mesh.client().chat("m").await.header("x-dunlin-replica"), having.replica().to_string());
    }
    assert_eq!(lacks.asked(), 1, "remembered for a while");
    assert_eq!(mesh.metric("dunlin_proxy_ejections_total").await, 0.0);
    lacks.play(Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{}")));
    let mut chosen = Vec::new();
    for _ in 0..20 {
        chosen.push(mesh.client().chat("n").await.header("x-dunlin-replica").to_owned());
    }
    assert!(chosen.contains(&lacking.replica().to_string()), "{chosen:?}");
}

/// The agent waited for its engine in vain for minutes, and the engine may be at it still.
#[tokio::test]
async fn an_engine_that_was_silent_is_not_asked_again_at_once() {
    let mesh = Mesh::new().await;
    let engine = Engine::new(Play::RefuseAs(Fault::Silent, StatusCode::BAD_GATEWAY, "no"));
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    let answer = mesh.client().chat("m").await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::GATEWAY_TIMEOUT, "replica_timeout"));
    assert_eq!(engine.asked(), 1);
    let other = Engine::saying("{}");
    let _other = mesh.agent(&["m"], 64, &other).await;
    for _ in 0..6 {
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    }
    assert!(mesh.metric("dunlin_proxy_retries_total{cause=\"timeout\"").await >= 1.0);
}

/// What an agent says is in a header that no engine can set; a status is the engine's, or some client's doing.
#[tokio::test]
async fn a_status_is_not_taken_for_the_agents_word() {
    let mesh = Mesh::new().await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 64, &engine).await;
    // The engine's own 404 is the client's answer, and nobody remembers that the replica lacks the model.
    engine.play(Play::Say(
        StatusCode::NOT_FOUND,
        "application/json",
        Bytes::from_static(b"{\"error\":{\"message\":\"words\"}}"),
    ));
    for _ in 0..3 {
        let answer = mesh.client().chat("m").await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (StatusCode::NOT_FOUND, "{\"error\":{\"message\":\"words\"}}")
        );
    }
    // An agent's failure with the status of another refusal is that failure.
    for (status, retry_safe) in [(StatusCode::NOT_FOUND, "no"), (StatusCode::GATEWAY_TIMEOUT, "no")] {
        engine.play(Play::RefuseAs(Fault::Agent, status, retry_safe));
        let answer = mesh.client().chat("m").await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_GATEWAY, "replicas_failed"));
        assert!(answer.text().contains("refused the request"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_draining_replica_sends_its_requests_elsewhere() {
    let mesh = Mesh::new().await;
    let (drains, stays) = (Engine::new(Play::Refuse(Fault::Draining)), Engine::saying("{}"));
    let _drains = mesh.agent(&["m"], 4, &drains).await;
    let _stays = mesh.agent(&["m"], 4, &stays).await;
    for _ in 0..10 {
        assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    }
    assert_eq!(mesh.metric("dunlin_proxy_ejections_total").await, 0.0, "draining is no failure");
}

/// C8: it comes back as a new process at a new address.
#[tokio::test]
async fn a_replica_that_returns_is_used_again() {
    let mesh = Mesh::with(|config| config.hold = SHORT).await;
    let engine = Engine::saying("{}");
    let mut first = mesh.agent(&["m"], 4, &engine).await;
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    assert_eq!(mesh.client().get("/ready").await.status, StatusCode::OK);
    first.kill().await;
    mesh.until(|mesh| !mesh.knows(&first, "m", true)).await;
    assert_eq!(mesh.client().get("/ready").await.status, StatusCode::SERVICE_UNAVAILABLE, "nobody is left");
    assert_eq!(mesh.client().get("/v1/models").await.json()["data"], serde_json::json!([]));
    assert_eq!(mesh.client().get("/v1/models/m").await.status, StatusCode::NOT_FOUND);
    let gone = mesh.client().chat("m").await;
    assert!(gone.status.is_server_error() && gone.headers.contains_key("retry-after"), "{}", gone.text());
    let _second = mesh.agent(&["m"], 4, &engine).await;
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
}

/// C8: requests that come while the only replica is started again wait for it, whether it was asked lately or not.
#[tokio::test]
async fn requests_wait_for_the_only_replica_to_return() {
    for asked_before in [true, false] {
        let mesh = Mesh::with(|config| config.hold = Duration::from_secs(8)).await;
        let engine = Engine::saying("{}");
        let mut first = mesh.agent(&["m"], 4, &engine).await;
        if asked_before {
            assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
        } else {
            // The pool notes once a second who is there.
            tokio::time::sleep(Duration::from_millis(1200)).await;
        }
        first.kill().await;
        let client = mesh.client();
        let held = tokio::spawn(async move { join_all((0..6).map(|_| client.chat("m"))).await });
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!held.is_finished(), "answered without a replica");
        // The same node, as a new process: connected first, then starting, then ready.
        let again = mesh.restart(first, &engine).await;
        tokio::time::sleep(SHORT).await;
        let late = mesh.client();
        let late = tokio::spawn(async move { late.chat("m").await });
        again.offer(ReplicaState::Starting, &["m"], 4).await;
        tokio::time::sleep(SHORT).await;
        again.offer(ReplicaState::Ready, &["m"], 4).await;
        for answer in held.await.unwrap().into_iter().chain([late.await.unwrap()]) {
            assert_eq!(answer.status, StatusCode::OK, "{asked_before}: {}", answer.text());
        }
    }
}

/// Its agent is there and its engine is not: a moment ago it was.
#[tokio::test]
async fn requests_wait_for_an_engine_that_just_answered() {
    let mesh = Mesh::with(|config| config.hold = Duration::from_secs(5)).await;
    let engine = Engine::saying("{}");
    let _agent = mesh.agent(&["m"], 4, &engine).await;
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::OK);
    engine.play(Play::RefuseAs(Fault::Engine, StatusCode::BAD_GATEWAY, "yes"));
    let client = mesh.client();
    let held = tokio::spawn(async move { client.chat("m").await });
    tokio::time::sleep(SHORT * 3).await;
    assert!(!held.is_finished());
    engine.play(Play::Say(StatusCode::OK, "application/json", Bytes::from_static(b"{}")));
    assert_eq!(held.await.unwrap().status, StatusCode::OK);
    // Where it may have begun, the client is told at once.
    engine.play(Play::RefuseAs(Fault::Engine, StatusCode::BAD_GATEWAY, "no"));
    let since = Instant::now();
    assert_eq!(mesh.client().chat("m").await.status, StatusCode::BAD_GATEWAY);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

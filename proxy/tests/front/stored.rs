//! Stored responses: found at the replica that holds them, by whoever they belong to.

use crate::{
    engine::{Asked, Engine, Play},
    mesh::Mesh,
};
use bytes::Bytes;
use dunlin_proxy::keys::{Limits, NewKey};
use http::{Method, StatusCode};
use std::sync::Arc;

/// Keeps one response, as an engine does: others have nothing of it.
fn keeper(id: &'static str) -> Engine {
    let holds = format!("{{\"id\":\"{id}\",\"object\":\"response\"}}");
    Engine::new(Play::By(Arc::new(move |asked: &Asked, _| {
        let known = asked.path.ends_with(id) || asked.path.ends_with(&format!("{id}/cancel"));
        match asked.path.as_str() {
            "/engine/v1/responses" => Play::Say(StatusCode::OK, "application/json", Bytes::from(holds.clone())),
            _ if known => Play::Say(StatusCode::OK, "application/json", Bytes::from(holds.clone())),
            _ => {
                Play::Say(StatusCode::NOT_FOUND, "application/json", Bytes::from_static(b"{\"detail\":\"Not Found\"}"))
            }
        }
    })))
}

#[tokio::test]
async fn a_response_is_asked_of_the_replica_that_holds_it() {
    let mesh = Mesh::new().await;
    let client = mesh.client();
    let (a, b) = (keeper("resp_a"), keeper("resp_b"));
    let (agent_a, agent_b) = (mesh.agent(&["m"], 8, &a).await, mesh.agent(&["m"], 8, &b).await);
    let mut holders = std::collections::HashMap::new();
    // Until both have given one.
    for n in 0..200 {
        let answer = client.post("/v1/responses", format!(r#"{{"model":"m","input":"{n}"}}"#)).await;
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        holders.insert(id, answer.header("x-dunlin-replica").to_owned());
        if holders.len() == 2 {
            break;
        }
    }
    assert_eq!(holders["resp_a"], agent_a.replica().to_string());
    assert_eq!(holders["resp_b"], agent_b.replica().to_string());
    for (id, holder) in &holders {
        for _ in 0..5 {
            let got = client.get(&format!("/v1/responses/{id}")).await;
            assert_eq!((got.status, got.header("x-dunlin-replica")), (StatusCode::OK, holder.as_str()));
            let next = format!(r#"{{"model":"m","input":"x","previous_response_id":"{id}"}}"#);
            let next = client.post("/v1/responses", next).await;
            assert_eq!(next.header("x-dunlin-replica"), holder);
        }
        let cancelled = client.post(&format!("/v1/responses/{id}/cancel"), "").await;
        assert_eq!((cancelled.status, cancelled.header("x-dunlin-replica")), (StatusCode::OK, holder.as_str()));
    }
    // Another's are not there, rather than forbidden.
    let other = mesh.other_client("other").await;
    for method in [Method::GET, Method::DELETE] {
        let answer = other.send(other.request(method, "/v1/responses/resp_a", "")).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::NOT_FOUND, "response_not_found"));
    }
    let stolen = other.post("/v1/responses", r#"{"model":"m","previous_response_id":"resp_a"}"#).await;
    assert_eq!(stolen.code(), "response_not_found");
    let unknown = client.get("/v1/responses/resp_none").await;
    assert_eq!(unknown.code(), "response_not_found");
    // Forgotten once the engine has forgotten it.
    let deleted = client.send(client.request(Method::DELETE, "/v1/responses/resp_a", "")).await;
    assert_eq!(deleted.status, StatusCode::OK);
    assert_eq!(client.get("/v1/responses/resp_a").await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get("/v1/responses/resp_b").await.status, StatusCode::OK);
}

/// What nobody answers is no use of a limit.
#[tokio::test]
async fn a_response_that_is_not_there_counts_against_no_limit() {
    let mesh = Mesh::new().await;
    let _agent = mesh.agent(&["m"], 8, &keeper("resp_a")).await;
    let limits = Limits { requests_per_minute: Some(2), ..Limits::default() };
    let key = mesh.keys.make(NewKey { limits, ..NewKey::default() }).unwrap().0.key;
    let client = mesh.client_with(Some(&key));
    for _ in 0..3 {
        assert_eq!(client.get("/v1/responses/resp_none").await.status, StatusCode::NOT_FOUND);
        let next = client.post("/v1/responses", r#"{"model":"m","previous_response_id":"resp_none"}"#).await;
        assert_eq!((next.status, next.code().as_str()), (StatusCode::NOT_FOUND, "response_not_found"));
    }
    let statuses = [(); 3].map(|()| client.post("/v1/responses", r#"{"model":"m","input":"x"}"#));
    let statuses: Vec<u16> = futures::future::join_all(statuses).await.iter().map(|it| it.status.as_u16()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
    // Who may ask no more has no question about responses passed on either.
    let next = client.post("/v1/responses", r#"{"model":"m","previous_response_id":"resp_none"}"#).await;
    assert_eq!(next.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_response_whose_replica_is_away_is_asked_of_nobody_else() {
    let mesh = Mesh::with(|config| config.hold = std::time::Duration::from_millis(300)).await;
    let client = mesh.client();
    let (a, b) = (keeper("resp_a"), keeper("resp_b"));
    let agent = mesh.agent(&["m"], 8, &a).await;
    assert_eq!(client.post("/v1/responses", r#"{"model":"m","input":"x"}"#).await.json()["id"], "resp_a");
    let _other = mesh.agent(&["m"], 8, &b).await;
    agent.offer(dunlin_protocol::announcement::ReplicaState::Draining, &["m"], 8).await;
    mesh.until(|mesh| mesh.knows(&agent, "m", false)).await;
    let answer = client.get("/v1/responses/resp_a").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text());
    assert_eq!(b.asked(), 0);
}

//! Members that cannot reach each other meet through a relay.

use crate::harness::*;
use dunlin_node::{Config, directory::Reachability, hop};
use dunlin_protocol::{announcement::ReplicaState, id::Role, pattern::Models};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_proxy_reaches_an_agent_through_a_relay() {
    let mesh = Mesh::new(&[TCP]).await;
    let relay = mesh.member(&[Role::Relay], &[&mesh.first]).await;
    // Neither of the two listens: no connection between them is possible but a relayed one.
    let (home, state) = mesh.invite(roles(&[Role::Agent]), Models::Any);
    let mut config = Config::new(state, roles(&[Role::Agent]));
    config.relays = relay.addresses();
    config.bootstrap = relay.addresses();
    config.reachable = false;
    let agent = Member::run(config, Some(home)).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    let proxy = mesh.member_on(&[Role::Proxy], &[], &[&relay]).await;

    let peer = agent.peer();
    let reached = || proxy.handle.directory().read(|directory| directory.peer(&peer).map(|view| view.reachability));
    until("relayed", SOON, || matches!(reached(), Some(Reachability::Connected { relayed: true, .. }))).await;
    until("known", SOON, || knows_replica(&proxy, "m", &agent)).await;
    let id = agent.handle.replica_id(0);
    // Pulled over the hop, through the relay: the record alone does not say how many slots there are.
    let slots = || proxy.handle.directory().read(|directory| directory.replica(&id).map(|replica| replica.slots));
    until("slots", SOON, || slots() == Some(4)).await;
}

/// An answer that takes three seconds, in 30 pieces.
async fn slow() -> axum::body::Body {
    let pieces = futures::stream::unfold(0_u8, |sent| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (sent < 30).then(|| (Ok::<_, std::convert::Infallible>(bytes::Bytes::from(vec![sent; 100])), sent + 1))
    });
    axum::body::Body::from_stream(pieces)
}

#[tokio::test]
async fn a_relayed_pair_moves_to_a_direct_connection_and_loses_no_answer() {
    let mesh = Mesh::new(&[TCP]).await;
    let relay = mesh.member(&[Role::Relay], &[]).await;
    let (home, state) = mesh.invite(roles(&[Role::Agent]), Models::Any);
    let mut config = Config::new(state, roles(&[Role::Agent]));
    // A name, since loopback addresses are told to nobody who wasn't met there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    config.listen = vec![format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()];
    config.external = vec![format!("/dns4/localhost/tcp/{port}").parse().unwrap()];
    config.relays = relay.addresses();
    config.bootstrap = relay.addresses();
    let routes = axum::Router::new().route("/engine/{*path}", axum::routing::any(slow));
    let agent = Member::run_with(config, routes, Some(home)).await;
    let peer = agent.peer();
    until("reserved", SOON, || agent.addresses().iter().any(dunlin_node::addresses::is_relayed)).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;

    // All that it is told is the way through the relay.
    let through = agent.addresses().into_iter().filter(dunlin_node::addresses::is_relayed).collect::<Vec<_>>();
    let (home, state) = mesh.invite(roles(&[Role::Proxy]), Models::Any);
    let proxy = Member::start(state, roles(&[Role::Proxy]), &[], &through, Some(home)).await;
    let relayed = || {
        let reached = proxy.handle.directory().read(|directory| directory.peer(&peer).map(|view| view.reachability));
        match reached {
            Some(Reachability::Connected { relayed, .. }) => Some(relayed),
            _ => None,
        }
    };
    until("connected", SOON, || relayed().is_some()).await;
    assert_eq!(relayed(), Some(true), "not through the relay at first");
    let request = http::Request::post("/engine/v1/chat/completions").body(hop::Body::empty()).unwrap();
    let answer = proxy.handle.hop().send(peer, request).await.unwrap();
    let body = tokio::spawn(http_body_util::BodyExt::collect(answer.into_body()));
    until("direct", SOON, || relayed() == Some(false)).await;
    let body = body.await.unwrap().expect("the answer broke off").to_bytes();
    assert_eq!(body.len(), 3000);
}

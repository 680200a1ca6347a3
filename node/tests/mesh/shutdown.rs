//! A node ends within seconds, whatever goes on.

use crate::harness::*;
use dunlin_node::{Config, LookupError, Node, clock, hop};
use dunlin_protocol::{
    certificate::{self, Membership},
    id::{PeerId, Role},
    pattern::Models,
    revocation::ListVersion,
};
use libp2p::multiaddr::{Multiaddr, Protocol};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const DAY: u64 = 24 * 60 * 60;
const AT_ONCE: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn a_renewal_under_way_does_not_hold_it_up() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = roles(&[Role::Agent]);
    let (home, state) = mesh.invite_at(agent, Models::Any, clock::unix_s() - 25 * DAY);
    // An issuer at an address where somebody listens and says nothing.
    let issuer = PeerId::random();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
    let member = Member::start(state, agent, &[TCP], &[address.with(Protocol::P2p(issuer))], Some(home)).await;
    let own = member.handle.members().own();
    let capabilities = vec![certificate::ISSUE.to_owned()];
    let membership = Membership { peer: issuer, capabilities, ..(*own).clone() };
    member.handle.members().insert(membership, ListVersion::default());
    let (_open, _) = silent.accept().await.unwrap();
    // By now it asks for a connection to the issuer as well.
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let start = Instant::now();
    let _home = member.stop().await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

#[tokio::test]
async fn who_asks_during_the_end_is_told_of_it() {
    let mesh = Mesh::new(&[TCP]).await;
    let (_home, state) = mesh.invite(roles(&[Role::Agent]), Models::Any);
    let mut config = Config::new(state, roles(&[Role::Agent]));
    config.listen = vec![TCP.parse().unwrap()];
    config.bootstrap = mesh.first.addresses();
    // The end waits for the answer to a request in flight.
    let hang = axum::routing::post(async || std::future::pending::<()>().await);
    let (node, handle) = Node::start(config, axum::Router::new().route("/engine/hang", hang)).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(node.run(shutdown.clone()));
    let first = mesh.first.handle.clone();
    until("connected", Duration::from_secs(5), || first.hop().connected(&handle.peer_id())).await;
    let peer = handle.peer_id();
    let request = http::Request::post("/engine/hang").body(hop::Body::empty()).unwrap();
    let asking = tokio::spawn(async move { first.hop().send(peer, request).await.map(drop) });
    tokio::time::sleep(Duration::from_millis(300)).await;

    let unknown = handle.clone();
    let before = tokio::spawn(async move { unknown.look_up(topic("before")).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!running.is_finished());
    let told = tokio::time::timeout(Duration::from_secs(1), handle.look_up(topic("after"))).await.unwrap();
    assert_eq!(told, Err(LookupError::Stopped));
    let told = tokio::time::timeout(Duration::from_secs(1), before).await.unwrap().unwrap();
    assert!(matches!(told, Err(LookupError::Stopped) | Ok(0)), "{told:?}");
    running.abort();
    asking.abort();
}

//! Members that cannot reach each other meet through a relay.

use crate::harness::*;
use dunlin_node::{Config, directory::Reachability};
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

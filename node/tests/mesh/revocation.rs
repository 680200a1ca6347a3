//! Revocation: everywhere within seconds, also where nobody was when it was made.

use crate::harness::*;
use dunlin_protocol::{announcement::ReplicaState, id::Role};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_revoked_member_is_out_everywhere() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    for at in [&mesh.first, &proxy] {
        until("connected", SOON, || is_connected(at, &agent) && knows_replica(at, "m", &agent)).await;
    }
    let away = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    let home = away.stop().await.unwrap();

    mesh.first.handle.revoke(agent.peer()).await.unwrap();
    for at in [&mesh.first, &proxy] {
        until("out", SOON, || !is_connected(at, &agent) && !knows_replica(at, "m", &agent)).await;
    }
    // It keeps trying, and stays out.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!is_connected(&mesh.first, &agent) && !is_connected(&proxy, &agent));

    let state = dunlin_node::state::StateDir::open(home.path()).unwrap();
    let back = Member::start(state, roles(&[Role::Proxy]), &[TCP], &proxy.addresses(), Some(home)).await;
    until("the list was fetched", SOON, || back.handle.members().revocations().len() == 1).await;
    assert!(!knows_replica(&back, "m", &agent));
}

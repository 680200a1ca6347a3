//! Revocation: everywhere within seconds, also where nobody was when it was made.

use crate::{
    harness::*,
    light::{BehaviourEvent, Light},
};
use dunlin_node::{
    clock,
    gossip::{self, MeshMessage},
};
use dunlin_protocol::{
    announcement::ReplicaState,
    certificate::Membership,
    id::Role,
    pattern::Models,
    revocation::{ListVersion, RevocationList},
};
use futures::StreamExt;
use libp2p::{gossipsub, swarm::SwarmEvent};
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
    let stored = std::fs::read(mesh.home.path().join("revocations")).unwrap();
    assert_eq!(RevocationList::decode(&stored).unwrap().len(), 1, "on disk before anybody is told");
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

/// A member that is connected and has not subscribed yet: it was asked for its list before there was anything on ours.
#[tokio::test]
async fn who_missed_a_revocation_hears_of_it_again() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    until("connected", SOON, || is_connected(&mesh.first, &agent)).await;
    let mut late = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    late.connect(&mesh.first).await;
    mesh.first.handle.revoke(agent.peer()).await.unwrap();
    late.idle(Duration::from_secs(1)).await;
    late.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    let hears = async {
        loop {
            if let SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Message { message, .. })) =
                late.swarm.select_next_some().await
                && matches!(MeshMessage::decode(&message.data), Ok(MeshMessage::Revocation(_)))
            {
                break;
            }
        }
    };
    tokio::time::timeout(4 * SOON, hears).await.expect("nobody said it again");
}

#[tokio::test]
async fn a_connection_ends_with_the_rights_however_they_ended() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    until("connected", SOON, || is_connected(&mesh.first, &agent)).await;
    let members = mesh.first.handle.members();
    let shown = members.get(&agent.peer()).unwrap();
    // As when a certificate is shown while its revocation is being merged: nothing changes afterwards that would tell.
    let newer = Membership { issued_at: shown.issued_at + 1000, ..(*shown).clone() };
    members.insert(newer, ListVersion::default());
    members.revoke(mesh.issuer.revoke(agent.peer(), 0, clock::unix_s()).unwrap()).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(is_connected(&mesh.first, &agent));
    members.insert((*shown).clone(), ListVersion::default());
    until("out", SOON, || !is_connected(&mesh.first, &agent)).await;
}

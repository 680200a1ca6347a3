//! What storers keep, and what they refuse: told by reading back, since a put is acknowledged before it is judged.

use crate::{
    harness::{self, *},
    light::{Light, live},
};
use dunlin_node::gossip;
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ReplicaId, Role},
    pattern::{Models, Pattern},
    record::RecordState,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn two_hundred_replicas_of_one_model_are_found() {
    let mesh = Mesh::new(&[TCP]).await;
    for _ in 0..200 {
        let mut agent = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
        agent.connect(&mesh.first).await;
        let addresses = ["/ip4/10.1.2.3/tcp/4480", "/ip4/10.1.2.3/udp/4480/quic-v1", "/ip4/192.168.7.7/tcp/4480"];
        let record = agent.record("m", live(&addresses));
        agent.put("m", &[record], &mesh.first).await;
    }
    let bystander = mesh.member(&[Role::Orchestrator], &[&mesh.first]).await;
    look_up_until(&bystander, "m", 200, SOON).await;
    // It has met none of them, so that they may be anybody.
    let known = |at: &Member| {
        at.handle.directory().read(|known| (known.replicas(&model("m")).count(), known.strangers().count()))
    };
    assert_eq!(known(&bystander), (0, 200));
    assert_eq!(mesh.first.handle.look_up(topic("m")).await.unwrap(), 200);
    assert_eq!(known(&mesh.first), (200, 0));
}

#[tokio::test]
async fn a_later_tombstone_wins_over_a_late_older_put() {
    let mesh = Mesh::new(&[TCP]).await;
    let mut agent = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    agent.connect(&mesh.first).await;
    let older = agent.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    let tombstone = agent.record("m", RecordState::Withdrawn);
    agent.put("m", std::slice::from_ref(&older), &mesh.first).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
    agent.put("m", &[tombstone], &mesh.first).await;
    agent.put("m", &[older], &mesh.first).await;
    look_up_until(&mesh.first, "m", 0, SOON).await;
    assert!(!mesh.first.handle.directory().read(|directory| directory.knows(&model("m"))));
}

#[tokio::test]
async fn records_of_others_are_refused() {
    let mesh = Mesh::new(&[TCP]).await;
    let mut agent = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    let mut thief = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    thief.connect(&mesh.first).await;
    let anothers = agent.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    thief.put("m", &[anothers], &mesh.first).await;
    let mislabelled = thief.record("n", live(&["/ip4/10.0.0.1/tcp/1"]));
    thief.put("m", &[mislabelled], &mesh.first).await;
    look_up_until(&mesh.first, "m", 0, SOON).await;
    // The connection still works, and what is right is taken.
    let own = thief.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    thief.put("m", &[own], &mesh.first).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
}

#[tokio::test]
async fn records_outside_the_certificate_are_refused() {
    let mesh = Mesh::new(&[TCP]).await;
    let only = Models::Only(vec![Pattern::new("good/*").unwrap()]);
    let mut agent = Light::new(&mesh, roles(&[Role::Agent]), only);
    let mut proxy = Light::new(&mesh, roles(&[Role::Proxy]), Models::Any);
    for (member, name) in [(&mut agent, "bad/m"), (&mut proxy, "good/n")] {
        member.connect(&mesh.first).await;
        let record = member.record(name, live(&["/ip4/10.0.0.1/tcp/1"]));
        member.put(name, &[record], &mesh.first).await;
        look_up_until(&mesh.first, name, 0, SOON).await;
    }
    let record = agent.record("good/m", live(&["/ip4/10.0.0.1/tcp/1"]));
    agent.put("good/m", &[record], &mesh.first).await;
    look_up_until(&mesh.first, "good/m", 1, SOON).await;
}

#[tokio::test]
async fn addresses_that_mean_nothing_here_are_dropped() {
    let mesh = Mesh::new(&[TCP]).await;
    let mut agent = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    agent.connect(&mesh.first).await;
    let useful = "/ip4/10.0.0.1/tcp/1";
    let record =
        agent.record("m", live(&["/ip4/0.0.0.0/tcp/1", "/ip4/169.254.0.1/tcp/1", useful, "/ip6/fe80::1/tcp/1"]));
    agent.put("m", &[record], &mesh.first).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
    let id = ReplicaId { peer: agent.peer(), index: 0 };
    let addresses = mesh.first.handle.directory().read(|directory| directory.replica(&id).unwrap().addresses.clone());
    assert_eq!(addresses, [useful.parse().unwrap()]);
}

#[tokio::test]
async fn a_load_report_about_somebody_else_is_ignored() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("proxy knows replica", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
    let mut liar = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    liar.connect(&mesh.first).await;
    liar.idle(Duration::from_millis(500)).await;
    let mut lie = harness::load(&agent.handle, 0, 99);
    lie.version.seq += 1000;
    let topic = gossip::load_topic();
    liar.swarm.behaviour_mut().gossip.publish(topic.clone(), lie.encode().unwrap()).expect("a proxy listens");
    let mut own = lie.clone();
    own.replica.peer = liar.peer();
    own.in_flight = 7;
    liar.swarm.behaviour_mut().gossip.publish(topic, own.encode().unwrap()).unwrap();
    liar.idle(Duration::from_millis(500)).await;
    let directory = mesh.first.handle.directory();
    // The liar's word about itself arrived, so the lie did too.
    assert!(directory.read(|directory| directory.last_report(&liar.peer())).is_some());
    let load = directory.read(|directory| directory.replica(&agent.handle.replica_id(0)).unwrap().load.clone());
    assert!(load.is_none_or(|(load, _)| load.in_flight != 99));
}

//! How often agents report: the more of them there are, the less often each.

use crate::{
    harness::*,
    light::{Light, announcement},
};
use bytes::Bytes;
use dunlin_node::{
    directory,
    gossip::{self, report_interval},
    hop::Body,
};
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState},
    id::{PeerId, ReplicaId, Role, RuntimeName, Version},
    pattern::Models,
    record::Continuation,
};
use libp2p::identity::Keypair;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const SOON: Duration = Duration::from_secs(10);
/// Agents at which the rate is at its lowest.
const MANY: usize = 200;

/// Reports of `agent`, which says something new all the time, that reach the proxy within `time`.
async fn reports_within(time: Duration, agent: &Member, proxy: &Member) -> usize {
    let mut seen = BTreeSet::new();
    let start = Instant::now();
    while start.elapsed() < time {
        agent.handle.report(load(&agent.handle, 0, seen.len() as u16));
        tokio::time::sleep(Duration::from_millis(10)).await;
        let replica = agent.handle.replica_id(0);
        let newest = proxy.handle.directory().read(|known| Some(known.replica(&replica)?.load.as_ref()?.0.version));
        seen.extend(newest);
    }
    seen.len()
}

#[tokio::test]
async fn agents_report_less_often_the_more_there_are() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("known", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
    let time = Duration::from_secs(3);
    let often = reports_within(time, &agent, &mesh.first).await;

    let mut others = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    others.connect(&mesh.first).await;
    others.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    others.idle(Duration::from_millis(500)).await;
    for _ in 1..MANY {
        let said = announcement(&Keypair::generate_ed25519(), &["m"]);
        others.swarm.behaviour_mut().gossip.publish(gossip::mesh_topic(), said).expect("members listen");
        others.idle(Duration::from_millis(5)).await;
    }
    let heard = || agent.handle.directory().read(|known| known.agents());
    let start = Instant::now();
    while heard() < MANY {
        assert!(start.elapsed() < SOON, "{} agents heard of", heard());
        others.idle(Duration::from_millis(50)).await;
    }
    // Taken up with the next housekeeping.
    others.idle(Duration::from_millis(1500)).await;
    let seldom = reports_within(time, &agent, &mesh.first).await;
    // One more may have been waiting, and one may come at each end.
    let most = usize::try_from(time.as_millis() / report_interval(MANY).as_millis()).unwrap() + 2;
    assert!((1..=most).contains(&seldom), "{seldom} reports in {time:?}, not {most}");
    assert!(often > seldom, "{often} with one agent, {seldom} with {MANY}");
}

/// What a proxy hears of one more agent, which nobody else does.
fn one_more() -> directory::Event {
    directory::Event::Announcement(Announcement {
        replica: ReplicaId { peer: PeerId::random(), index: 0 },
        version: Version { epoch: 1, seq: 1 },
        state: ReplicaState::Ready,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: offer(0, ReplicaState::Ready, &["m"]).models,
    })
}

#[tokio::test]
async fn a_proxy_tells_agents_within_seconds_how_many_they_are() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("known", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
    for _ in 1..MANY {
        mesh.first.handle.directory().apply(one_more(), Instant::now());
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        agent.handle.directory().read(|known| known.agents()) < MANY / 2,
        "it was to know no other agent by itself"
    );
    let time = Duration::from_secs(3);
    let seldom = reports_within(time, &agent, &mesh.first).await;
    let most = usize::try_from(time.as_millis() / report_interval(MANY).as_millis()).unwrap() + 2;
    assert!((1..=most).contains(&seldom), "{seldom} reports in {time:?}, not {most}");
}

#[tokio::test]
async fn only_proxies_say_how_many_agents_there_are() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let status = async |from: &Member, to: &Member, said: &'static str| {
        let _ = from.handle.connect(to.peer()).await;
        until("connected", SOON, || is_connected(from, to)).await;
        let request = http::Request::put("/mesh/agents").body(Body::from(Bytes::from(said))).unwrap();
        from.handle.hop().send(to.peer(), request).await.unwrap().status().as_u16()
    };
    assert_eq!(status(&mesh.first, &agent, "200").await, 200);
    assert_eq!(status(&mesh.first, &agent, "-1").await, 400);
    assert_eq!(status(&agent, &mesh.first, "200").await, 403);
}

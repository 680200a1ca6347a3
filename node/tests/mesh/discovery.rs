//! Records, announcements, and who finds whom.

use crate::harness::{self, *};
use dunlin_node::state::StateDir;
use dunlin_protocol::{announcement::ReplicaState, id::Role};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

/// Two agents and two proxies that know only the first member find each other, over any transport.
async fn everybody_finds_everybody(listen: &[&str]) {
    let mesh = Mesh::new(listen).await;
    let agent = mesh.member_on(&[Role::Agent], listen, &[&mesh.first]).await;
    let proxy = mesh.member_on(&[Role::Proxy], listen, &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    let other = mesh.member_on(&[Role::Agent], listen, &[&mesh.first]).await;
    other.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    for at in [&mesh.first, &proxy] {
        for of in [&agent, &other] {
            until("proxy knows replica", SOON, || knows_replica(at, "m", of)).await;
            until("proxy is connected", SOON, || is_connected(at, of)).await;
        }
    }
    until("proxies are meshed", SOON, || is_connected(&proxy, &mesh.first)).await;
    assert_eq!(proxy.handle.look_up(topic("m")).await.unwrap(), 2);
}

#[tokio::test]
async fn everybody_finds_everybody_over_tcp() {
    everybody_finds_everybody(&[TCP]).await;
}

#[tokio::test]
async fn everybody_finds_everybody_over_quic() {
    everybody_finds_everybody(&[QUIC]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_finds_everybody_over_both() {
    everybody_finds_everybody(&[TCP, QUIC]).await;
}

#[tokio::test]
async fn a_record_is_found_from_any_member_and_withdrawn() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m", "n"])).await;
    let bystander = mesh.member(&[Role::Orchestrator], &[&mesh.first]).await;
    look_up_until(&bystander, "m", 1, SOON).await;
    until("agent proves a member", SOON, || knows_replica(&bystander, "m", &agent)).await;
    let replica =
        bystander.handle.directory().read(|directory| directory.replica(&agent.handle.replica_id(0)).cloned().unwrap());
    assert_eq!(replica.addresses, agent.handle.listen_addresses());

    agent.handle.offer(offer(0, ReplicaState::Draining, &["m", "n"])).await;
    look_up_until(&bystander, "m", 0, SOON).await;
    let id = agent.handle.replica_id(0);
    let state = |at: &Member| at.handle.directory().read(|directory| directory.replica(&id).map(|r| r.state));
    until("draining is known", SOON, || state(&mesh.first) == Some(ReplicaState::Draining)).await;
    agent.stop().await;
    until("gone is known", SOON, || state(&mesh.first).is_none()).await;
}

#[tokio::test]
async fn a_replica_found_by_a_look_up_is_dialled_and_shown_when_the_look_up_ends() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    look_up_until(&proxy, "m", 1, SOON).await;
    assert!(knows_replica(&proxy, "m", &agent) && is_connected(&proxy, &agent));
}

#[tokio::test]
async fn load_reports_reach_proxies() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("proxy knows replica", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
    until("connected", SOON, || is_connected(&mesh.first, &agent)).await;
    let in_flight = || {
        mesh.first.handle.directory().read(|directory| {
            directory.replica(&agent.handle.replica_id(0)).and_then(|r| r.load.as_ref().map(|(load, _)| load.in_flight))
        })
    };
    // The subscription may come after the connection.
    let start = std::time::Instant::now();
    while in_flight() != Some(3) {
        assert!(start.elapsed() < SOON, "no load report");
        agent.handle.report(harness::load(&agent.handle, 0, 3));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for count in [4, 5, 6] {
        agent.handle.report(harness::load(&agent.handle, 0, count));
    }
    let took = until("the newest of several", Duration::from_secs(1), || in_flight() == Some(6)).await;
    assert!(took < Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn a_closed_connection_is_seen_at_once() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    until("connected", SOON, || is_connected(&mesh.first, &agent)).await;
    agent.kill();
    let took = until("closed", SOON, || !is_connected(&mesh.first, &agent)).await;
    assert!(took < Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn members_outlive_the_one_that_introduced_them() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("proxy knows replica", SOON, || knows_replica(&proxy, "m", &agent)).await;
    until("connected", SOON, || is_connected(&proxy, &agent)).await;
    mesh.first.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(proxy.handle.look_up(topic("m")).await.unwrap(), 1);
    // Somebody new needs any one living member.
    let late = mesh.member(&[Role::Proxy], &[&agent]).await;
    until("late proxy knows replica", SOON, || knows_replica(&late, "m", &agent)).await;
    until("proxies are meshed", SOON, || is_connected(&late, &proxy)).await;
}

#[tokio::test]
async fn who_joins_later_learns_all_that_gossip_said_before() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    let mut offered = offer(3, ReplicaState::Ready, &["m", "m-lora"]);
    offered.models[1].parent = Some(model("m"));
    offered.slots = 9;
    agent.handle.offer(offered).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let late = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    let id = agent.handle.replica_id(3);
    let adapter = || {
        late.handle.directory().read(|directory| {
            let replica = directory.replica(&id)?;
            let served = replica.models.iter().find(|served| served.id.as_str() == "m-lora")?;
            Some((served.parent.clone()?, replica.slots))
        })
    };
    until("the adapter's model and the slots", SOON, || adapter() == Some((model("m"), 9))).await;
}

#[tokio::test]
async fn an_agent_that_nobody_can_dial_serves_a_proxy_that_it_dials() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member_on(&[Role::Agent], &[], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    until("known", SOON, || knows_replica(&proxy, "m", &agent)).await;
    until("connected", Duration::from_secs(15), || is_connected(&proxy, &agent)).await;
}

#[tokio::test]
async fn a_peer_that_comes_back_at_a_new_address_is_found_again() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("known", SOON, || knows_replica(&mesh.first, "m", &agent) && is_connected(&mesh.first, &agent)).await;
    let epoch = agent.handle.epoch();
    let home = agent.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let back = Member::start(state, roles(&[Role::Agent]), &[TCP], &mesh.first.addresses(), Some(home)).await;
    assert!(back.handle.epoch() > epoch);
    back.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("known again", SOON, || knows_replica(&mesh.first, "m", &back) && is_connected(&mesh.first, &back)).await;
}

#[tokio::test]
async fn known_peers_are_dialled_after_a_restart_without_bootstrap() {
    let mesh = Mesh::new(&[TCP]).await;
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    until("connected", SOON, || is_connected(&proxy, &mesh.first)).await;
    let home = proxy.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let back = Member::start(state, roles(&[Role::Proxy]), &[TCP], &[], Some(home)).await;
    until("connected again", SOON, || is_connected(&back, &mesh.first)).await;
}

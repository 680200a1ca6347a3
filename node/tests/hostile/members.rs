//! Members that take more than they were given, against whole nodes. A put and a gossiped message are acknowledged, if
//! at all, before they are judged: what was refused shows by reading back.

use crate::{
    harness::{self, Member, Mesh, is_connected, knows_replica, look_up_until, model, offer, roles, topic, until},
    light::{Light, announcement, live},
    over_tcp_and_quic,
    strangers::plain,
    victim::SOON,
};
use axum::{Router, routing::any};
use dunlin_node::{Config, Node, clock, gossip, hop};
use dunlin_protocol::{
    announcement::ReplicaState,
    hop::{MODEL, REPLICA_INDEX},
    id::Role,
    pattern::{Models, Pattern},
};
use futures::StreamExt;
use http::StatusCode;
use libp2p::{
    PeerId,
    identity::Keypair,
    swarm::{SwarmEvent, dial_opts::DialOpts},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

over_tcp_and_quic!(
    a_stranger_gets_nothing_from_a_whole_node,
    a_member_revoked_while_connected_is_put_out,
    a_model_outside_the_certificate_is_not_registered,
    a_record_about_somebody_else_is_not_stored,
    replicas_of_made_up_peers_are_not_listed,
    a_flood_of_made_up_peers_delays_no_new_replica,
    a_load_report_about_somebody_else_does_not_count,
    a_member_without_the_role_proxy_sends_no_inference,
);

async fn a_stranger_gets_nothing_from_a_whole_node(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let agent = mesh.member_on(&[Role::Agent], &[listen], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;

    let mut stranger = plain(&Keypair::generate_ed25519());
    let addresses = mesh.first.handle.listen_addresses();
    stranger.dial(DialOpts::peer_id(mesh.first.peer()).addresses(addresses).build()).unwrap();
    let mut answers = Vec::new();
    let lasting = async {
        loop {
            match stranger.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => {
                    let key = dunlin_node::record_store::key(&topic("m"), &mesh.id());
                    stranger.behaviour_mut().kad.get_record(key);
                    stranger.behaviour_mut().kad.get_closest_peers(PeerId::random());
                }
                SwarmEvent::ConnectionClosed { .. } => break,
                SwarmEvent::Behaviour(event) => answers.push(format!("{event:?}")),
                _ => {}
            }
        }
    };
    timeout(SOON, lasting).await.expect("a stranger was kept");
    let learnt = |answer: &String| {
        answer.contains(&agent.peer().to_string()) || answer.contains("FoundRecord") || answer.contains("Received")
    };
    assert!(!answers.iter().any(learnt), "{answers:?}");
    assert!(mesh.first.handle.directory().read(|known| known.peer(stranger.local_peer_id()).is_none()));
}

async fn a_member_revoked_while_connected_is_put_out(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let mut member = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    member.connect(&mesh.first).await;
    member.idle(Duration::from_millis(100)).await;
    assert!(member.swarm.is_connected(&mesh.first.peer()));

    mesh.first.handle.revoke(member.peer()).await.unwrap();
    let put_out = async { while !matches!(member.next().await, SwarmEvent::ConnectionClosed { .. }) {} };
    timeout(SOON, put_out).await.expect("a revoked member was kept");
    // It does not take no for an answer.
    for _ in 0..3 {
        member.swarm.dial(mesh.first.addresses()[0].clone()).unwrap();
        loop {
            match member.next().await {
                SwarmEvent::ConnectionEstablished { .. } => panic!("a revoked member was let in again"),
                SwarmEvent::OutgoingConnectionError { .. } => break,
                _ => {}
            }
        }
    }
    let peer = member.peer();
    let listed = mesh.first.handle.directory().read(|known| known.peer(&peer).map(|view| view.reachability));
    assert!(listed.is_none_or(|reachability| !reachability.is_connected()), "{listed:?}");
}

async fn a_model_outside_the_certificate_is_not_registered(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
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
    let known = |name: &str| mesh.first.handle.directory().read(|known| known.replicas(&model(name)).count());
    assert_eq!((known("bad/m"), known("good/n"), known("good/m")), (0, 0, 1));
}

async fn a_record_about_somebody_else_is_not_stored(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let mut honest = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    let mut thief = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    thief.connect(&mesh.first).await;
    let anothers = honest.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    thief.put("m", &[anothers], &mesh.first).await;
    look_up_until(&mesh.first, "m", 0, SOON).await;
    let own = thief.record("m", live(&["/ip4/10.0.0.1/tcp/1"]));
    thief.put("m", &[own], &mesh.first).await;
    look_up_until(&mesh.first, "m", 1, SOON).await;
}

/// Keys cost nothing, and each can sign an announcement of itself: what counts is the certificate.
async fn replicas_of_made_up_peers_are_not_listed(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let agent = mesh.member_on(&[Role::Agent], &[listen], &[&mesh.first]).await;
    let mut liar = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    liar.connect(&mesh.first).await;
    liar.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    liar.idle(Duration::from_millis(500)).await;
    let announce = |keypair: &Keypair| announcement(keypair, &["fake"]);
    let mut said: Vec<_> = (0..20).map(|_| announce(&Keypair::generate_ed25519())).collect();
    // Its word about itself comes last, so that all others came when it has.
    said.push(announce(&liar.keypair));
    for data in said {
        liar.swarm.behaviour_mut().gossip.publish(gossip::mesh_topic(), data).expect("members listen");
    }
    let listed = || mesh.first.handle.directory().read(|known| known.replicas(&model("fake")).count());
    let start = std::time::Instant::now();
    while listed() == 0 {
        assert!(start.elapsed() < SOON, "nothing arrived");
        liar.idle(Duration::from_millis(20)).await;
    }
    liar.idle(Duration::from_millis(200)).await;
    assert_eq!(listed(), 1);
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("listed", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
}

/// One member gossips what peers say that do not exist, and goes on with it while a real agent comes.
async fn a_flood_of_made_up_peers_delays_no_new_replica(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let other = mesh.member_on(&[Role::Proxy], &[listen], &[&mesh.first]).await;
    let mut liar = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    liar.connect(&mesh.first).await;
    liar.swarm.behaviour_mut().gossip.subscribe(&gossip::mesh_topic()).unwrap();
    liar.idle(Duration::from_millis(500)).await;
    let waiting = || mesh.first.handle.directory().read(|known| known.strangers().count());
    let flood = async {
        loop {
            let said = announcement(&Keypair::generate_ed25519(), &["m"]);
            // Those that find no room in a queue are lost, as with a real liar.
            let _ = liar.swarm.behaviour_mut().gossip.publish(gossip::mesh_topic(), said);
            liar.idle(Duration::from_millis(1)).await;
        }
    };
    let newcomer = async {
        until("the flood has arrived", SOON, || waiting() > 100).await;
        // It knows only the other proxy.
        let agent = mesh.member_on(&[Role::Agent], &[listen], &[&other]).await;
        agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
        until("listed", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
        assert!(waiting() > 100, "the flood goes on");
    };
    tokio::select! {
        () = newcomer => {}
        () = flood => {}
    }
}

async fn a_load_report_about_somebody_else_does_not_count(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let agent = mesh.member_on(&[Role::Agent], &[listen], &[&mesh.first]).await;
    agent.handle.offer(offer(0, ReplicaState::Ready, &["m"])).await;
    until("the proxy knows the replica", SOON, || knows_replica(&mesh.first, "m", &agent)).await;
    let mut liar = Light::new(&mesh, roles(&[Role::Agent]), Models::Any);
    liar.connect(&mesh.first).await;
    liar.idle(Duration::from_millis(500)).await;
    let mut lie = harness::load(&agent.handle, 0, 99);
    lie.version.seq += 1000;
    let mut own = lie.clone();
    own.replica.peer = liar.peer();
    for report in [&lie, &own] {
        let gossip = &mut liar.swarm.behaviour_mut().gossip;
        gossip.publish(gossip::load_topic(), report.encode().unwrap()).expect("a proxy listens");
    }
    liar.idle(Duration::from_millis(500)).await;
    let directory = mesh.first.handle.directory();
    // The liar's word about itself arrived, so the lie did too.
    assert!(directory.read(|known| known.last_report(&liar.peer())).is_some());
    let load = directory.read(|known| known.replica(&agent.handle.replica_id(0)).unwrap().load.clone());
    assert!(load.is_none_or(|(load, _)| load.in_flight != 99));
}

/// A member whose engine counts what reaches it.
async fn agent_with_an_engine(mesh: &Mesh, listen: &str) -> (Member, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let counter = reached.clone();
    let routes = Router::new().route(
        "/engine/{*path}",
        any(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready("answer")
        }),
    );
    let granted = roles(&[Role::Agent]);
    let (home, state) = mesh.invite(granted, Models::Any);
    let mut config = Config::new(state, granted);
    config.listen = vec![listen.parse().unwrap()];
    config.bootstrap = mesh.first.addresses();
    let (node, handle) = Node::start(config, routes).await.unwrap();
    let shutdown = CancellationToken::new();
    let running = shutdown.clone();
    let task = tokio::spawn(async move { node.run(running).await.unwrap() });
    (Member { handle, shutdown, task, home: Some(home) }, reached)
}

async fn ask(caller: &Member, agent: &Member) -> (StatusCode, String) {
    until("connected", SOON, || is_connected(caller, agent)).await;
    let request = http::Request::post("/engine/v1/chat/completions")
        .header(REPLICA_INDEX, "0")
        .header(MODEL, "m")
        .body(hop::Body::from(bytes::Bytes::from_static(b"{}")))
        .unwrap();
    let answer = timeout(SOON, caller.handle.hop().send(agent.peer(), request)).await.unwrap().unwrap();
    let status = answer.status();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn a_member_without_the_role_proxy_sends_no_inference(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let (agent, reached) = agent_with_an_engine(&mesh, listen).await;
    let other =
        mesh.member_on(&[Role::Agent, Role::Orchestrator, Role::Relay], &[listen], &[&mesh.first, &agent]).await;
    let (status, body) = ask(&other, &agent).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    // A member with the role gets through.
    assert_eq!(ask(&mesh.first, &agent).await, (StatusCode::OK, "answer".to_owned()));
    assert_eq!(reached.load(Ordering::SeqCst), 1);
    // Until it is revoked, on the connection that it has: it does not know yet, and the agent does.
    let now = clock::unix_s();
    let revocation = mesh.issuer.revoke(mesh.first.peer(), now, now).unwrap();
    agent.handle.members().revoke(revocation).unwrap();
    until("out", SOON, || !is_connected(&agent, &mesh.first)).await;
    assert_eq!(reached.load(Ordering::SeqCst), 1);
}

//! Revocation: everywhere within seconds, also where nobody was when it was made.

use crate::harness::*;
use dunlin_node::clock;
use dunlin_protocol::{
    announcement::ReplicaState,
    certificate::Membership,
    id::Role,
    revocation::{ListVersion, RevocationList},
};
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

/// As when the message found nobody who listens, or was lost.
async fn a_revocation_that_nobody_gossips_is_fetched(listen: &str) {
    let mesh = Mesh::new(&[listen]).await;
    let agent = mesh.member_on(&[Role::Agent], &[listen], &[&mesh.first]).await;
    let proxies = [
        mesh.member_on(&[Role::Proxy], &[listen], &[&mesh.first]).await,
        mesh.member_on(&[Role::Proxy], &[listen], &[&mesh.first]).await,
    ];
    for proxy in &proxies {
        until("connected", SOON, || is_connected(proxy, &agent) && is_connected(proxy, &mesh.first)).await;
    }
    let now = clock::unix_s();
    mesh.first.handle.members().revoke(mesh.issuer.revoke(agent.peer(), now, now).unwrap()).unwrap();
    for proxy in &proxies {
        until("told by whom it asked", Duration::from_secs(2), || !is_connected(proxy, &agent)).await;
        until("stored", SOON, || {
            let stored = proxy.home.as_ref().unwrap().path().join("revocations");
            std::fs::read(stored).is_ok_and(|bytes| RevocationList::decode(&bytes).unwrap().len() == 1)
        })
        .await;
    }
}

#[tokio::test]
async fn a_revocation_that_nobody_gossips_is_fetched_over_tcp() {
    a_revocation_that_nobody_gossips_is_fetched(TCP).await;
}

#[tokio::test]
async fn a_revocation_that_nobody_gossips_is_fetched_over_quic() {
    a_revocation_that_nobody_gossips_is_fetched(QUIC).await;
}

#[tokio::test]
async fn the_list_is_sent_to_those_only_who_have_another_one() {
    let mesh = Mesh::new(&[TCP]).await;
    let member = mesh.member(&[Role::Agent], &[&mesh.first]).await;
    until("connected", SOON, || is_connected(&member, &mesh.first)).await;
    let gone = dunlin_protocol::id::PeerId::random();
    mesh.first.handle.revoke(gone).await.unwrap();
    let list = mesh.first.handle.members().revocations();
    let ask = async |tag: Option<&str>| {
        let mut request = http::Request::get("/mesh/revocations");
        if let Some(tag) = tag {
            request = request.header(http::header::IF_NONE_MATCH, tag);
        }
        let request = request.body(dunlin_node::hop::Body::empty()).unwrap();
        let answer = member.handle.hop().send(mesh.first.peer(), request).await.unwrap();
        let (status, tag) = (answer.status(), answer.headers()[http::header::ETAG].to_str().unwrap().to_owned());
        let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        (status, tag, body.len())
    };
    let tag = list.version().entity_tag();
    let whole = list.encode().unwrap().len();
    assert_eq!(ask(None).await, (http::StatusCode::OK, tag.clone(), whole));
    assert_eq!(ask(Some("\"0000000000000000\"")).await, (http::StatusCode::OK, tag.clone(), whole));
    assert_eq!(ask(Some(&tag)).await, (http::StatusCode::NOT_MODIFIED, tag.clone(), 0));
}

/// A place where somebody answers, and not as a member: dialled again and again.
async fn dials_of(listener: &tokio::net::TcpListener, within: Duration) -> usize {
    let mut dials = 0;
    let count = async {
        loop {
            drop(listener.accept().await.unwrap());
            dials += 1;
        }
    };
    let _ = tokio::time::timeout(within, count).await;
    dials
}

#[tokio::test]
async fn a_revoked_member_dials_nobody() {
    let mesh = Mesh::new(&[TCP]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let agent = roles(&[Role::Agent]);
    let (home, state) = mesh.invite(agent, dunlin_protocol::pattern::Models::Any);
    let to = [mesh.first.addresses(), vec![format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()]].concat();
    let member = Member::start(state, agent, &[TCP], &to, Some(home)).await;
    until("connected", SOON, || is_connected(&mesh.first, &member)).await;
    assert!(dials_of(&listener, Duration::from_millis(2500)).await >= 2);
    let now = clock::unix_s();
    member.handle.members().revoke(mesh.issuer.revoke(member.peer(), now, now).unwrap()).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(dials_of(&listener, Duration::from_secs(9)).await, 0, "the next ones would be after 4 and 8 s");
    let other = mesh.member(&[Role::Proxy], &[]).await;
    assert_eq!(member.handle.connect(other.peer()).await, Err(dunlin_node::ConnectError::Revoked));
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

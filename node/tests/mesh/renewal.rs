//! Certificates renew by themselves, over the hop.

use crate::harness::*;
use dunlin_node::{clock, hop, state::StateDir};
use dunlin_protocol::{
    certificate::Chain,
    id::{PeerId, Role},
    pattern::Models,
};
use std::{path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(10);
const DAY: u64 = 24 * 60 * 60;

fn stored(home: &Path, mesh: &Mesh) -> u64 {
    let chain = Chain::decode(&std::fs::read(home.join("certificate")).unwrap()).unwrap();
    chain.verify(clock::unix_s(), &mesh.id()).unwrap().issued_at
}

fn seen_by(at: &Member, peer: PeerId) -> u64 {
    at.handle.members().get(&peer).map_or(0, |membership| membership.issued_at)
}

async fn ask_to_renew(at: &Member, issuer: PeerId) -> http::StatusCode {
    let shown = at.handle.members().own_chain().encode().unwrap();
    let request = http::Request::post("/mesh/renew").body(hop::Body::from(bytes::Bytes::from(shown))).unwrap();
    at.handle.hop().send(issuer, request).await.unwrap().status()
}

#[tokio::test]
async fn a_member_renews_at_its_issuer_stores_it_and_uses_it() {
    let mesh = Mesh::new(&[TCP]).await;
    let agent = roles(&[Role::Agent]);
    let old = clock::unix_s() - 25 * DAY;
    let (home, state) = mesh.invite_at(agent, Models::Any, old);
    let proxy = mesh.member(&[Role::Proxy], &[&mesh.first]).await;
    let member = Member::start(state, agent, &[TCP], &mesh.first.addresses(), Some(home)).await;
    let peer = member.peer();

    until("renewed", SOON, || member.handle.members().own().issued_at > old + 24 * DAY).await;
    let new = member.handle.members().own().issued_at;
    for at in [&mesh.first, &proxy] {
        until("seen", SOON, || seen_by(at, peer) == new).await;
    }
    until("stored", SOON, || stored(member.home.as_ref().unwrap().path(), &mesh) == new).await;
    assert_eq!(ask_to_renew(&member, mesh.first.peer()).await, http::StatusCode::CONFLICT, "not due any more");
    assert_eq!(ask_to_renew(&member, proxy.peer()).await, http::StatusCode::NOT_FOUND, "no issuer");

    let home = member.stop().await.unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let back = Member::start(state, agent, &[TCP], &mesh.first.addresses(), Some(home)).await;
    assert_eq!(back.handle.members().own().issued_at, new);
    let late = mesh.member(&[Role::Proxy], &[&back]).await;
    until("shown", SOON, || seen_by(&late, peer) == new).await;
}

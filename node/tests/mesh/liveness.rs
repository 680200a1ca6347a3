//! Silence: suspect within three seconds, closed after ten, and back at a word.

use crate::{frozen::Frozen, harness::*};
use dunlin_node::directory::Reachability;
use dunlin_protocol::{
    id::{PeerId, Role},
    pattern::Models,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

async fn frozen_agent(mesh: &Mesh, listen: &'static str) -> Frozen {
    let (home, state) = mesh.invite(roles(&[Role::Agent]), Models::Any);
    let addresses = mesh.first.addresses();
    Frozen::start(async move || Member::start(state, roles(&[Role::Agent]), &[listen], &addresses, Some(home)).await)
        .await
}

fn reachability(at: &Member, peer: PeerId) -> Reachability {
    at.handle.directory().read(|directory| directory.peer(&peer).map(|view| view.reachability)).unwrap_or_default()
}

async fn silence_is_noticed(listen: &'static str) {
    let mesh = Mesh::new(&[listen]).await;
    let agent = frozen_agent(&mesh, listen).await;
    let peer = agent.handle.peer_id();
    let now = || reachability(&mesh.first, peer);
    until("connected", SOON, || now().is_connected()).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;

    let ice = agent.freeze();
    let took = until("suspect", SOON, || now() == Reachability::Suspect).await;
    assert!(took <= Duration::from_secs(3), "{took:?}");
    drop(ice);
    until("heard again", SOON, || now().is_connected()).await;

    let _ice = agent.freeze();
    let took = until("closed", Duration::from_secs(15), || now() == Reachability::Disconnected).await;
    assert!(took > Duration::from_secs(5) && took < Duration::from_millis(10_500), "{took:?}");
}

#[tokio::test]
async fn silence_is_noticed_over_tcp() {
    silence_is_noticed(TCP).await;
}

#[tokio::test]
async fn silence_is_noticed_over_quic() {
    silence_is_noticed(QUIC).await;
}

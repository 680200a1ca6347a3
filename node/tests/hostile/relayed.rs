//! Connections through a relay are gated by both ends, whatever the relay thinks of them.

use crate::{
    over_tcp_and_quic,
    victim::{SOON, Victim},
};
use dunlin_node::{admission, admission::Admission, clock, members::Members, transport};
use dunlin_protocol::revocation::RevocationList;
use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm, TransportError,
    identity::Keypair,
    multiaddr::Protocol,
    relay,
    swarm::{self, DialError, NetworkBehaviour, SwarmEvent},
};
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

over_tcp_and_quic!(a_member_gets_through_a_relay_and_a_revoked_one_does_not);

struct Member<B: NetworkBehaviour> {
    swarm: Swarm<B>,
    members: Members,
}

fn member<B: NetworkBehaviour>(
    victim: &Victim,
    behaviour: impl FnOnce(libp2p::PeerId) -> (relay::client::Transport, B),
) -> Member<B> {
    let key = Keypair::generate_ed25519();
    let peer = key.public().to_peer_id();
    let chain = victim.certificate(peer, |_| {});
    let members = Members::new(chain, victim.members.mesh(), RevocationList::default(), clock::unix_s()).unwrap();
    let admission = Admission::new(members.clone(), None, admission::Settings::default());
    let (relayed, behaviour) = behaviour(peer);
    let transport = transport::build(&key, admission, relayed).unwrap();
    let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
    Member { swarm: Swarm::new(transport, behaviour, peer, config), members }
}

async fn listening<B: NetworkBehaviour>(swarm: &mut Swarm<B>) -> Multiaddr {
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address;
        }
    }
}

/// Dials until admitted or refused.
async fn dial(mut dialer: Member<relay::client::Behaviour>, address: Multiaddr) -> Result<(), String> {
    let Some(Protocol::P2p(target)) = address.iter().last() else { panic!("{address}") };
    dialer.swarm.dial(address).unwrap();
    let outcome = async {
        loop {
            match dialer.swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, .. } if peer_id == target => {
                    assert!(dialer.members.get(&target).is_some());
                    return Ok(());
                }
                SwarmEvent::OutgoingConnectionError { error: DialError::Transport(errors), .. } => {
                    let TransportError::Other(error) = &errors[0].1 else { panic!("{errors:?}") };
                    return Err(admission::Error::find(error).map_or(error.to_string(), ToString::to_string));
                }
                _ => {}
            }
        }
    };
    timeout(SOON, outcome).await.unwrap()
}

async fn a_member_gets_through_a_relay_and_a_revoked_one_does_not(listen: &str) {
    let victim = Victim::start(listen).await;
    let mut tasks = JoinSet::new();

    let mut relay =
        member(&victim, |peer| (relay::client::new(peer).0, relay::Behaviour::new(peer, relay::Config::default())));
    relay.swarm.listen_on(listen.parse().unwrap()).unwrap();
    let address = listening(&mut relay.swarm).await;
    relay.swarm.add_external_address(address.clone());
    let through = address.with(Protocol::P2p(*relay.swarm.local_peer_id())).with(Protocol::P2pCircuit);
    tasks.spawn(async move { while relay.swarm.next().await.is_some() {} });

    let mut target = member(&victim, relay::client::new);
    let target_members = target.members.clone();
    let address = through.clone().with(Protocol::P2p(*target.swarm.local_peer_id()));
    target.swarm.listen_on(through).unwrap();
    tasks.spawn(async move { while target.swarm.next().await.is_some() {} });
    // The reservation is there when a member gets through.
    let start = tokio::time::Instant::now();
    loop {
        match dial(member(&victim, relay::client::new), address.clone()).await {
            Ok(()) => break,
            Err(error) => assert!(start.elapsed() < SOON, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }

    // The target knows of the revocation, the relay does not.
    let revoked = member(&victim, relay::client::new);
    let peer = *revoked.swarm.local_peer_id();
    target_members.revoke(victim.issuer.revoke(peer, 0, clock::unix_s() + 5).unwrap()).unwrap();
    let error = dial(revoked, address).await.unwrap_err();
    assert!(error.contains("refused this one: the membership was revoked"), "{error}");
    assert!(target_members.get(&peer).is_none());
}

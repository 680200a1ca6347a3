//! Joining, and trying to join with what others used.

use crate::{
    over_tcp_and_quic,
    raw::Raw,
    victim::{Victim, roles},
};
use dunlin_node::{clock, join};
use dunlin_protocol::{
    hello::{Hello, Refusal, Reply},
    id::{Name, PeerId},
    invitation::Token,
    signed::Signed,
};
use libp2p::{identity::Keypair, multiaddr::Protocol};
use std::time::{Duration, Instant};

over_tcp_and_quic!(
    an_invited_peer_joins_and_is_a_member,
    addresses_with_names_are_resolved,
    an_invitation_is_used_no_more_often_than_it_says,
    a_replayed_request_gives_nothing,
    an_invitation_of_another_mesh_gives_nothing,
    an_expired_invitation_gives_nothing,
    a_member_that_issues_nothing_says_so,
    an_issuer_that_is_away_is_told_clearly,
    another_peer_at_the_issuers_address_is_not_asked,
);

fn peer(key: &Keypair) -> PeerId {
    key.public().to_peer_id()
}

async fn refusal(token: &Token, key: &Keypair) -> Refusal {
    match join::join(token, key, None).await {
        Err(join::Error::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

async fn an_invited_peer_joins_and_is_a_member(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    // As pasted.
    let token = Token::parse(&format!(" '{}'\n", victim.invite(1).to_text().unwrap())).unwrap();
    let name = Name::new("attic").unwrap();
    let (chain, membership) = join::join(&token, &key, Some(name.clone())).await.unwrap();
    assert_eq!((membership.peer, membership.roles, membership.name), (peer(&key), roles(), Some(name)));
    assert!(victim.refusal().await.contains("joined the mesh"));
    let (again, _) = join::join(&token, &key, None).await.unwrap();
    assert_eq!(again, chain, "the same peer gets the same certificate");
    victim.refusal().await;
    // It redials as a member.
    let (mut swarm, members) = victim.swarm_as(&key, chain, clock::unix_s());
    swarm.dial(victim.address.clone()).unwrap();
    let admitted = async {
        while members.get(&victim.peer).is_none() {
            tokio::select! {
                _ = futures::StreamExt::next(&mut swarm) => {}
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
        }
    };
    tokio::time::timeout(crate::victim::SOON, admitted).await.unwrap();
}

async fn addresses_with_names_are_resolved(listen: &str) {
    let victim = Victim::start(listen).await;
    let named = victim.address.replace(0, |_| Some(Protocol::Dns4("localhost".into()))).unwrap();
    join::join(&victim.invite_at(1, named), &Keypair::generate_ed25519(), None).await.unwrap();
}

async fn an_invitation_is_used_no_more_often_than_it_says(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let token = victim.invite(2);
    for _ in 0..2 {
        join::join(&token, &Keypair::generate_ed25519(), None).await.unwrap();
    }
    let key = Keypair::generate_ed25519();
    assert_eq!(refusal(&token, &key).await, Refusal::InvitationUsedUp);
    victim.assert_still_serves_after(3).await;
}

async fn a_replayed_request_gives_nothing(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let token = victim.invite(5);
    let honest = Keypair::generate_ed25519();
    // What a listener in the middle could have kept: the request as it was sent.
    let request = token.request(peer(&honest), None).unwrap();
    join::join(&token, &honest, None).await.unwrap();
    victim.refusal().await;
    let thief = Keypair::generate_ed25519();
    let mut raw = Raw::connect(&thief, &victim.address).await;
    assert_eq!(raw.refusal(&Hello::Join(request.clone())).await, Refusal::InvitationUnknown);
    // And signed anew, without the seed.
    let proof = dunlin_protocol::invitation::JoinProof { joiner: peer(&thief), issuer: victim.peer };
    let forged = dunlin_protocol::invitation::JoinRequest { proof: Signed::sign(&proof, &thief).unwrap(), ..request };
    let mut raw = Raw::connect(&thief, &victim.address).await;
    assert_eq!(raw.refusal(&Hello::Join(forged)).await, Refusal::InvitationUnknown);
    drop(raw);
    victim.assert_still_serves_after(2).await;
}

async fn an_invitation_of_another_mesh_gives_nothing(listen: &str) {
    let (victim, other) = (Victim::start(listen).await, Victim::start(listen).await);
    let key = Keypair::generate_ed25519();
    let request = other.invite(1).request(peer(&key), None).unwrap();
    let mut raw = Raw::connect(&key, &victim.address).await;
    assert_eq!(raw.refusal(&Hello::Join(request)).await, Refusal::WrongMesh);
}

async fn an_expired_invitation_gives_nothing(listen: &str) {
    let victim = Victim::start(listen).await;
    let options = dunlin_node::issuer::InvitationOptions { life: Duration::ZERO, ..Default::default() };
    let mut rng: rand::rngs::StdRng = rand::SeedableRng::from_seed([77; 32]);
    let addresses = vec![victim.address.clone()];
    let token = victim.issuer.invite(&options, addresses, clock::unix_s() - 5, &mut rng).unwrap();
    assert_eq!(refusal(&token, &Keypair::generate_ed25519()).await, Refusal::InvitationExpired);
}

async fn a_member_that_issues_nothing_says_so(listen: &str) {
    let victim = Victim::start(listen).await;
    let member = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&member), |_| {});
    let (mut swarm, _) = victim.swarm_as(&member, chain, clock::unix_s());
    swarm.listen_on(listen.parse().unwrap()).unwrap();
    let address = loop {
        let event = futures::StreamExt::next(&mut swarm).await.unwrap();
        if let libp2p::swarm::SwarmEvent::NewListenAddr { address, .. } = event {
            break address;
        }
    };
    let key = Keypair::generate_ed25519();
    let request = victim.invite(1).request(peer(&key), None).unwrap();
    let asked = async { Raw::connect(&key, &address).await.reply(&Hello::Join(request)).await };
    let answering = async {
        loop {
            futures::StreamExt::next(&mut swarm).await;
        }
    };
    let reply = tokio::select! {
        reply = asked => reply,
        () = answering => unreachable!(),
    };
    assert_eq!(reply, Reply::Refused(Refusal::NotAnIssuer));
}

async fn an_issuer_that_is_away_is_told_clearly(listen: &str) {
    let (token, address) = {
        let victim = Victim::start(listen).await;
        (victim.invite(1), victim.address.clone())
    };
    let start = Instant::now();
    let key = Keypair::generate_ed25519();
    let error = join::join_within(&token, &key, None, Duration::from_secs(2)).await.unwrap_err().to_string();
    assert!(error.contains("was not reached") && error.contains(&address.to_string()), "{error}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

async fn another_peer_at_the_issuers_address_is_not_asked(listen: &str) {
    let (victim, other) = (Victim::start(listen).await, Victim::start(listen).await);
    let token = victim.invite_at(1, other.address.clone());
    let error = join::join(&token, &Keypair::generate_ed25519(), None).await.unwrap_err().to_string();
    assert!(error.contains("another peer answers there"), "{error}");
}

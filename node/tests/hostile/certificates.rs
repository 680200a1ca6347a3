//! Peers with papers that do not hold.

use crate::{
    over_tcp_and_quic,
    raw::Raw,
    victim::{SOON, Seen, Victim},
};
use dunlin_node::{admission, clock};
use dunlin_protocol::{
    certificate::{Chain, LEEWAY_S},
    hello::{Hello, Papers, Refusal, Reply},
    id::PeerId,
    revocation::ListVersion,
};
use futures::StreamExt;
use libp2p::{
    Swarm, TransportError,
    identity::Keypair,
    swarm::{DialError, SwarmEvent},
};
use tokio::time::timeout;

over_tcp_and_quic!(
    an_expired_certificate_is_refused,
    a_certificate_within_the_leeway_is_good,
    another_meshs_certificate_is_refused,
    a_self_made_certificate_is_refused,
    a_tampered_certificate_is_refused,
    somebody_elses_certificate_is_refused,
    a_revoked_member_is_refused_and_comes_back_with_a_new_certificate,
    the_listener_is_checked_as_well,
    nothing_is_shown_to_whom_is_refused,
);

fn peer(key: &Keypair) -> PeerId {
    key.public().to_peer_id()
}

fn hello(chain: Chain) -> Hello {
    Hello::Member(Papers { chain, revocations: ListVersion::default() })
}

/// What the victim answers to `chain`, shown by the peer of `key`.
async fn refusal_of(victim: &mut Victim, key: &Keypair, chain: Chain) -> Refusal {
    let mut raw = Raw::connect(key, &victim.address).await;
    let refusal = raw.refusal(&hello(chain)).await;
    raw.closed().await;
    assert!(victim.refusal().await.starts_with("refused peer"));
    assert_eq!(victim.members.get(&peer(key)), None);
    victim.assert_still_serves().await;
    refusal
}

async fn an_expired_certificate_is_refused(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&key), |c| c.not_after = clock::unix_s() - LEEWAY_S - 5);
    assert_eq!(refusal_of(&mut victim, &key, chain.clone()).await, Refusal::Expired);
    // Through a whole member of an hour ago: its swarm is told clearly, and does not dial again.
    let (swarm, members) = victim.swarm_as(&key, chain, clock::unix_s() - 2 * LEEWAY_S);
    let error = dial_error(swarm, &victim).await;
    assert!(error.contains("refused this one: the certificate has expired"), "{error}");
    assert_eq!(members.refused(&victim.peer, std::time::Instant::now()), Some(Refusal::Expired));
}

async fn dial_error(mut swarm: Swarm<crate::victim::Protocols>, victim: &Victim) -> String {
    swarm.dial(victim.address.clone()).unwrap();
    let failed = async {
        loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { .. } => panic!("was let in"),
                SwarmEvent::OutgoingConnectionError { error: DialError::Transport(errors), .. } => break errors,
                _ => {}
            }
        }
    };
    let errors = timeout(SOON, failed).await.unwrap();
    match &errors[0].1 {
        TransportError::Other(error) => admission::Error::find(error).map_or(error.to_string(), ToString::to_string),
        other => other.to_string(),
    }
}

async fn a_certificate_within_the_leeway_is_good(listen: &str) {
    let victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&key), |c| c.not_after = clock::unix_s() - LEEWAY_S + 60);
    let reply = Raw::connect(&key, &victim.address).await.reply(&hello(chain)).await;
    assert!(matches!(reply, Reply::Member(_)), "{reply:?}");
}

async fn another_meshs_certificate_is_refused(listen: &str) {
    let (mut victim, other) = (Victim::start(listen).await, Victim::start(listen).await);
    let key = Keypair::generate_ed25519();
    let chain = other.certificate(peer(&key), |_| {});
    assert_eq!(refusal_of(&mut victim, &key, chain).await, Refusal::WrongMesh);
}

async fn a_self_made_certificate_is_refused(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let certificate = victim.certificate(peer(&key), |_| {}).certificate.peek().unwrap();
    let forged = Chain::by_mesh_key(&certificate, &key).unwrap();
    assert_eq!(refusal_of(&mut victim, &key, forged).await, Refusal::Invalid);
}

async fn a_tampered_certificate_is_refused(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&key), |_| {});
    let good = chain.encode().unwrap();
    // One bit in each part: mesh, subject, roles, dates, signature.
    for at in (20..good.len()).step_by(good.len() / 9) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        let Ok(tampered) = Chain::decode(&bytes) else { continue };
        let mut raw = Raw::connect(&key, &victim.address).await;
        let refusal = raw.refusal(&hello(tampered)).await;
        assert!(matches!(refusal, Refusal::Invalid | Refusal::WrongMesh | Refusal::Malformed), "{at}: {refusal:?}");
        drop(raw);
        victim.refusal().await;
    }
    victim.assert_still_serves().await;
}

async fn somebody_elses_certificate_is_refused(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let member = victim.certificate(peer(&Keypair::generate_ed25519()), |_| {});
    assert_eq!(refusal_of(&mut victim, &Keypair::generate_ed25519(), member).await, Refusal::WrongPeer);
}

async fn a_revoked_member_is_refused_and_comes_back_with_a_new_certificate(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&key), |_| {});
    let known = chain.certificate.peek().unwrap().issued_at;
    let revocation = victim.issuer.revoke(peer(&key), known, clock::unix_s()).unwrap();
    victim.members.revoke(revocation).unwrap();
    assert_eq!(refusal_of(&mut victim, &key, chain).await, Refusal::Revoked);
    let again = victim
        .certificate(peer(&key), |c| c.issued_at = victim.members.revocations().revoked_before(&peer(&key), None));
    let reply = Raw::connect(&key, &victim.address).await.reply(&hello(again)).await;
    assert!(matches!(reply, Reply::Member(_)), "{reply:?}");
}

async fn the_listener_is_checked_as_well(listen: &str) {
    // The listener's mesh would take the dialer's certificate, but the dialer knows that the listener is revoked.
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(peer(&key), |_| {});
    let (swarm, members) = victim.swarm_as(&key, chain, clock::unix_s());
    members.revoke(victim.issuer.revoke(victim.peer, 0, clock::unix_s() + 5).unwrap()).unwrap();
    let error = dial_error(swarm, &victim).await;
    assert!(error.starts_with("refused peer"), "{error}");
    let why = victim.refusal().await;
    assert!(why.contains("refused this one: the membership was revoked"), "{why}");
    assert!(!matches!(victim.next_or_nothing(), Some(Seen::Connected(_))));
}

async fn nothing_is_shown_to_whom_is_refused(listen: &str) {
    let (victim, other) = (Victim::start(listen).await, Victim::start(listen).await);
    let key = Keypair::generate_ed25519();
    let message = dunlin_protocol::hello::encode(&hello(other.certificate(peer(&key), |_| {}))).unwrap();
    let answer = Raw::connect(&key, &victim.address).await.say(&message).await;
    assert!(answer.len() <= 32, "{} bytes", answer.len());
    assert!(!answer.windows(32).any(|window| window == victim.members.mesh().0));
}

//! Peers without a word of our protocol, or with too many.

use crate::{
    over_tcp_and_quic,
    raw::{Raw, plain_transport},
    victim::{DEADLINE, KAD, PENDING_PER_ADDRESS, Protocols, RECORD, SOON, TOPIC, Victim, protocols},
};
use dunlin_protocol::{
    hello::{self, HEADER_BYTES, MAGIC, Refusal, Reply},
    limits,
};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{
    PeerId, Swarm, gossipsub,
    identity::Keypair,
    kad,
    multiaddr::Protocol,
    swarm::{self, SwarmEvent, dial_opts::DialOpts},
};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(3);

over_tcp_and_quic!(
    a_plain_libp2p_peer_gets_nothing,
    a_member_does_not_stay_with_a_plain_libp2p_peer,
    a_silent_peer_is_cut,
    one_that_opens_a_substream_and_says_nothing_is_cut,
    one_that_trickles_is_cut,
    a_hello_over_the_limit_is_not_read,
    garbage_is_answered_with_silence,
    another_version_is_told_so,
    a_crowd_of_silent_peers_leaves_room_for_members,
);

pub(crate) fn plain(key: &Keypair) -> Swarm<Protocols> {
    let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
    Swarm::new(plain_transport(key), protocols(key), key.public().to_peer_id(), config)
}

async fn a_plain_libp2p_peer_gets_nothing(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let key = Keypair::generate_ed25519();
    let mut stranger = plain(&key);
    stranger.behaviour_mut().kad.add_address(&victim.peer, victim.address.clone());
    stranger.dial(DialOpts::peer_id(victim.peer).addresses(vec![victim.address.clone()]).build()).unwrap();
    let mut learnt = Vec::new();
    let lasting = async {
        loop {
            match stranger.select_next_some().await {
                // From here on it believes to be connected: it asks for everything there is.
                SwarmEvent::ConnectionEstablished { .. } => {
                    stranger.behaviour_mut().kad.get_record(kad::RecordKey::new(&RECORD));
                    stranger.behaviour_mut().kad.get_closest_peers(PeerId::random());
                    let topic = gossipsub::IdentTopic::new(TOPIC);
                    let _ = stranger.behaviour_mut().gossip.publish(topic, b"hello".to_vec());
                }
                SwarmEvent::ConnectionClosed { .. } => break,
                SwarmEvent::Behaviour(event) => learnt.push(format!("{event:?}")),
                _ => {}
            }
        }
    };
    timeout(SOON, lasting).await.expect("a stranger was kept");
    let answers = ["Identify(Received", "Subscribed", "FoundRecord", "RoutablePeer", "result: Ok", "Message {"];
    for event in &learnt {
        let told = answers.iter().any(|answer| event.contains(answer)) && !event.contains("peers: []");
        assert!(!told, "a stranger learnt: {event}");
    }
    assert!(!learnt.iter().any(|event| event.contains(KAD.as_ref())), "{learnt:?}");
    let why = victim.refusal().await;
    assert!(why.contains("not a dunlin peer") || why.contains("lost before admission"), "{why}");
    victim.assert_unaware();
    victim.assert_still_serves().await;
}

async fn a_member_does_not_stay_with_a_plain_libp2p_peer(listen: &str) {
    let victim = Victim::start(listen).await;
    let mut stranger = plain(&Keypair::generate_ed25519());
    stranger.listen_on(listen.parse().unwrap()).unwrap();
    let address = loop {
        if let SwarmEvent::NewListenAddr { address, .. } = stranger.select_next_some().await {
            break address;
        }
    };
    let key = Keypair::generate_ed25519();
    let chain = victim.certificate(key.public().to_peer_id(), |_| {});
    let (mut member, _) = victim.swarm_as(&key, chain, dunlin_node::clock::unix_s());
    member.dial(address).unwrap();
    let refused = async {
        loop {
            tokio::select! {
                _ = stranger.select_next_some() => {}
                event = member.select_next_some() => match event {
                    SwarmEvent::ConnectionEstablished { .. } => panic!("a member was let into nowhere"),
                    SwarmEvent::OutgoingConnectionError { .. } => break,
                    _ => {}
                }
            }
        }
    };
    timeout(SOON, refused).await.unwrap();
}

async fn a_silent_peer_is_cut(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let start = Instant::now();
    let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
    raw.closed().await;
    assert!(start.elapsed() >= DEADLINE && start.elapsed() < DEADLINE + SLACK, "{:?}", start.elapsed());
    assert!(victim.refusal().await.contains("not admitted within"));
    victim.assert_still_serves().await;
}

/// Before any handshake: QUIC has no such state, since it answers only to a whole first flight.
#[tokio::test]
async fn a_tcp_connection_that_says_nothing_is_cut() {
    let victim = Victim::start(crate::victim::TCP).await;
    let address: Vec<_> = victim.address.iter().collect();
    let [Protocol::Ip4(ip), Protocol::Tcp(port)] = address[..] else { panic!("{address:?}") };
    let start = Instant::now();
    let mut silent = tokio::net::TcpStream::connect((ip, port)).await.unwrap();
    let mut told = Vec::new();
    // Whatever multistream-select says first is no secret.
    let _ = timeout(SOON, tokio::io::AsyncReadExt::read_to_end(&mut silent, &mut told)).await.expect("was kept");
    assert!(start.elapsed() < DEADLINE * 2 + SLACK, "{:?}", start.elapsed());
    assert!(told.len() < 64, "{told:?}");
}

async fn one_that_opens_a_substream_and_says_nothing_is_cut(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
    let mut stream = raw.open().await.unwrap();
    // Half a header, so that the other side sees the substream at all.
    raw.drive(async {
        stream.write_all(&MAGIC[..4]).await.unwrap();
        stream.flush().await.unwrap();
    })
    .await;
    raw.closed().await;
    assert!(victim.refusal().await.contains("not admitted within"));
    victim.assert_still_serves().await;
}

async fn one_that_trickles_is_cut(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
    let mut stream = raw.open().await.unwrap();
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&1000_u32.to_be_bytes());
    raw.drive(async {
        for byte in header.iter().chain(std::iter::repeat_n(&0, 1000)) {
            if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    raw.closed().await;
    assert!(victim.refusal().await.contains("not admitted within"));
    victim.assert_still_serves().await;
}

async fn a_hello_over_the_limit_is_not_read(listen: &str) {
    let mut victim = Victim::start(listen).await;
    for length in [limits::HELLO_BYTES as u32 + 1, u32::MAX] {
        let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
        let mut message = MAGIC.to_vec();
        message.extend_from_slice(&length.to_be_bytes());
        message.extend(std::iter::repeat_n(7, limits::HELLO_BYTES * 2));
        let answer = raw.say(&message).await;
        if !answer.is_empty() {
            // It is told why, unless the connection went down under what it still sent.
            assert_eq!(hello::decode::<Reply>(&answer[HEADER_BYTES..]), Ok(Reply::Refused(Refusal::Malformed)));
        }
        drop(raw);
        let why = victim.refusal().await;
        assert!(why.contains("over the limit"), "{why}");
    }
    victim.assert_still_serves().await;
}

async fn garbage_is_answered_with_silence(listen: &str) {
    let mut victim = Victim::start(listen).await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 4096], b"\x13/multistream/1.0.0\n"] {
        let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
        assert_eq!(raw.say(garbage).await, b"", "{garbage:?}");
        raw.closed().await;
        let why = victim.refusal().await;
        assert!(why.contains("not a dunlin peer"), "{why}");
    }
    // A frame of ours around nonsense is told so.
    let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
    assert_eq!(raw.refusal(&[u64::MAX; 5]).await, Refusal::Malformed);
    victim.refusal().await;
    victim.assert_still_serves().await;
}

async fn another_version_is_told_so(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let mut raw = Raw::connect(&Keypair::generate_ed25519(), &victim.address).await;
    let answer = raw.say(b"dunlin/9\0\0\0\x01x").await;
    assert_eq!(hello::decode::<Reply>(&answer[HEADER_BYTES..]), Ok(Reply::Refused(Refusal::UnknownVersion)));
    victim.refusal().await;
    victim.assert_still_serves().await;
}

async fn a_crowd_of_silent_peers_leaves_room_for_members(listen: &str) {
    let mut victim = Victim::start(listen).await;
    let mut crowd = Vec::new();
    for _ in 0..PENDING_PER_ADDRESS / 2 {
        crowd.push(Raw::connect(&Keypair::generate_ed25519(), &victim.address).await);
    }
    victim.assert_still_serves().await;
}

/// Silent from the start: they count before they have shaken hands.
#[tokio::test]
async fn a_flood_from_one_address_is_bounded_and_passes() {
    let mut victim = Victim::start(crate::victim::TCP).await;
    let address: Vec<_> = victim.address.iter().collect();
    let [Protocol::Ip4(ip), Protocol::Tcp(port)] = address[..] else { panic!("{address:?}") };
    let mut flood = Vec::new();
    for _ in 0..PENDING_PER_ADDRESS + 5 {
        flood.push(tokio::net::TcpStream::connect((ip, port)).await.unwrap());
    }
    for _ in 0..5 {
        let why = victim.refusal().await;
        assert!(why.contains("waiting for admission"), "{why}");
    }
    // Their deadline frees their places.
    for _ in 0..PENDING_PER_ADDRESS {
        victim.refusal().await;
    }
    victim.assert_still_serves().await;
}

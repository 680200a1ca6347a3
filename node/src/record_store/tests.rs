use super::*;
use dunlin_protocol::{
    id::{ModelId, Version},
    limits,
    record::{Continuation, RecordState},
};
use libp2p::identity::Keypair;

const MESH: MeshId = MeshId([7; 32]);

fn model(name: &str) -> Topic {
    Topic::Model(ModelId::new(name).unwrap())
}

fn live() -> RecordState {
    RecordState::Live {
        addresses: vec!["/ip4/10.0.0.1/tcp/4480".parse().unwrap()],
        runtime: None,
        continuation: Continuation::None,
    }
}

fn signed(keypair: &Keypair, topic: &Topic, seq: u64, state: RecordState) -> SignedRecord {
    let replica = ReplicaId { peer: keypair.public().to_peer_id(), index: 0 };
    let record = TopicRecord { topic: topic.clone(), replica, version: Version { epoch: 1, seq }, state };
    SignedRecord::sign(&record, keypair).unwrap()
}

fn list(records: &[SignedRecord]) -> Vec<u8> {
    record::encode_list(records.iter()).unwrap()
}

fn stored(store: &TopicStore, topic: &Topic) -> Vec<TopicRecord> {
    let Some(value) = store.get(&key(topic, &MESH)) else { return Vec::new() };
    record::decode_list(&value.value).unwrap().iter().map(|signed| record::verify(signed).unwrap()).collect()
}

struct Fixture {
    store: TopicStore,
    agent: Keypair,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        Self { store: TopicStore::new(MESH, PeerId::random()), agent: Keypair::generate_ed25519(), now: Instant::now() }
    }

    fn put(&mut self, topic: &Topic, records: &[SignedRecord]) -> Result<(), Refusal> {
        let source = self.agent.public().to_peer_id();
        self.store.put_from(source, &key(topic, &MESH), &list(records), |_| true, self.now)
    }
}

#[test]
fn merges_the_records_of_many_peers_under_one_key() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    for _ in 0..200 {
        fixture.agent = Keypair::generate_ed25519();
        let record = signed(&fixture.agent, &topic, 1, live());
        fixture.put(&topic, &[record]).unwrap();
    }
    assert_eq!(stored(&fixture.store, &topic).len(), 200);
    assert_eq!(fixture.store.len(), 200);
}

#[test]
fn a_tombstone_wins_over_a_late_older_put() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let (old, gone) =
        (signed(&fixture.agent, &topic, 1, live()), signed(&fixture.agent, &topic, 2, RecordState::Withdrawn));
    fixture.put(&topic, &[gone]).unwrap();
    fixture.put(&topic, &[old]).unwrap();
    assert_eq!(stored(&fixture.store, &topic)[0].state, RecordState::Withdrawn);
}

#[test]
fn a_repeat_does_not_lengthen_a_records_life() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let record = signed(&fixture.agent, &topic, 1, live());
    fixture.put(&topic, std::slice::from_ref(&record)).unwrap();
    let start = fixture.now;
    fixture.now = start + EXPIRY - Duration::from_secs(1);
    fixture.put(&topic, &[record]).unwrap();
    fixture.store.expire(start + EXPIRY);
    assert!(fixture.store.is_empty());
}

#[test]
fn refuses_a_record_about_another_peer() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let other = Keypair::generate_ed25519();
    let refused = fixture.put(&topic, &[signed(&other, &topic, 1, live())]);
    assert!(matches!(refused, Err(Refusal::NotItsOwn(_))), "{refused:?}");
    assert!(stored(&fixture.store, &topic).is_empty());
}

#[test]
fn refuses_a_record_under_another_topics_key() {
    let mut fixture = Fixture::new();
    let record = signed(&fixture.agent, &model("a"), 1, live());
    assert_eq!(fixture.put(&model("b"), &[record]), Err(Refusal::WrongKey(model("a"))));
}

#[test]
fn refuses_a_topic_outside_the_senders_certificate() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let source = fixture.agent.public().to_peer_id();
    let value = list(&[signed(&fixture.agent, &topic, 1, live())]);
    let refused = fixture.store.put_from(source, &key(&topic, &MESH), &value, |_| false, fixture.now);
    assert_eq!(refused, Err(Refusal::NotAllowed(topic)));
}

#[test]
fn refuses_a_forged_signature() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let mut value = list(&[signed(&fixture.agent, &topic, 1, live())]);
    *value.last_mut().unwrap() ^= 1;
    let source = fixture.agent.public().to_peer_id();
    let refused = fixture.store.put_from(source, &key(&topic, &MESH), &value, |_| true, fixture.now);
    assert!(matches!(refused, Err(Refusal::Record(_))), "{refused:?}");
}

#[test]
fn refuses_too_many_addresses_and_garbage() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let addresses = vec!["/ip4/10.0.0.1/tcp/1".parse().unwrap(); 5];
    let state = RecordState::Live { addresses, runtime: None, continuation: Continuation::None };
    let record = signed(&fixture.agent, &topic, 1, state);
    assert!(matches!(fixture.put(&topic, &[record]), Err(Refusal::Record(_))));
    let source = fixture.agent.public().to_peer_id();
    let refused = fixture.store.put_from(source, &key(&topic, &MESH), b"garbage", |_| true, fixture.now);
    assert!(matches!(refused, Err(Refusal::Malformed(_))));
    assert!(fixture.store.is_empty());
}

#[test]
fn one_peer_cannot_fill_the_store() {
    let mut store = TopicStore::new(MESH, PeerId::random());
    let peer = PeerId::random();
    store.per_peer.insert(peer, RECORDS_PER_PEER);
    assert!(!store.has_room(&key(&model("m"), &MESH), &peer));
    assert!(store.has_room(&key(&model("m"), &MESH), &PeerId::random()));
}

#[test]
fn provider_records_are_refused() {
    let mut store = TopicStore::new(MESH, PeerId::random());
    let record = ProviderRecord::new(key(&model("m"), &MESH), PeerId::random(), Vec::new());
    assert!(store.add_provider(record).is_err());
}

/// One member with a replica under every index, and many with one each.
#[test]
fn a_member_with_many_replicas_makes_room_for_others() {
    let mut fixture = Fixture::new();
    let topic = model("m");
    let many = fixture.agent.clone();
    let of_index = |keypair: &Keypair, index| {
        let replica = ReplicaId { peer: keypair.public().to_peer_id(), index };
        let version = Version { epoch: 1, seq: 1 };
        SignedRecord::sign(&TopicRecord { topic: topic.clone(), replica, version, state: live() }, keypair).unwrap()
    };
    for index in 0..RECORDS_PER_PUT as u16 {
        fixture.put(&topic, &[of_index(&many, index)]).unwrap();
    }
    assert_eq!(fixture.put(&topic, &[of_index(&many, 999)]), Err(Refusal::Full), "its share of the topic");
    for _ in 0..limits::RECORDS_PER_TOPIC - 1 {
        fixture.agent = Keypair::generate_ed25519();
        fixture.put(&topic, &[of_index(&fixture.agent, 0)]).unwrap();
    }
    let kept = stored(&fixture.store, &topic);
    assert_eq!((kept.len(), fixture.store.len()), (limits::RECORDS_PER_TOPIC, limits::RECORDS_PER_TOPIC));
    let its: Vec<u16> =
        kept.iter().filter(|r| r.replica.peer == many.public().to_peer_id()).map(|r| r.replica.index).collect();
    assert_eq!(its, [0], "everybody's first replica is there");
    fixture.store.expire(fixture.now + EXPIRY);
    assert!(fixture.store.is_empty());
}

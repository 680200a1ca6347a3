//! Topic records: sets of them merge to the same whatever the order, and they fit where they must.

use crate::generate;
use dunlin_protocol::{
    codec,
    id::{ModelId, ReplicaId, RuntimeName, Version},
    limits,
    record::{self, Continuation, Inserted, RecordSet, RecordState, SignedRecord, TopicRecord},
    signed::Signed,
    topic::Topic,
};
use multiaddr::Multiaddr;
use proptest::{collection::vec, prelude::*};
use std::sync::LazyLock;

fn sign(seed: u8, record: &TopicRecord) -> SignedRecord {
    Signed::sign(record, &generate::keypair(seed)).unwrap()
}

/// Records of few replicas in few versions, so that they meet: equal versions with different contents among them, as
/// from a member that says two things at once.
fn rivals() -> impl Strategy<Value = Vec<(TopicRecord, SignedRecord)>> {
    let one = (0..3u8, 0..2u16, generate::small_version(), generate::record_state()).prop_map(
        |(seed, index, version, state)| {
            let topic = Topic::Model(ModelId::new("m").unwrap());
            let record =
                TopicRecord { topic, replica: ReplicaId { peer: generate::peer(seed), index }, version, state };
            let signed = sign(seed, &record);
            (record, signed)
        },
    );
    vec(one, 0..16)
}

fn set_of<'a>(records: impl IntoIterator<Item = &'a (TopicRecord, SignedRecord)>) -> RecordSet {
    let mut set = RecordSet::default();
    for (record, signed) in records {
        set.insert(record, signed.clone());
    }
    set
}

proptest! {
    #[test]
    fn merging_commutes(records in rivals().prop_flat_map(|records| (Just(records.clone()), Just(records).prop_shuffle()))) {
        prop_assert_eq!(set_of(&records.0), set_of(&records.1));
    }

    #[test]
    fn merging_again_changes_nothing(records in rivals()) {
        let mut set = set_of(&records);
        let before = set.clone();
        for (record, signed) in &records {
            prop_assert_eq!(set.insert(record, signed.clone()), Inserted::Known);
        }
        prop_assert_eq!(set, before);
    }

    #[test]
    fn the_latest_version_of_each_replica_is_kept(records in rivals()) {
        let set = set_of(&records);
        for kept in set.iter() {
            let kept = record::verify(kept).unwrap();
            let latest = records.iter().map(|(r, _)| r).filter(|r| r.replica == kept.replica).map(|r| r.version).max();
            prop_assert_eq!(Some(kept.version), latest);
        }
    }

    #[test]
    fn lists_come_back(records in rivals()) {
        let set = set_of(&records);
        let value = record::encode_list(set.iter()).unwrap();
        let mut again = RecordSet::default();
        for signed in record::decode_list(&value).unwrap() {
            again.insert(&record::verify(&signed).unwrap(), signed);
        }
        prop_assert_eq!(again, set);
    }

    /// Whatever a peer may say fits into the space that storers give it.
    #[test]
    fn ids_as_long_as_on_public_hubs_leave_room_for_all_addresses((seed, record) in generate::record()) {
        let bytes = codec::encode(&sign(seed, &record), limits::TOPIC_RECORD_BYTES);
        prop_assert!(bytes.is_ok(), "{record:?}");
    }
}

#[test]
fn the_longest_id_leaves_room_for_an_address() {
    let record = TopicRecord {
        topic: Topic::Model(ModelId::new(&"x".repeat(limits::MODEL_ID_BYTES)).unwrap()),
        replica: ReplicaId { peer: generate::peer(1), index: u16::MAX },
        version: Version { epoch: u64::MAX, seq: u64::MAX },
        state: RecordState::Live {
            addresses: vec!["/ip6/2001:db8::1/udp/4480/quic-v1".parse().unwrap()],
            runtime: Some(RuntimeName::new(&"r".repeat(limits::RUNTIME_NAME_BYTES)).unwrap()),
            continuation: Continuation::Exact,
        },
    };
    assert!(codec::encode(&sign(1, &record), limits::TOPIC_RECORD_BYTES).is_ok());
}

#[test]
fn records_with_too_many_addresses_are_refused() {
    let address: Multiaddr = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
    let record = TopicRecord {
        topic: Topic::Model(ModelId::new("m").unwrap()),
        replica: ReplicaId { peer: generate::peer(1), index: 0 },
        version: Version::default(),
        state: RecordState::Live {
            addresses: vec![address; limits::RECORD_ADDRESSES + 1],
            runtime: None,
            continuation: Continuation::None,
        },
    };
    assert_eq!(record::verify(&sign(1, &record)), Err(record::Error::TooManyAddresses(limits::RECORD_ADDRESSES + 1)));
}

/// More than a set holds: one peer with far too many replicas, many with some, in two versions.
fn too_many() -> &'static [(TopicRecord, SignedRecord)] {
    static RECORDS: LazyLock<Vec<(TopicRecord, SignedRecord)>> = LazyLock::new(|| {
        let greedy = (0..150u16).map(|index| (1, index));
        let others = (2..12u8).flat_map(|seed| (0..40u16).map(move |index| (seed, index)));
        let all = greedy
            .chain(others)
            .flat_map(|(seed, index)| (1..=1 + u64::from(index % 3 == 0)).map(move |seq| (seed, index, seq)));
        let sign_one = |(seed, index, seq)| {
            let record = indexed(seed, index, Version { epoch: 1, seq });
            let signed = sign(seed, &record);
            (record, signed)
        };
        all.map(sign_one).collect()
    });
    &RECORDS
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn merging_commutes_at_the_bounds_too(order in Just((0..too_many().len()).collect::<Vec<_>>()).prop_shuffle()) {
        let all = too_many();
        let set = set_of(order.iter().map(|&at| &all[at]));
        prop_assert_eq!(&set, &set_of(all));
        // And in two halves, as when storers learn from different peers.
        let (one, two) = order.split_at(order.len() / 2);
        let mut merged = set_of(one.iter().map(|&at| &all[at]));
        for signed in set_of(two.iter().map(|&at| &all[at])).iter() {
            merged.insert(&record::verify(signed).unwrap(), signed.clone());
        }
        prop_assert_eq!(&set, &merged);
        let kept: Vec<ReplicaId> = set.iter().map(|signed| record::verify(signed).unwrap().replica).collect();
        prop_assert_eq!(kept.len(), limits::RECORDS_PER_TOPIC);
        let greedy = kept.iter().filter(|replica| replica.peer == generate::peer(1)).count();
        prop_assert!(greedy <= limits::RECORDS_PER_TOPIC_AND_PEER, "{}", greedy);
        for seed in 1..12 {
            let first = ReplicaId { peer: generate::peer(seed), index: 0 };
            prop_assert!(kept.contains(&first));
        }
    }
}

fn indexed(seed: u8, index: u16, version: Version) -> TopicRecord {
    TopicRecord {
        topic: Topic::Model(ModelId::new("m").unwrap()),
        replica: ReplicaId { peer: generate::peer(seed), index },
        version,
        state: RecordState::Withdrawn,
    }
}

#[test]
fn a_full_set_takes_no_later_replica_but_updates_those_it_has() {
    let first = Version { epoch: 1, seq: 1 };
    let mut set = RecordSet::default();
    for seed in 1..=8 {
        for index in 0..50 {
            let record = indexed(seed, index, first);
            assert_eq!(set.insert(&record, sign(seed, &record)), Inserted::Kept);
        }
    }
    assert_eq!(set.len(), limits::RECORDS_PER_TOPIC);
    let late = indexed(9, 50, first);
    assert_eq!(set.insert(&late, sign(9, &late)), Inserted::Full);
    let update = indexed(1, 7, Version { epoch: 1, seq: 2 });
    assert_eq!(set.insert(&update, sign(1, &update)), Inserted::Kept);
    assert_eq!(set.len(), limits::RECORDS_PER_TOPIC);
    assert!(record::encode_list(set.iter()).is_ok(), "a full set is still one DHT value");

    set.remove(&update.replica);
    assert_eq!(set.insert(&late, sign(9, &late)), Inserted::Kept);
    let early = indexed(10, 0, first);
    assert_eq!(set.insert(&early, sign(10, &early)), Inserted::KeptInsteadOf(late.replica));
}

#[test]
fn a_peer_has_a_bounded_share_of_a_topic() {
    let mut set = RecordSet::default();
    let share = u16::try_from(limits::RECORDS_PER_TOPIC_AND_PEER).unwrap();
    for index in 1..=share {
        let record = indexed(1, index, Version::default());
        assert_eq!(set.insert(&record, sign(1, &record)), Inserted::Kept);
    }
    let (beyond, first) = (indexed(1, share + 1, Version::default()), indexed(1, 0, Version::default()));
    assert_eq!(set.insert(&beyond, sign(1, &beyond)), Inserted::Full);
    let last = indexed(1, share, Version::default()).replica;
    assert_eq!(set.insert(&first, sign(1, &first)), Inserted::KeptInsteadOf(last));
}

// A full set of the largest records is one value, and that value with its envelope one Kademlia packet.
const _: () = assert!(limits::TOPIC_RECORD_LIST_BYTES > limits::RECORDS_PER_TOPIC * limits::TOPIC_RECORD_BYTES);
const _: () = assert!(limits::TOPIC_RECORD_LIST_BYTES + 16 * 1024 <= limits::KAD_PACKET_BYTES);

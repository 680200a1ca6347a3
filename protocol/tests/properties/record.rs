//! Topic records: sets of them merge to the same whatever the order, and they fit where they must.

use crate::generate;
use dunlin_protocol::{
    codec,
    id::{ModelId, ReplicaId, RuntimeName, Version},
    limits,
    record::{self, Continuation, RecordSet, RecordState, SignedRecord, TopicRecord},
    signed::Signed,
    topic::Topic,
};
use multiaddr::Multiaddr;
use proptest::{collection::vec, prelude::*};

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
            prop_assert!(!set.insert(record, signed.clone()));
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

fn indexed(index: u16, version: Version) -> TopicRecord {
    TopicRecord {
        topic: Topic::Model(ModelId::new("m").unwrap()),
        replica: ReplicaId { peer: generate::peer(1), index },
        version,
        state: RecordState::Withdrawn,
    }
}

#[test]
fn a_full_set_takes_no_new_replica_but_updates_those_it_has() {
    let first = Version { epoch: 1, seq: 1 };
    let mut set = RecordSet::default();
    let limit = u16::try_from(limits::RECORDS_PER_TOPIC).unwrap();
    for index in 0..limit {
        let record = indexed(index, first);
        assert!(set.insert(&record, sign(1, &record)));
    }
    let stranger = indexed(limit, first);
    assert!(!set.insert(&stranger, sign(1, &stranger)));
    assert_eq!(set.len(), limits::RECORDS_PER_TOPIC);

    let update = indexed(7, Version { epoch: 1, seq: 2 });
    assert!(set.insert(&update, sign(1, &update)));
    assert_eq!(set.len(), limits::RECORDS_PER_TOPIC);
    assert!(record::encode_list(set.iter()).is_ok(), "a full set is still one DHT value");

    set.remove(&indexed(7, first).replica);
    assert!(set.insert(&stranger, sign(1, &stranger)));
}

// A full set of the largest records is one value, and that value with its envelope one Kademlia packet.
const _: () = assert!(limits::TOPIC_RECORD_LIST_BYTES > limits::RECORDS_PER_TOPIC * limits::TOPIC_RECORD_BYTES);
const _: () = assert!(limits::TOPIC_RECORD_LIST_BYTES + 16 * 1024 <= limits::KAD_PACKET_BYTES);

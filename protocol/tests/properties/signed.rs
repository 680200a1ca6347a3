//! Signatures: nothing that was touched is accepted, and one kind of statement is never taken for another.

use crate::generate;
use dunlin_protocol::{
    announcement::{self, Announcement, SignedAnnouncement},
    codec,
    id::PeerId,
    limits,
    record::{self, SignedRecord, TopicRecord},
    signed::{self, Signed, Statement},
};
use libp2p_identity::PublicKey;
use proptest::prelude::*;

/// Flips every bit in turn.
fn each_bit_flipped(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.len() * 8).map(move |bit| {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        flipped
    })
}

proptest! {
    // A case verifies some thousands of signatures.
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn every_flipped_bit_of_a_record_is_refused((seed, record) in generate::record()) {
        let signed = Signed::sign(&record, &generate::keypair(seed)).unwrap();
        prop_assert_eq!(&record::verify(&signed).unwrap(), &record);
        let bytes = codec::encode(&signed, limits::TOPIC_RECORD_BYTES).unwrap();
        for flipped in each_bit_flipped(&bytes) {
            if let Ok(signed) = codec::decode::<SignedRecord>(&flipped, limits::TOPIC_RECORD_BYTES) {
                prop_assert!(record::verify(&signed).is_err());
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_an_announcement_is_refused((seed, mut announcement) in generate::announcement()) {
        announcement.models.truncate(2);
        let signed = Signed::sign(&announcement, &generate::keypair(seed)).unwrap();
        prop_assert_eq!(&announcement::verify(&signed).unwrap(), &announcement);
        let bytes = codec::encode(&signed, limits::ANNOUNCEMENT_BYTES).unwrap();
        for flipped in each_bit_flipped(&bytes) {
            if let Ok(signed) = codec::decode::<SignedAnnouncement>(&flipped, limits::ANNOUNCEMENT_BYTES) {
                prop_assert!(announcement::verify(&signed).is_err());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn nobody_signs_for_another(
        (about, record) in generate::record(),
        (speaker, announcement) in generate::announcement(),
        signer in any::<u8>(),
    ) {
        prop_assume!(signer != about && signer != speaker);
        let key = generate::keypair(signer);
        prop_assert!(record::verify(&Signed::sign(&record, &key).unwrap()).is_err());
        prop_assert!(announcement::verify(&Signed::sign(&announcement, &key).unwrap()).is_err());
    }

    #[test]
    fn the_key_of_a_peer_is_in_its_id(seed in any::<u8>()) {
        let key = generate::keypair(seed).public();
        prop_assert_eq!(signed::public_key(&key.to_peer_id()).unwrap(), key);
    }

    #[test]
    fn peer_ids_without_a_key_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..48)) {
        if let Ok(peer) = PeerId::from_bytes(&bytes) {
            prop_assert!(signed::public_key(&peer).is_err());
        }
        prop_assert!(signed::public_key(&PeerId::random()).is_err());
    }
}

/// The same bytes under another domain, as if a record could be replayed as something else.
#[derive(PartialEq, Debug, serde::Serialize, serde::Deserialize)]
struct LooksLikeARecord(TopicRecord);

impl Statement for LooksLikeARecord {
    const DOMAIN: &'static str = "/dunlin/test/1";
    const LIMIT: usize = TopicRecord::LIMIT;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_signature_counts_for_one_kind_of_statement((seed, record) in generate::record()) {
        let key = generate::keypair(seed);
        let signed = Signed::sign(&record, &key).unwrap();
        let bytes = codec::encode(&signed, limits::TOPIC_RECORD_BYTES).unwrap();
        let other: Signed<LooksLikeARecord> = codec::decode(&bytes, limits::TOPIC_RECORD_BYTES).unwrap();
        prop_assert!(other.peek().is_ok(), "only the domain differs");
        prop_assert_eq!(other.verify(&key.public()), Err(signed::Error::Signature));
    }
}

/// An announcement may be as large as gossip allows; signing says so rather than sending what nobody takes.
#[test]
fn what_is_too_large_is_not_signed() {
    let key = generate::keypair(1);
    let model = |n: usize| announcement::ServedModel {
        id: dunlin_protocol::id::ModelId::new(&format!("{n:0>256}")).unwrap(),
        parent: None,
        context: None,
        root: None,
    };
    let announcement = |models| Announcement {
        replica: dunlin_protocol::id::ReplicaId { peer: generate::peer(1), index: 0 },
        version: dunlin_protocol::id::Version { epoch: 1, seq: 1 },
        state: announcement::ReplicaState::Ready,
        runtime: dunlin_protocol::id::RuntimeName::new("vllm").unwrap(),
        continuation: record::Continuation::Exact,
        slots: 64,
        models,
    };
    let fits = Signed::sign(&announcement((0..200).map(model).collect()), &key).unwrap();
    assert!(codec::encode(&fits, limits::ANNOUNCEMENT_BYTES).is_ok());
    let too_large = Signed::sign(&announcement((0..300).map(model).collect()), &key);
    assert!(matches!(too_large, Err(signed::Error::Codec(codec::Error::TooLarge { .. }))));

    let short = |n: usize| announcement::ServedModel {
        id: format!("m{n}").parse().unwrap(),
        parent: None,
        context: None,
        root: None,
    };
    let many = Signed::sign(&announcement((0..=limits::MODELS_PER_REPLICA).map(short).collect()), &key).unwrap();
    assert_eq!(announcement::verify(&many), Err(announcement::Error::TooManyModels(limits::MODELS_PER_REPLICA + 1)));
}

/// Keys of other types can be peers of libp2p, but not of a mesh.
#[test]
fn only_ed25519_keys_are_members() {
    // An identity multihash around bytes that are no key.
    let not_a_key = PeerId::from_bytes(&[0, 2, 8, 9]);
    if let Ok(peer) = not_a_key {
        assert!(signed::public_key(&peer).is_err());
    }
    assert!(PublicKey::try_decode_protobuf(&[]).is_err());
}

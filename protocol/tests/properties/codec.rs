//! Round trips, and bytes that nobody encoded.

use crate::generate;
use dunlin_protocol::{
    announcement::{Announcement, SignedAnnouncement},
    codec::{self, Error},
    id::{JobId, MeshId, ModelId, Name, PeerId, ReplicaId, Role, Roles, RuntimeName, Version},
    limits,
    load::LoadReport,
    pattern::{Models, Pattern},
    pod,
    record::{self, SignedRecord, TopicRecord},
    topic::Topic,
};
use proptest::{collection::vec, prelude::*};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

const LIMIT: usize = 64 * 1024;

/// A value comes back as it was; one byte more, one byte less, or a limit one too low is refused.
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let bytes = codec::encode(value, LIMIT).unwrap();
    prop_assert_eq!(&codec::decode::<T>(&bytes, LIMIT).unwrap(), value);
    prop_assert_eq!(&codec::encode(value, bytes.len()).unwrap(), &bytes, "exactly fits");

    let mut longer = bytes.clone();
    longer.push(0);
    prop_assert!(matches!(codec::decode::<T>(&longer, LIMIT), Err(Error::Malformed(_))), "trailing byte");
    if let Some((_, shorter)) = bytes.split_last() {
        prop_assert!(codec::decode::<T>(shorter, LIMIT).is_err(), "truncated");
        let size = bytes.len();
        let limit = size - 1;
        prop_assert_eq!(codec::decode::<T>(&bytes, limit).unwrap_err(), Error::TooLarge { size, limit });
        prop_assert_eq!(codec::encode(value, limit).unwrap_err(), Error::TooLarge { size, limit });
    }
    Ok(())
}

/// Bytes that decode are bytes that a peer could have encoded: the same bytes come out again.
fn refused_or_canonical<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = codec::decode::<T>(bytes, LIMIT) {
        let again = codec::encode(&value, LIMIT).unwrap();
        prop_assert_eq!(again, bytes.to_vec());
    }
    Ok(())
}

fn judge_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    refused_or_canonical::<ModelId>(bytes)?;
    refused_or_canonical::<JobId>(bytes)?;
    refused_or_canonical::<RuntimeName>(bytes)?;
    refused_or_canonical::<Name>(bytes)?;
    refused_or_canonical::<MeshId>(bytes)?;
    refused_or_canonical::<ReplicaId>(bytes)?;
    refused_or_canonical::<Role>(bytes)?;
    refused_or_canonical::<Roles>(bytes)?;
    refused_or_canonical::<Version>(bytes)?;
    refused_or_canonical::<Pattern>(bytes)?;
    refused_or_canonical::<Models>(bytes)?;
    refused_or_canonical::<Topic>(bytes)?;
    refused_or_canonical::<TopicRecord>(bytes)?;
    refused_or_canonical::<SignedRecord>(bytes)?;
    refused_or_canonical::<Vec<SignedRecord>>(bytes)?;
    refused_or_canonical::<Announcement>(bytes)?;
    refused_or_canonical::<SignedAnnouncement>(bytes)?;
    refused_or_canonical::<pod::Opening>(bytes)?;
    refused_or_canonical::<pod::FromShim>(bytes)?;
    refused_or_canonical::<pod::ToShim>(bytes)?;
    refused_or_canonical::<LoadReport>(bytes)
}

proptest! {
    #[test]
    fn every_message_comes_back(
        (model, job, runtime, name) in (generate::model(), generate::job(), generate::runtime(), generate::name()),
        (mesh, role, roles, version) in (generate::mesh(), generate::role(), generate::roles(), generate::version()),
        (pattern, models, topic) in (generate::pattern(), generate::models(), generate::topic()),
        (_, record) in generate::record(),
        (_, announcement) in generate::announcement(),
        report in generate::load_report(),
    ) {
        comes_back(&model)?;
        comes_back(&job)?;
        comes_back(&runtime)?;
        comes_back(&name)?;
        comes_back(&mesh)?;
        comes_back(&role)?;
        comes_back(&roles)?;
        comes_back(&version)?;
        comes_back(&pattern)?;
        comes_back(&models)?;
        comes_back(&topic)?;
        comes_back(&record)?;
        comes_back(&announcement)?;
        comes_back(&report)?;
    }

    #[test]
    fn any_bytes_are_refused_or_decode(bytes in vec(any::<u8>(), 0..300)) {
        judge_all(&bytes)?;
        let _ = record::decode_list(&bytes);
        let _ = LoadReport::decode(&bytes);
    }

    /// Bytes that are nearly a message get further into the decoder than noise does.
    #[test]
    fn damaged_messages_are_refused_or_decode(
        (_, record) in generate::record(),
        (_, announcement) in generate::announcement(),
        report in generate::load_report(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let encoded = [
            codec::encode(&record, LIMIT).unwrap(),
            codec::encode(&announcement, LIMIT).unwrap(),
            codec::encode(&report, LIMIT).unwrap(),
            report.encode().unwrap(),
        ];
        for mut bytes in encoded {
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            judge_all(&bytes)?;
            let _ = LoadReport::decode(&bytes);
        }
    }
}

/// A length of 2^64 - 1 must not become an allocation.
#[test]
fn absurd_lengths_are_refused() {
    let mut bytes = vec![0xff; 8];
    bytes.extend_from_slice(b"abc");
    assert!(codec::decode::<String>(&bytes, LIMIT).is_err());
    assert!(codec::decode::<Vec<u64>>(&bytes, LIMIT).is_err());
    assert!(codec::decode::<Vec<SignedRecord>>(&bytes, LIMIT).is_err());
    assert!(codec::decode::<PeerId>(&bytes, LIMIT).is_err());
}

/// The identifiers' rules hold for what comes off the wire, not only for what the command line parses.
#[test]
fn decoding_checks_identifiers() {
    let refused = |text: &str| {
        let bytes = codec::encode(&text, LIMIT).unwrap();
        assert!(codec::decode::<ModelId>(&bytes, LIMIT).is_err(), "{text:?}");
        assert!(codec::decode::<Pattern>(&bytes, LIMIT).is_err(), "{text:?}");
        assert!(codec::decode::<Name>(&bytes, LIMIT).is_err(), "{text:?}");
    };
    refused("");
    refused("line\nbreak");
    refused("nul\0");
    refused(&"x".repeat(limits::MODEL_ID_BYTES + 1));
}

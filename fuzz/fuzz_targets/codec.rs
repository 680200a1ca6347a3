//! Everything that decodes what a peer sent: no bytes may panic, and what decodes must encode to the same bytes.
//!
//! The first byte chooses the kind of message, so that the corpus of one kind does not drown the others.
#![no_main]

use dunlin_protocol::{
    announcement::{self, Announcement, SignedAnnouncement},
    appointment::Appointment,
    certificate::Chain,
    codec, hello,
    hop::Route,
    id::{MeshId, PeerId, ReplicaId},
    invitation::Token,
    limits,
    load::LoadReport,
    pattern::{Models, Pattern},
    pod,
    record::{self, SignedRecord, TopicRecord},
    revocation::{RevocationList, SignedRevocation},
    topic::Topic,
};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

const MESH: MeshId = MeshId([7; 32]);

/// Decodes, and checks that encoding gives the bytes back.
fn canonical<T: Serialize + DeserializeOwned>(bytes: &[u8], limit: usize) -> Option<T> {
    let value: T = codec::decode(bytes, limit).ok()?;
    let again = codec::encode(&value, limit).expect("what decoded within a limit encodes within it");
    assert_eq!(again, bytes);
    Some(value)
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 15 {
        0 => drop(canonical::<TopicRecord>(bytes, limits::TOPIC_RECORD_BYTES)),
        1 => drop(canonical::<Announcement>(bytes, limits::ANNOUNCEMENT_BYTES)),
        2 => {
            if let Ok(report) = LoadReport::decode(bytes) {
                // An older version is written anew in the newest.
                let again = report.encode().expect("it came within the limit");
                assert_eq!(LoadReport::decode(&again).as_ref(), Ok(&report));
                let header = report.to_header().expect("it came within the limit");
                assert_eq!(LoadReport::from_header(&header), Ok(report));
            }
        }
        3 => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let _ = LoadReport::from_header(text);
            let _ = text.parse::<MeshId>();
            let _ = Route::of(text);
        }
        4 => {
            if let Some(signed) = canonical::<SignedRecord>(bytes, limits::TOPIC_RECORD_BYTES) {
                let _ = record::verify(&signed);
            }
        }
        5 => {
            if let Some(signed) = canonical::<SignedAnnouncement>(bytes, limits::ANNOUNCEMENT_BYTES) {
                let _ = announcement::verify(&signed);
            }
        }
        6 => {
            for signed in record::decode_list(bytes).unwrap_or_default() {
                let _ = record::verify(&signed);
            }
        }
        7 => {
            // Two patterns and a model with a newline between them.
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let mut lines = text.splitn(3, '\n');
            let (Some(wide), Some(narrow), Some(model)) = (lines.next(), lines.next(), lines.next()) else { return };
            let (Ok(wide), Ok(narrow)) = (Pattern::new(wide), Pattern::new(narrow)) else { return };
            if wide.covers(&narrow) && narrow.matches(model) && !model.contains('\0') {
                assert!(wide.matches(model), "{wide} covers {narrow} but not {model:?}");
            }
        }
        8 => {
            if let Ok(chain) = Chain::decode(bytes) {
                let _ = chain.verify(0, &MESH);
                assert_eq!(chain.encode().expect("it came within the limit"), bytes);
            }
        }
        9 => {
            let _ = canonical::<hello::Hello>(bytes, limits::HELLO_BYTES);
            let _ = canonical::<hello::Reply>(bytes, limits::HELLO_BYTES);
            let _ = canonical::<hello::Verdict>(bytes, limits::HELLO_BYTES);
            if let Some(header) = bytes.first_chunk() {
                let length = hello::body_length(header);
                assert!(length.is_err() || length.is_ok_and(|length| length <= limits::HELLO_BYTES));
            }
        }
        10 => {
            if let Ok(revocation) = SignedRevocation::decode(bytes) {
                let _ = revocation.verify(&MESH);
            }
            if let Ok(entries) = RevocationList::decode(bytes) {
                RevocationList::default().merge(entries, &MESH);
            }
        }
        11 => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = Token::parse(text);
            }
        }
        12 => {
            if let Ok(appointment) = Appointment::decode(bytes) {
                let _ = appointment.verify(0, &MESH, &PeerId::random());
                assert_eq!(appointment.encode().expect("it came within the limit"), bytes);
            }
        }
        13 => {
            let _ = canonical::<pod::Opening>(bytes, limits::POD_FRAME_BYTES);
            let _ = canonical::<pod::FromShim>(bytes, limits::POD_FRAME_BYTES);
            let _ = canonical::<pod::ToShim>(bytes, limits::POD_FRAME_BYTES);
            if let Some(preamble) = bytes.first_chunk() {
                let _ = pod::agree(preamble);
            }
        }
        _ => {
            let _ = canonical::<Topic>(bytes, limits::TOPIC_RECORD_BYTES);
            let _ = canonical::<ReplicaId>(bytes, limits::TOPIC_RECORD_BYTES);
            let _ = canonical::<Models>(bytes, limits::CERTIFICATE_BYTES);
        }
    }
});

use super::*;
use crate::certificate::tests::{certificate, key, mesh};
use proptest::prelude::*;

fn header(frame: &[u8]) -> [u8; HEADER_BYTES] {
    frame[..HEADER_BYTES].try_into().unwrap()
}

#[test]
fn a_frame_is_read_back() {
    let chain = Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap();
    let hello = Hello::Member(Papers { chain, revocations: ListVersion(7) });
    let frame = encode(&hello).unwrap();
    assert_eq!(body_length(&header(&frame)), Ok(frame.len() - HEADER_BYTES));
    assert_eq!(decode::<Hello>(&frame[HEADER_BYTES..]), Ok(hello));
}

#[test]
fn strangers_are_told_from_other_versions_and_from_floods() {
    // What multistream-select starts with.
    assert_eq!(body_length(b"\x13/multistrea"), Err(Error::NotDunlin));
    assert_eq!(body_length(b"dunlin/2\0\0\0\x01"), Err(Error::UnknownVersion));
    let mut large = header(&encode(&Verdict::Admitted).unwrap());
    large[MAGIC.len()..].copy_from_slice(&(limits::HELLO_BYTES as u32 + 1).to_be_bytes());
    assert!(matches!(body_length(&large), Err(Error::Codec(codec::Error::TooLarge { .. }))));
}

#[test]
fn the_reason_of_a_refusal_is_kept() {
    let chain = Chain::by_mesh_key(&certificate(7, 7, 3), &key(7)).unwrap();
    assert_eq!(Refusal::from(&chain.verify(0, &mesh(1)).unwrap_err()), Refusal::WrongMesh);
    let chain = Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap();
    assert_eq!(Refusal::from(&chain.verify(u64::MAX, &mesh(1)).unwrap_err()), Refusal::Expired);
    assert!(Refusal::Expired.is_lasting() && !Refusal::Internal.is_lasting());
}

proptest! {
    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES..400)) {
        let _ = body_length(&header(&bytes));
        let _ = decode::<Hello>(&bytes);
        let _ = decode::<Reply>(&bytes);
        let _ = decode::<Verdict>(&bytes);
    }
}

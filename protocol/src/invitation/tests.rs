use super::*;
use crate::{
    certificate::tests::{key, mesh},
    id::Role,
    pattern::Pattern,
};
use proptest::prelude::*;

const SEED: [u8; 32] = [42; 32];

fn invitation() -> Invitation {
    Invitation {
        mesh: mesh(1),
        issuer: key(2).public().to_peer_id(),
        key: public_half(&SEED).unwrap(),
        roles: [Role::Agent].into_iter().collect(),
        models: Models::Only(vec![Pattern::new("Qwen/*").unwrap()]),
        not_after: 1_800_000_000,
        uses: 3,
    }
}
pub(crate) fn token() -> Token {
    let addresses = ["/ip4/192.0.2.7/tcp/4480", "/dns4/gpu.example/udp/4480/quic-v1"].map(|a| a.parse().unwrap());
    Token::new(SEED, Signed::sign(&invitation(), &key(1)).unwrap(), addresses.into()).unwrap()
}

#[test]
fn a_token_survives_being_pasted() {
    let text = token().to_text().unwrap();
    assert!(text.starts_with("dunlin1") && text.len() < 700, "{} characters", text.len());
    let wrapped: String =
        text.as_bytes().chunks(60).map(|line| format!("  {}\\\r\n", std::str::from_utf8(line).unwrap())).collect();
    for pasted in [
        text.clone(),
        format!("\"{text}\"\n"),
        format!("'{text}'"),
        format!("\u{201c}{text}\u{201d}"),
        format!("<{text}>"),
        format!("\u{feff}{}", text.to_uppercase()),
        wrapped,
    ] {
        assert_eq!(Token::parse(&pasted), Ok(token()));
    }
}

#[test]
fn a_bad_paste_is_told_clearly() {
    let text = token().to_text().unwrap();
    for end in PREFIX.len()..text.len() {
        assert!(matches!(Token::parse(&text[..end]), Err(Error::Truncated { .. })), "cut at {end}");
    }
    assert!(matches!(Token::parse(&format!("{text}{text}")), Err(Error::TooLong { .. }) | Err(Error::Damaged)));
    assert_eq!(Token::parse("sk-abc"), Err(Error::NotAToken));
    assert_eq!(Token::parse(""), Err(Error::NotAToken));
    assert_eq!(Token::parse("dunlin2abcdef"), Err(Error::UnknownVersion));
    for at in PREFIX.len()..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] = if changed[at] == b'a' { b'b' } else { b'a' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(Token::parse(&changed).is_err(), "a change at {at} went unnoticed");
    }
}

#[test]
fn the_parts_of_a_token_belong_together() {
    let signed = Signed::sign(&invitation(), &key(1)).unwrap();
    assert_eq!(Token::new([43; 32], signed, vec![]), Err(Error::Mismatch));
    let by_stranger = Signed::sign(&invitation(), &key(9)).unwrap();
    assert!(matches!(Token::new(SEED, by_stranger, vec![]), Err(Error::Signed(_))));
    let by_issuer = Signed::sign(&invitation(), &key(2)).unwrap();
    assert!(Token::new(SEED, by_issuer, vec![]).is_ok());
    let many = vec!["/ip4/127.0.0.1/tcp/1".parse().unwrap(); limits::INVITATION_ADDRESSES + 1];
    let signed = Signed::sign(&invitation(), &key(1)).unwrap();
    assert!(matches!(Token::new(SEED, signed, many), Err(Error::TooManyAddresses(9))));
}

#[test]
fn a_request_counts_for_its_joiner_and_issuer_only() {
    let (joiner, issuer, signer) = (key(3).public().to_peer_id(), invitation().issuer, key(1).public());
    let request = token().request(joiner, None).unwrap();
    assert_eq!(request.verify(&joiner, &issuer, &signer), Ok(invitation()));
    let other = key(4).public().to_peer_id();
    assert_eq!(request.verify(&other, &issuer, &signer), Err(Error::Mismatch));
    assert_eq!(request.verify(&joiner, &other, &signer), Err(Error::Mismatch));
    assert!(request.verify(&joiner, &issuer, &key(5).public()).is_err());
    // Knowing the invitation without its seed, as the issuer's disk or an old request would tell it.
    let forged = Signed::sign(&JoinProof { joiner: other, issuer }, &key(4)).unwrap();
    let stolen = JoinRequest { proof: forged, ..request };
    assert!(stolen.verify(&other, &issuer, &signer).is_err());
}

#[test]
fn the_seed_is_neither_sent_nor_shown() {
    let request = token().request(key(3).public().to_peer_id(), None).unwrap();
    let bytes = codec::encode(&request, limits::HELLO_BYTES).unwrap();
    assert!(!bytes.windows(SEED.len()).any(|window| window == SEED));
    assert!(!format!("{:?}", token()).contains("42"));
}

#[test]
fn every_flipped_bit_of_a_request_is_refused() {
    let (joiner, issuer, signer) = (key(3).public().to_peer_id(), invitation().issuer, key(1).public());
    let request = token().request(joiner, None).unwrap();
    let bytes = codec::encode(&request, limits::HELLO_BYTES).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let read = codec::decode::<JoinRequest>(&flipped, limits::HELLO_BYTES).map_err(Error::from);
        assert!(read.and_then(|read| read.verify(&joiner, &issuer, &signer)).is_err(), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn any_text_never_panics(text in "\\PC{0,200}", tail in "[a-z2-7]{0,200}") {
        let _ = Token::parse(&text);
        let (tail, other) = (format!("{PREFIX}{tail}"), format!("{PREFIX}{text}"));
        prop_assert!(Token::parse(&tail).is_err());
        prop_assert!(Token::parse(&other).is_err());
    }
}

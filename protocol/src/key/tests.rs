use super::*;
use crate::{certificate::tests as certificates, pattern::Pattern};
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

fn key(revoked: Option<u64>, name: &str) -> About {
    About::Key(Key {
        id: "abcdefgh".into(),
        kind: KeyKind::Client,
        digest: [7; 32],
        name: name.into(),
        tenant: "default".into(),
        models: Models::Only(vec![Pattern::new("Qwen/*").unwrap()]),
        limits: Limits { requests_per_minute: Some(60), ..Limits::default() },
        priority: 0,
        tags: vec!["ci".into()],
        created: NOW,
        expires: None,
        revoked,
        ends_streams: false,
    })
}

fn statement(version: u64, about: About) -> KeyStatement {
    KeyStatement { mesh: certificates::mesh(1), version, about }
}

/// A member's chain with a capability.
fn chain(capability: &str) -> Chain {
    let mut certificate = certificates::certificate(1, 1, 3);
    certificate.capabilities = vec![capability.to_owned()];
    Chain::by_mesh_key(&certificate, &certificates::key(1)).unwrap()
}

pub(crate) fn signed(capability: &str) -> SignedKeyStatement {
    SignedKeyStatement::sign(&statement(1, key(None, "n")), chain(capability), &certificates::key(3)).unwrap()
}

#[test]
fn who_keeps_keys_is_believed_and_nobody_else() {
    let mesh = certificates::mesh(1);
    for capability in [certificate::KEYS, certificate::ISSUE] {
        let encoded = signed(capability).encode().unwrap();
        let (said, by) = SignedKeyStatement::decode(&encoded).unwrap().verify(NOW, &mesh, |_| None).unwrap();
        assert_eq!(said, statement(1, key(None, "n")));
        assert_eq!(by.peer, certificates::key(3).public().to_peer_id());
    }
    for capability in ["", certificate::DELEGATE, "key"] {
        let refused = signed(capability).verify(NOW, &mesh, |_| None);
        assert!(matches!(refused, Err(Error::NotAllowed(_))), "{capability}: {refused:?}");
    }
    // A proxy that has somebody's chain, as all have, can't use it.
    let forged = SignedKeyStatement::sign(&statement(9, key(None, "n")), chain("keys"), &certificates::key(4)).unwrap();
    assert_eq!(forged.verify(NOW, &mesh, |_| None), Err(Error::Signed(signed::Error::Signature)));
    assert!(signed("keys").verify(NOW, &certificates::mesh(2), |_| None).is_err());
}

#[test]
fn a_renewed_certificate_keeps_old_statements_alive() {
    let (mesh, later) = (certificates::mesh(1), NOW + 40 * DAY);
    let refused = signed("keys").verify(later, &mesh, |_| None);
    assert!(matches!(refused, Err(Error::Certificate(certificate::Error::Expired { .. }))), "{refused:?}");
    let mut renewed = chain("keys").verify(NOW, &mesh).unwrap();
    renewed.not_after = later + DAY;
    assert!(signed("keys").verify(later, &mesh, |_| Some(renewed.clone())).is_ok());
    renewed.capabilities.clear();
    assert!(signed("keys").verify(later, &mesh, |_| Some(renewed)).is_err(), "the right was taken away");
}

#[test]
fn revoked_is_final_and_removed_too() {
    let (live, revoked) = (statement(u64::MAX, key(None, "n")), statement(1, key(Some(NOW), "n")));
    assert_eq!(live.compare(&revoked), Ordering::Less);
    assert_eq!(statement(2, key(None, "n")).compare(&statement(1, key(None, "n"))), Ordering::Greater);
    let tenant = |removed| {
        let (name, note, models) = ("t".into(), String::new(), Models::Any);
        About::Tenant(Tenant { name, note, models, created: NOW, suspended: None, removed })
    };
    assert_eq!(statement(9, tenant(None)).compare(&statement(1, tenant(Some(1)))), Ordering::Less);
}

#[test]
fn what_is_too_long_is_not_signed() {
    let with = |change: fn(&mut Key)| {
        let About::Key(mut one) = key(None, "n") else { panic!("a key") };
        change(&mut one);
        statement(1, About::Key(one)).check()
    };
    assert_eq!(with(|_| {}), Ok(()));
    assert_eq!(with(|key| key.name = "n".repeat(513)), Err(Error::TooLong("the name of a key")));
    assert_eq!(with(|key| key.tags = vec![String::new(); 17]), Err(Error::TooLong("the list of tags")));
    assert_eq!(with(|key| key.tenant = "a/b".into()), Err(Error::Name("the name of a tenant")));
    assert_eq!(with(|key| key.name = "a\nb".into()), Err(Error::Name("the name of a key")));
    let models = Models::Only(vec![Pattern::new(&"x".repeat(limits::PATTERN_BYTES)).unwrap(); 64]);
    let About::Key(full) = key(Some(NOW), &"é".repeat(256)) else { panic!("a key") };
    let tags = vec!["t".repeat(limits::WORD_BYTES); limits::KEY_TAGS];
    let largest = statement(1, About::Key(Key { models, tags, ..full }));
    assert!(SignedKeyStatement::sign(&largest, chain("keys"), &certificates::key(3)).unwrap().encode().is_ok());
}

proptest! {
    /// All machines agree on which counts, whatever comes first.
    #[test]
    fn the_order_is_total(of in proptest::collection::vec((0u64..3, proptest::option::of(0u64..2), "[ab]"), 3)) {
        let all: Vec<_> = of.into_iter().map(|(version, revoked, name)| statement(version, key(revoked, &name))).collect();
        let (a, b, c) = (&all[0], &all[1], &all[2]);
        prop_assert_eq!(a.compare(b), b.compare(a).reverse());
        prop_assert_eq!(a.compare(b) == Ordering::Equal, a == b);
        if a.compare(b) != Ordering::Greater && b.compare(c) != Ordering::Greater {
            prop_assert_ne!(a.compare(c), Ordering::Greater);
        }
    }
}

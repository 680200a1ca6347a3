use super::*;
use crate::pattern::Pattern;
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

pub(crate) fn key(n: u8) -> Keypair {
    Keypair::ed25519_from_bytes([n; 32]).unwrap()
}
pub(crate) fn mesh(n: u8) -> MeshId {
    MeshId::of(&key(n).public().try_into_ed25519().unwrap())
}
pub(crate) fn certificate(mesh_key: u8, issuer: u8, subject: u8) -> Certificate {
    Certificate {
        mesh: mesh(mesh_key),
        subject: key(subject).public().to_peer_id(),
        issuer: key(issuer).public().to_peer_id(),
        roles: [Role::Agent, Role::Proxy].into_iter().collect(),
        models: Models::Any,
        tenants: vec![],
        capabilities: vec![],
        name: Some(Name::new("box").unwrap()),
        issued_at: NOW,
        not_after: NOW + 30 * DAY,
    }
}
pub(crate) fn delegation() -> Delegation {
    Delegation {
        mesh: mesh(1),
        issuer: key(2).public().to_peer_id(),
        roles: [Role::Agent, Role::Proxy].into_iter().collect(),
        models: Models::Only(vec![Pattern::new("Qwen/*").unwrap()]),
        capabilities: vec![],
        life_s: 30 * DAY,
        issued_at: NOW - DAY,
        not_after: NOW + 60 * DAY,
    }
}
fn under_delegation(change: impl FnOnce(&mut Certificate)) -> Result<Membership, Error> {
    let mut certificate = certificate(1, 2, 3);
    certificate.models = Models::Only(vec![Pattern::new("Qwen/Qwen3*").unwrap()]);
    change(&mut certificate);
    let delegation = Signed::sign(&delegation(), &key(1)).unwrap();
    Chain::by_delegate(&certificate, delegation, &key(2)).unwrap().verify(NOW, &mesh(1))
}

#[test]
fn a_certificate_of_the_mesh_key_proves_a_membership() {
    let chain = Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap();
    let membership = Chain::decode(&chain.encode().unwrap()).unwrap().verify(NOW, &mesh(1)).unwrap();
    assert_eq!(membership.peer, key(3).public().to_peer_id());
    assert_eq!(membership.issuer, Issuer::Mesh);
}

#[test]
fn it_ends_an_hour_after_its_end_and_has_no_start() {
    let chain = Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap();
    let end = NOW + 30 * DAY;
    assert!(chain.verify(0, &mesh(1)).is_ok());
    assert!(chain.verify(end + LEEWAY_S, &mesh(1)).is_ok());
    assert_eq!(chain.verify(end + LEEWAY_S + 1, &mesh(1)), Err(Error::Expired { not_after: end }));
}

#[test]
fn another_mesh_or_another_signer_is_refused() {
    let other = Chain::by_mesh_key(&certificate(7, 7, 3), &key(7)).unwrap();
    assert_eq!(other.verify(NOW, &mesh(1)), Err(Error::WrongMesh(mesh(7))));
    let forged = Chain::by_mesh_key(&certificate(1, 1, 3), &key(7)).unwrap();
    assert_eq!(forged.verify(NOW, &mesh(1)), Err(signed::Error::Signature.into()));
    let misnamed = Chain::by_mesh_key(&certificate(1, 7, 3), &key(1)).unwrap();
    assert!(matches!(misnamed.verify(NOW, &mesh(1)), Err(Error::WrongIssuer(_))));
}

#[test]
fn a_member_cannot_issue_without_a_delegation() {
    // Signed with the member's own key, with and without a delegation that it made up itself.
    let plain = Chain { delegation: None, certificate: Signed::sign(&certificate(1, 2, 3), &key(2)).unwrap() };
    assert!(plain.verify(NOW, &mesh(1)).is_err());
    let own = Signed::sign(&delegation(), &key(2)).unwrap();
    let chain = Chain::by_delegate(&certificate(1, 2, 3), own, &key(2)).unwrap();
    assert_eq!(chain.verify(NOW, &mesh(1)), Err(delegation::Error::from(signed::Error::Signature).into()));
}

#[test]
fn a_delegate_gives_no_more_than_it_may() {
    let membership = under_delegation(|_| {}).unwrap();
    assert_eq!(membership.issuer, Issuer::Delegate { peer: key(2).public().to_peer_id(), delegated_at: NOW - DAY });
    let refused = |change: fn(&mut Certificate)| match under_delegation(change) {
        Err(Error::Delegation(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(|c| c.roles = c.roles.with(Role::Relay)), delegation::Error::Roles { .. }));
    assert_eq!(refused(|c| c.models = Models::Any), delegation::Error::Models);
    assert_eq!(refused(|c| c.capabilities = vec![ISSUE.into()]), delegation::Error::Capability(ISSUE.into()));
    assert!(matches!(refused(|c| c.issued_at -= 1), delegation::Error::Life { .. }));
    // Out of reach of the revocations of today.
    let ahead = NOW + LEEWAY_S + 1;
    assert_eq!(under_delegation(|c| c.issued_at = ahead), Err(Error::Ahead { issued_at: ahead }));
    assert!(under_delegation(|c| c.issued_at = ahead - 1).is_ok());
    let end = NOW + 30 * DAY;
    let backwards = Error::EndsBeforeIssue { issued_at: u64::MAX, not_after: end };
    assert_eq!(under_delegation(|c| c.issued_at = u64::MAX), Err(backwards));
    assert_eq!(
        refused(|c| {
            c.issued_at = NOW + 31 * DAY;
            c.not_after = c.issued_at + 30 * DAY;
        }),
        delegation::Error::Outlives
    );
}

#[test]
fn the_mesh_key_signs_in_a_delegates_name_and_stays_within_its_bounds() {
    let right = Signed::sign(&delegation(), &key(1)).unwrap();
    let mut certificate = certificate(1, 2, 3);
    certificate.models = delegation().models;
    let chain = Chain::in_name_of_delegate(&certificate, right.clone(), &key(1)).unwrap();
    let membership = chain.verify(NOW, &mesh(1)).unwrap();
    assert_eq!(membership.issuer, Issuer::Delegate { peer: key(2).public().to_peer_id(), delegated_at: NOW - DAY });
    // Without the delegation it would leave the branch, and its bounds.
    let stripped = Chain { delegation: None, ..chain };
    assert!(matches!(stripped.verify(NOW, &mesh(1)), Err(Error::WrongIssuer(_))));
    let in_own_name = Certificate { issuer: key(1).public().to_peer_id(), ..certificate.clone() };
    let chain = Chain::in_name_of_delegate(&in_own_name, right.clone(), &key(1)).unwrap();
    assert!(matches!(chain.verify(NOW, &mesh(1)), Err(Error::WrongIssuer(_))));
    certificate.models = Models::Any;
    let chain = Chain::in_name_of_delegate(&certificate, right.clone(), &key(1)).unwrap();
    assert_eq!(chain.verify(NOW, &mesh(1)), Err(delegation::Error::Models.into()));
    // Nobody else signs in its name.
    let chain = Chain::in_name_of_delegate(&certificate, right, &key(4)).unwrap();
    assert_eq!(chain.verify(NOW, &mesh(1)), Err(signed::Error::Signature.into()));
}

#[test]
fn who_issues_shows_it() {
    let of = |words: &[&str]| {
        let mut certificate = certificate(1, 1, 3);
        certificate.capabilities = words.iter().map(|&word| word.to_owned()).collect();
        Chain::by_mesh_key(&certificate, &key(1)).unwrap().verify(NOW, &mesh(1)).unwrap().authority()
    };
    assert_eq!(of(&[ISSUE]), Some(Authority::MeshKey));
    assert_eq!(of(&[DELEGATE]), Some(Authority::Delegation));
    assert_eq!(of(&["sing"]), None);
    let in_branch = |subject| {
        let mut wide = delegation();
        wide.capabilities = vec![ISSUE.to_owned()];
        let mut certificate = certificate(1, 2, subject);
        certificate.models = wide.models.clone();
        certificate.capabilities = vec![ISSUE.to_owned()];
        let chain = Chain::by_delegate(&certificate, Signed::sign(&wide, &key(1)).unwrap(), &key(2)).unwrap();
        chain.verify(NOW, &mesh(1)).unwrap().authority()
    };
    assert_eq!(in_branch(2), Some(Authority::Delegation), "to itself");
    assert_eq!(in_branch(3), None, "a delegate cannot delegate");
}

#[test]
fn lists_are_bounded() {
    let mut certificate = certificate(1, 1, 3);
    certificate.capabilities = vec!["x".into(); limits::CERTIFICATE_WORDS + 1];
    let chain = Chain::by_mesh_key(&certificate, &key(1)).unwrap();
    assert!(matches!(chain.verify(NOW, &mesh(1)), Err(Error::Bounds(BoundsError::Words(17)))));
    certificate.capabilities = vec![];
    certificate.models = Models::Only(vec![Pattern::new("m").unwrap(); limits::CERTIFICATE_PATTERNS + 1]);
    let chain = Chain::by_mesh_key(&certificate, &key(1)).unwrap();
    assert!(matches!(chain.verify(NOW, &mesh(1)), Err(Error::Bounds(BoundsError::Patterns(65)))));
}

#[test]
fn serving_needs_the_role_and_the_pattern() {
    let mut membership = under_delegation(|_| {}).unwrap();
    let (inside, outside) = (ModelId::new("Qwen/Qwen3-8B").unwrap(), ModelId::new("gpt-oss-20b").unwrap());
    assert!(membership.may_serve(&inside) && !membership.may_serve(&outside));
    assert!(membership.may_register(&Topic::Model(inside.clone())));
    assert!(!membership.may_register(&Topic::Model(outside)));
    assert!(!membership.may_register(&Topic::Role(Role::Relay)));
    membership.roles = [Role::Proxy].into_iter().collect();
    assert!(!membership.may_serve(&inside));
}

#[test]
fn every_flipped_bit_of_a_chain_is_refused() {
    let mut certificate = certificate(1, 2, 3);
    certificate.models = Models::Only(vec![Pattern::new("Qwen/Qwen3*").unwrap()]);
    let delegation = Signed::sign(&delegation(), &key(1)).unwrap();
    let bytes = Chain::by_delegate(&certificate, delegation, &key(2)).unwrap().encode().unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let verified = Chain::decode(&flipped).map_err(Error::from).and_then(|chain| chain.verify(NOW, &mesh(1)));
        assert!(verified.is_err(), "bit {bit} of {} was flipped unnoticed", bytes.len() * 8);
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(chain) = Chain::decode(&bytes) {
            prop_assert!(chain.verify(NOW, &mesh(1)).is_err());
        }
    }
}

/// A member of an older version meets roles and capabilities that it has never heard of.
#[test]
fn roles_and_capabilities_of_later_versions_are_no_obstacle() {
    let mut later = certificate(1, 1, 3);
    // Bits that no version knows yet beside the agent's.
    later.roles = codec::decode(&0b1010_0000_0000_0001_u16.to_le_bytes(), 2).unwrap();
    later.capabilities = vec!["@team-a".to_owned(), "teleport".to_owned()];
    let chain = Chain::by_mesh_key(&later, &key(1)).unwrap();
    let membership = Chain::decode(&chain.encode().unwrap()).unwrap().verify(NOW, &mesh(1)).unwrap();
    assert_eq!(membership.roles.iter().collect::<Vec<_>>(), [Role::Agent]);
    assert_eq!(membership.roles.to_string(), "agent");
    assert!(!membership.may_operate("team-a"), "the namespaces give nothing without the role");
}

/// What certificates of this version say of an operator is within what earlier versions take: one more bit, and words
/// within their bounds.
#[test]
fn an_operator_may_operate_in_its_namespaces() {
    let operator = |words: &[&str]| {
        let mut certificate = certificate(1, 1, 3);
        certificate.roles = Roles::from_iter([Role::Operator]);
        certificate.capabilities = words.iter().map(|word| (*word).to_owned()).collect();
        Chain::by_mesh_key(&certificate, &key(1)).unwrap().verify(NOW, &mesh(1)).unwrap()
    };
    assert_eq!(codec::encode(&Roles::from_iter([Role::Operator]), 2).unwrap(), 16_u16.to_le_bytes());
    let longest = format!("@{}", "n".repeat(63));
    let some = operator(&["@team-a", &longest]);
    assert!(some.may_operate("team-a") && some.may_operate(&longest[1..]));
    assert!(
        !some.may_operate("team") && !some.may_operate("team-a2") && !some.may_operate("*") && !some.may_operate("")
    );
    assert_eq!(some.namespaces().collect::<Vec<_>>(), ["team-a", &longest[1..]]);
    assert!(operator(&["@*"]).may_operate("anything"));
    assert!(!operator(&[]).may_operate("team-a") && !operator(&["team-a"]).may_operate("team-a"));
}

/// A delegate gives no namespace that its delegation doesn't name.
#[test]
fn namespaces_are_within_the_delegation() {
    let by_delegate = |word: &str| under_delegation(|certificate| certificate.capabilities = vec![word.to_owned()]);
    assert!(matches!(by_delegate("@team-a"), Err(Error::Delegation(delegation::Error::Capability(_)))));
}

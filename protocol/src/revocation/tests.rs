use super::*;
use crate::certificate::{
    Chain,
    tests::{certificate, delegation, key, mesh},
};
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;

fn revocation(target: Target, before: u64) -> Revocation {
    Revocation { mesh: mesh(1), target, before }
}
fn member(n: u8) -> Target {
    Target::Member(key(n).public().to_peer_id())
}
fn by_mesh(target: Target, before: u64) -> SignedRevocation {
    SignedRevocation::by_mesh_key(&revocation(target, before), &key(1)).unwrap()
}
fn by_delegate(target: Target, before: u64) -> SignedRevocation {
    let right = Signed::sign(&delegation(), &key(1)).unwrap();
    SignedRevocation::by_delegate(&revocation(target, before), right, &key(2)).unwrap()
}
fn membership_of_mesh() -> Membership {
    Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap().verify(NOW, &mesh(1)).unwrap()
}
fn membership_of_delegate() -> Membership {
    let mut certificate = certificate(1, 2, 3);
    certificate.models = delegation().models;
    let right = Signed::sign(&delegation(), &key(1)).unwrap();
    Chain::by_delegate(&certificate, right, &key(2)).unwrap().verify(NOW, &mesh(1)).unwrap()
}
fn list(entries: &[SignedRevocation]) -> RevocationList {
    let mut list = RevocationList::default();
    for entry in entries {
        list.insert(entry.clone(), &mesh(1)).unwrap();
    }
    list
}

#[test]
fn what_was_issued_before_is_void_and_inviting_again_works() {
    let mut member_again = membership_of_mesh();
    let list = list(&[by_mesh(member(3), NOW + 10)]);
    assert!(list.revokes(&member_again));
    assert_eq!(list.revoked_before(&member_again.peer, None), NOW + 10);
    member_again.issued_at = NOW + 10;
    assert!(!list.revokes(&member_again));
}

#[test]
fn revoking_a_delegation_ends_its_branch() {
    let delegate = Target::Delegate(key(2).public().to_peer_id());
    let list = list(&[by_mesh(delegate, NOW)]);
    assert!(list.revokes(&membership_of_delegate()));
    assert!(!list.revokes(&membership_of_mesh()));
}

#[test]
fn revoking_a_delegates_membership_ends_its_branch_and_a_later_delegation_counts() {
    let delegated_at = delegation().issued_at;
    let revoked = list(&[by_mesh(member(2), delegated_at + 1)]);
    assert!(revoked.revokes(&membership_of_delegate()));
    let delegate = key(2).public().to_peer_id();
    assert!(revoked.ends_delegation(&delegate, delegated_at) && !revoked.ends_delegation(&delegate, delegated_at + 1));
    assert!(!list(&[by_mesh(member(2), delegated_at)]).revokes(&membership_of_delegate()));
    // A delegate is nobody's judge but its branch's.
    assert!(!list(&[by_delegate(member(2), NOW)]).ends_delegation(&delegate, delegated_at));
}

#[test]
fn a_delegate_revokes_its_own_branch_only() {
    let list = list(&[by_delegate(member(3), NOW + 10)]);
    assert!(list.revokes(&membership_of_delegate()));
    assert!(!list.revokes(&membership_of_mesh()));
    let delegate = Target::Delegate(key(2).public().to_peer_id());
    assert_eq!(by_delegate(delegate, NOW).verify(&mesh(1)), Err(Error::NotAllowed));
}

/// Else the next certificate of the mesh key would be issued at the end of time, and nothing would ever reach it.
#[test]
fn a_delegate_makes_nobody_irrevocable() {
    let end = delegation().not_after;
    let refused = Error::BeyondDelegation { before: u64::MAX, not_after: end };
    assert_eq!(by_delegate(member(3), u64::MAX).verify(&mesh(1)), Err(refused));
    assert!(by_delegate(member(3), end + LEEWAY_S + 1).verify(&mesh(1)).is_err());
    let list = list(&[by_delegate(member(3), end)]);
    let (peer, delegate) = (key(3).public().to_peer_id(), key(2).public().to_peer_id());
    assert_eq!(list.revoked_before(&peer, None), 0, "what the mesh key issues is not the delegate's to judge");
    assert_eq!(list.revoked_before(&peer, Some(&key(4).public().to_peer_id())), 0, "nor what another one does");
    assert_eq!(list.revoked_before(&peer, Some(&delegate)), end);
}

#[test]
fn a_delegate_crowds_out_no_other_and_the_order_does_not_matter() {
    let entry = |signer: u8, n: u64| {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&n.to_le_bytes());
        let peer = libp2p_identity::Keypair::ed25519_from_bytes(seed).unwrap().public().to_peer_id();
        let signer = Signer::Delegate(key(signer).public().to_peer_id());
        (revocation(Target::Member(peer), NOW), signer, by_mesh(member(3), NOW))
    };
    let flood = limits::DELEGATED_REVOCATIONS as u64 + 50;
    // Whichever comes first in the order of peers floods.
    for (quiet, loud) in [(2, 4), (4, 2)] {
        let entries: Vec<_> = (0..flood).map(|n| entry(loud, n)).chain((0..9).map(|n| entry(quiet, n))).collect();
        let (mut forward, mut backward) = (RevocationList::default(), RevocationList::default());
        for (revocation, signer, signed) in entries.iter().cloned() {
            forward.add(revocation, signer, signed);
        }
        for (revocation, signer, signed) in entries.iter().rev().cloned() {
            backward.add(revocation, signer, signed);
        }
        let quiet = Signer::Delegate(key(quiet).public().to_peer_id());
        assert_eq!(forward.entries.keys().filter(|(signer, ..)| *signer == quiet).count(), 9);
        assert_eq!(forward.len(), limits::DELEGATED_REVOCATIONS);
        assert!(forward.entries.keys().eq(backward.entries.keys()));
    }
}

fn under(delegation: &Delegation, target: Target, before: u64) -> SignedRevocation {
    let right = Signed::sign(delegation, &key(1)).unwrap();
    SignedRevocation::by_delegate(&revocation(target, before), right, &key(2)).unwrap()
}

#[test]
fn a_delegates_entries_go_once_nothing_is_left_that_they_could_end() {
    let entries = [by_mesh(member(3), NOW), by_delegate(member(4), NOW)];
    let (mut list, last) = (list(&entries), delegation().not_after + KEPT_AFTER_DELEGATION_S);
    let full = list.version();
    // A certificate that ends with the delegation counts up to the leeway, and up to another for a clock that is behind.
    list.expire(last);
    assert_eq!((list.len(), list.version()), (2, full));
    list.expire(last + 1);
    assert_eq!((list.len(), list.revoked_before(&key(3).public().to_peer_id(), None)), (1, NOW));
    assert_ne!(list.version(), full);
    // Whoever has it still does not bring it back.
    let (gone, without) = (entries[1].clone(), list.version());
    assert_eq!(list.insert(gone.clone(), &mesh(1)), Ok(Merged::Known));
    assert_eq!(list.merge(vec![gone.clone()], &mesh(1)), (vec![], 0));
    assert_eq!((list.len(), list.version()), (1, without));
    // A clock that was wrong, and was set.
    list.expire(NOW);
    assert!(matches!(list.insert(gone, &mesh(1)), Ok(Merged::New(_))));
    assert_eq!(list.version(), full);
}

/// The clock of a delegate may have been ahead when it said the first.
#[test]
fn what_goes_with_a_delegation_leaves_what_was_said_under_the_next_one() {
    let second = Delegation { issued_at: NOW, not_after: NOW + 90 * 24 * 60 * 60, ..delegation() };
    let entries = [under(&delegation(), member(3), NOW + 20), under(&second, member(3), NOW + 10)];
    let issuer = Issuer::Delegate { peer: second.issuer, delegated_at: second.issued_at };
    let peer = key(3).public().to_peer_id();
    for mut list in [list(&entries), list(&[entries[1].clone(), entries[0].clone()])] {
        assert!(list.revokes_certificate(&peer, &issuer, NOW + 15));
        list.expire(delegation().not_after + KEPT_AFTER_DELEGATION_S + 1);
        assert!(list.revokes_certificate(&peer, &issuer, NOW + 9));
        assert!(!list.revokes_certificate(&peer, &issuer, NOW + 15));
    }
}

#[test]
fn a_delegates_entries_go_with_its_right() {
    for end in [Target::Delegate, Target::Member] {
        let end = by_mesh(end(key(2).public().to_peer_id()), NOW);
        let said = [by_delegate(member(3), NOW), by_delegate(member(4), NOW)];
        let before = list(&[&said[..], std::slice::from_ref(&end)].concat());
        let after = list(&[std::slice::from_ref(&end), &said[..]].concat());
        assert_eq!((before.len(), before.version()), (1, after.version()));
        assert!(before.revokes(&membership_of_delegate()), "as all of its branch");
        let again = Delegation { issued_at: NOW, ..delegation() };
        assert_eq!(list(&[end, under(&again, member(3), NOW)]).len(), 2);
    }
}

#[test]
fn an_own_revocation_displaces_none_of_ones_own() {
    let fill = |list: &mut RevocationList, signer: u8, count: usize| {
        for n in 0..count {
            let mut seed = [signer; 32];
            seed[..8].copy_from_slice(&n.to_le_bytes());
            let peer = libp2p_identity::Keypair::ed25519_from_bytes(seed).unwrap().public().to_peer_id();
            let signer = Signer::Delegate(key(signer).public().to_peer_id());
            list.add(revocation(Target::Member(peer), NOW), signer, by_mesh(member(3), NOW));
        }
        list.version = list.content_version();
    };
    let mut own = RevocationList::default();
    fill(&mut own, 2, limits::DELEGATED_REVOCATIONS);
    let version = own.version();
    for n in 10..30 {
        assert_eq!(own.insert_own(by_delegate(member(n), NOW), &mesh(1)), Ok(Merged::Full));
    }
    assert_eq!((own.len(), own.version(), own.displaced()), (limits::DELEGATED_REVOCATIONS, version, 0));
    // As from others: one of them goes, whichever is last.
    own.insert(by_delegate(member(10), NOW), &mesh(1)).unwrap();
    assert_eq!(own.displaced(), 1);
    // Another delegate that has more makes room.
    let mut shared = RevocationList::default();
    fill(&mut shared, 2, 9);
    fill(&mut shared, 4, limits::DELEGATED_REVOCATIONS - 9);
    assert!(matches!(shared.insert_own(by_delegate(member(10), NOW), &mesh(1)), Ok(Merged::New(_))));
    assert_eq!(shared.entries.keys().filter(|key| key.0 == Signer::Delegate(key2())).count(), 10);
}

fn key2() -> PeerId {
    key(2).public().to_peer_id()
}

#[test]
fn other_signers_and_meshes_are_refused() {
    let forged = SignedRevocation::by_mesh_key(&revocation(member(3), NOW), &key(9)).unwrap();
    assert_eq!(forged.verify(&mesh(1)), Err(signed::Error::Signature.into()));
    let other = Revocation { mesh: mesh(9), ..revocation(member(3), NOW) };
    let other = SignedRevocation::by_mesh_key(&other, &key(1)).unwrap();
    assert_eq!(other.verify(&mesh(1)), Err(Error::WrongMesh(mesh(9))));
}

#[test]
fn a_list_survives_encoding_and_refuses_what_does_not_verify() {
    let list = list(&[by_mesh(member(3), NOW), by_delegate(member(4), NOW)]);
    let mut read = RevocationList::default();
    let mut entries = RevocationList::decode(&list.encode().unwrap()).unwrap();
    entries.push(SignedRevocation::by_mesh_key(&revocation(member(5), NOW), &key(9)).unwrap());
    let (new, refused) = read.merge(entries, &mesh(1));
    assert_eq!((new.len(), refused, read.version()), (2, 1, list.version()));
}

#[test]
fn the_bound_keeps_the_mesh_keys_entries_and_does_not_depend_on_order() {
    let (mut forward, mut backward) = (RevocationList::default(), RevocationList::default());
    // Signing so many would be slow: the bound lies behind verification.
    let entry = |n: usize, signer| {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&n.to_le_bytes());
        let peer = libp2p_identity::Keypair::ed25519_from_bytes(seed).unwrap().public().to_peer_id();
        (revocation(Target::Member(peer), NOW), signer, by_mesh(member(3), NOW))
    };
    let count = limits::DELEGATED_REVOCATIONS + 50;
    let delegate = Signer::Delegate(key(2).public().to_peer_id());
    let entries: Vec<_> =
        (0..count).map(|n| entry(n, delegate)).chain((0..20).map(|n| entry(n, Signer::Mesh))).collect();
    for (revocation, signer, signed) in entries.iter().cloned() {
        forward.add(revocation, signer, signed);
    }
    for (revocation, signer, signed) in entries.iter().rev().cloned() {
        backward.add(revocation, signer, signed);
    }
    assert_eq!(forward.len(), limits::DELEGATED_REVOCATIONS + 20);
    assert!(forward.entries.keys().eq(backward.entries.keys()));
}

#[test]
fn a_version_is_an_entity_tag_and_back() {
    for version in [ListVersion::default(), ListVersion(0x00ab_0000_0000_00cd), ListVersion(u64::MAX)] {
        assert_eq!(ListVersion::from_entity_tag(&version.entity_tag()), Some(version));
    }
    assert_eq!(ListVersion(171).entity_tag(), "\"00000000000000ab\"");
    for other in ["", "*", "\"\"", "00000000000000ab", "W/\"00000000000000ab\"", "\"+0000000000000ab\"", "\"ab\""] {
        assert_eq!(ListVersion::from_entity_tag(other), None, "{other}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    for signed in [by_mesh(member(3), NOW), by_delegate(member(3), NOW)] {
        let bytes = signed.encode().unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = SignedRevocation::decode(&flipped).map_err(Error::from);
            assert!(read.and_then(|read| read.verify(&mesh(1))).is_err(), "bit {bit} was flipped unnoticed");
        }
    }
}

fn any_entry() -> impl Strategy<Value = SignedRevocation> {
    (0_u8..4, 0_u64..4, any::<bool>()).prop_map(|(peer, before, delegated)| {
        let sign = if delegated { by_delegate } else { by_mesh };
        sign(member(10 + peer), NOW + before)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn merging_commutes_and_is_idempotent(
        one in proptest::collection::vec(any_entry(), 0..8),
        two in proptest::collection::vec(any_entry(), 0..8),
    ) {
        let (mut left, mut right) = (list(&one), list(&two));
        left.merge(two.clone(), &mesh(1));
        right.merge(one.clone(), &mesh(1));
        prop_assert_eq!(left.version(), right.version());
        prop_assert!(left.iter().eq(right.iter()));
        let before = left.version();
        let (new, refused) = left.merge(two, &mesh(1));
        prop_assert!(new.is_empty() && refused == 0);
        prop_assert_eq!(left.version(), before);
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = SignedRevocation::decode(&bytes).map(|entry| entry.verify(&mesh(1)));
        let _ = RevocationList::decode(&bytes);
    }
}

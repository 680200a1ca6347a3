use super::*;
use dunlin_protocol::{
    certificate::{Certificate, LEEWAY_S},
    delegation::Delegation,
    id::{Role, Roles},
    pattern::Models,
    revocation::Target,
    signed::Signed,
};
use libp2p::identity::Keypair;

const NOW: u64 = 1_800_000_000;

struct Mesh {
    key: Keypair,
    id: MeshId,
}
fn mesh() -> Mesh {
    let key = Keypair::generate_ed25519();
    let id = MeshId::of(&key.public().try_into_ed25519().unwrap());
    Mesh { key, id }
}
impl Mesh {
    fn chain(&self, subject: PeerId, capabilities: &[&str]) -> Chain {
        let certificate = Certificate {
            mesh: self.id,
            subject,
            issuer: self.key.public().to_peer_id(),
            roles: Roles::from_iter([Role::Agent]),
            models: Models::Any,
            tenants: vec![],
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            name: None,
            issued_at: NOW,
            not_after: NOW + 1000,
        };
        Chain::by_mesh_key(&certificate, &self.key).unwrap()
    }
    fn member(&self, subject: PeerId) -> Membership {
        self.chain(subject, &[]).verify(NOW, &self.id).unwrap()
    }
    fn members(&self) -> Members {
        Members::new(self.chain(peer(), &[]), self.id, RevocationList::default(), NOW).unwrap()
    }
    fn revocation(&self, peer: PeerId, before: u64) -> SignedRevocation {
        let revocation = Revocation { mesh: self.id, target: Target::Member(peer), before };
        SignedRevocation::by_mesh_key(&revocation, &self.key).unwrap()
    }
}
fn peer() -> PeerId {
    Keypair::generate_ed25519().public().to_peer_id()
}

#[test]
fn rights_end_with_expiry_and_revocation() {
    let mesh = mesh();
    let members = mesh.members();
    let peer = peer();
    assert_eq!(members.check(&peer, NOW), Err(Denied::NotAMember));
    members.insert(mesh.member(peer), ListVersion::default());
    assert_eq!(members.check(&peer, NOW).unwrap().peer, peer);
    assert_eq!(members.check(&peer, NOW + 1000 + LEEWAY_S + 1), Err(Denied::Expired));
    let mut changes = members.revocation_changes();
    members.revoke(mesh.revocation(peer, NOW + 1)).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(members.check(&peer, NOW), Err(Denied::Revoked));
    assert_eq!(members.revoked(), [peer]);
    members.revoke(mesh.revocation(peer, NOW + 1)).unwrap();
    assert!(!changes.has_changed().unwrap(), "a repeat wakes nobody");
}

#[test]
fn lists_are_compared_with_whom_has_another_one() {
    let mesh = mesh();
    let (members, other) = (mesh.members(), mesh.members());
    other.revoke(mesh.revocation(peer(), NOW)).unwrap();
    let ahead = peer();
    members.insert(mesh.member(ahead), other.revocations().version());
    assert_eq!(members.other_list_of(&ahead), Some(other.revocations().version()));
    let equal = peer();
    members.insert(mesh.member(equal), ListVersion::default());
    assert_eq!(members.other_list_of(&equal), None);
    let new = members.merge_revocations(other.revocations().iter().cloned().collect());
    assert_eq!(new.len(), 1);
    assert_eq!(members.other_list_of(&ahead), None);
    assert_eq!(members.other_list_of(&equal), Some(ListVersion::default()), "to be told");
}

#[test]
fn a_refused_peer_is_not_dialled_for_ten_minutes() {
    let mesh = mesh();
    let members = mesh.members();
    let (peer, start) = (peer(), Instant::now());
    members.note_refused(peer, Refusal::Internal, start);
    assert_eq!(members.refused(&peer, start), None, "a failure is no refusal");
    members.note_refused(peer, Refusal::Expired, start);
    assert_eq!(members.refused(&peer, start + NO_DIAL / 2), Some(Refusal::Expired));
    assert_eq!(members.refused(&peer, start + NO_DIAL), None);
    members.note_refused(peer, Refusal::Expired, start);
    members.insert(mesh.member(peer), ListVersion::default());
    assert_eq!(members.refused(&peer, start), None, "it came back with a good certificate");
}

#[test]
fn the_no_dial_list_is_bounded() {
    let members = mesh().members();
    let start = Instant::now();
    let first = PeerId::random();
    members.note_refused(first, Refusal::WrongMesh, start);
    for n in 1..=NO_DIAL_PEERS as u64 {
        members.note_refused(PeerId::random(), Refusal::WrongMesh, start + Duration::from_millis(n));
    }
    assert_eq!(members.refused_peers().len(), NO_DIAL_PEERS);
    assert_eq!(members.refused(&first, start), None);
}

#[test]
fn the_own_certificate_is_replaced_by_a_good_one_of_ours_only() {
    let mesh = mesh();
    let members = mesh.members();
    assert!(members.replace_own(mesh.chain(peer(), &[]), NOW).is_err());
    let renewed = mesh.chain(members.peer_id(), &["later"]);
    members.replace_own(renewed.clone(), NOW).unwrap();
    assert_eq!(*members.own_chain(), renewed);
    assert_eq!(members.get(&members.peer_id()).unwrap().capabilities, ["later"]);
}

#[test]
fn issuers_are_known_by_their_certificates() {
    let mesh = mesh();
    let members = mesh.members();
    let issuers = [peer(), peer()];
    members.insert(mesh.member(peer()), ListVersion::default());
    for issuer in issuers {
        let membership = mesh.chain(issuer, &["issue"]).verify(NOW, &mesh.id).unwrap();
        members.insert(membership, ListVersion::default());
    }
    let known = |members: &Members| members.issuers().iter().map(|issuer| issuer.peer).collect::<Vec<_>>();
    assert_eq!(known(&members), [issuers[1], issuers[0]]);
}

/// A member in the branch of `delegate`, with nothing that it could do.
fn stripped(mesh: &Mesh, delegate: &Keypair, subject: PeerId, issued_at: u64) -> Membership {
    let delegation = Delegation {
        mesh: mesh.id,
        issuer: delegate.public().to_peer_id(),
        roles: Roles::from_iter([Role::Agent]),
        models: Models::Any,
        capabilities: vec![],
        life_s: 1000,
        issued_at: NOW,
        not_after: NOW + 1000,
    };
    let certificate = Certificate {
        issuer: delegation.issuer,
        roles: Roles::NONE,
        models: Models::Only(vec![]),
        issued_at,
        ..mesh.chain(subject, &[]).certificate.peek().unwrap()
    };
    let right = Signed::sign(&delegation, &mesh.key).unwrap();
    Chain::by_delegate(&certificate, right, delegate).unwrap().verify(NOW, &mesh.id).unwrap()
}

#[test]
fn a_delegate_takes_nothing_from_members_of_others_by_gossip() {
    let mesh = mesh();
    let members = mesh.members();
    let (delegate, other) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let holder = mesh.chain(peer(), &["issue"]).verify(NOW, &mesh.id).unwrap();
    let anothers = stripped(&mesh, &other, peer(), NOW);
    for victim in [holder, anothers] {
        members.insert(victim.clone(), ListVersion::default());
        let attack = stripped(&mesh, &delegate, victim.peer, NOW + 500);
        assert_eq!(members.hear(attack.clone(), false), Heard::Useless);
        assert_eq!(*members.get(&victim.peer).unwrap(), victim);
        // It may have asked for that, and says so.
        assert_eq!(members.hear(attack.clone(), true), Heard::New);
        assert_eq!(*members.get(&victim.peer).unwrap(), attack);
        // Now it is in the branch.
        assert_eq!(members.hear(stripped(&mesh, &delegate, victim.peer, NOW + 600), false), Heard::New);
        assert_eq!(members.hear(attack, false), Heard::Useless, "older");
    }
}

#[test]
fn gossip_of_peers_never_met_takes_no_room_and_lifts_no_suspicion() {
    let mesh = mesh();
    let members = mesh.members();
    let (met, now) = (peer(), Instant::now());
    members.insert(mesh.member(met), ListVersion(7));
    members.note_refused_by(peer(), Refusal::Revoked, now);
    let unknown = peer();
    assert_eq!(members.hear(mesh.member(unknown), false), Heard::Known);
    assert_eq!(members.get(&unknown), None);
    let newer = Membership { issued_at: NOW + 1, ..mesh.member(met) };
    assert_eq!(members.hear(newer.clone(), false), Heard::New);
    assert_eq!(*members.get(&met).unwrap(), newer);
    assert_eq!(members.other_list_of(&met), Some(ListVersion(7)), "its list is as it was");
    assert!(matches!(members.standing(), Standing::CalledRevoked(_)));
    members.insert(newer, ListVersion::default());
    assert_eq!(members.standing(), Standing::Member, "somebody let this one in");
}

#[test]
fn the_own_certificate_is_not_replaced_by_an_older_one() {
    let mesh = mesh();
    let members = mesh.members();
    let chain = |issued_at| {
        let own = mesh.chain(members.peer_id(), &[]).certificate.peek().unwrap();
        Chain::by_mesh_key(&Certificate { issued_at, ..own }, &mesh.key).unwrap()
    };
    members.replace_own(chain(NOW + 9), NOW).unwrap();
    assert_eq!(members.replace_own(chain(NOW + 8), NOW), Err(certificate::Error::Superseded));
    assert_eq!(members.own().issued_at, NOW + 9);
}

use super::*;
use dunlin_protocol::id::Role;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

fn roles() -> Roles {
    [Role::Agent, Role::Proxy].into_iter().collect()
}

#[test]
fn a_mesh_is_made_once_and_taken_up_again() {
    let home = tempfile::tempdir().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    assert!(matches!(load(&state, NOW), Err(Error::NotAMember)));
    let own = create(&state, roles(), Some(Name::new("box").unwrap()), NOW).unwrap();
    assert!(own.authority() == Some(certificate::Authority::MeshKey) && own.roles == roles());
    assert!(matches!(create(&state, roles(), None, NOW), Err(Error::AlreadyAMember(mesh)) if mesh == own.mesh));
    let mesh = load(&state, NOW).unwrap();
    assert_eq!((*mesh.members.own()).clone(), own);
    assert_eq!(mesh.identity.public().to_peer_id(), own.peer);
    assert!(mesh.issuer.is_some());
}

#[test]
fn the_mesh_keys_holder_renews_itself_and_others_are_told() {
    let home = tempfile::tempdir().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    create(&state, roles(), None, NOW).unwrap();
    let fresh = load(&state, NOW + 19 * DAY).unwrap().members.own();
    assert_eq!(fresh.issued_at, NOW, "not due yet");
    let renewed = load(&state, NOW + 400 * DAY).unwrap().members.own();
    assert_eq!((renewed.issued_at, renewed.roles), (NOW + 400 * DAY, roles()));
    // The same directory without the mesh key.
    std::fs::remove_file(home.path().join("mesh.key")).unwrap();
    assert!(load(&state, NOW + 400 * DAY).unwrap().issuer.is_none());
    assert!(matches!(load(&state, NOW + 900 * DAY), Err(Error::Expired)));
}

#[test]
fn a_certificate_of_another_identity_is_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, two) = (StateDir::open(one.path()).unwrap(), StateDir::open(two.path()).unwrap());
    create(&one, roles(), None, NOW).unwrap();
    two.store_chain(&one.chain().unwrap().unwrap()).unwrap();
    assert!(matches!(load(&two, NOW), Err(Error::Certificate(certificate::Error::WrongSubject(_)))));
}

#[test]
fn the_mesh_keys_holder_changes_its_own_roles() {
    let home = tempfile::tempdir().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let relay = Roles::from_iter([Role::Agent, Role::Proxy, Role::Relay]);
    assert!(matches!(reissue_own(&state, relay, None, NOW), Err(Error::NotAMember)));
    create(&state, roles(), Some(Name::new("box").unwrap()), NOW).unwrap();
    let own = reissue_own(&state, relay, None, NOW + DAY).unwrap();
    assert_eq!((own.roles, own.issued_at, own.name.as_ref().map(Name::as_str)), (relay, NOW + DAY, Some("box")));
    assert_eq!(*load(&state, NOW + DAY).unwrap().members.own(), own);
    std::fs::remove_file(home.path().join("mesh.key")).unwrap();
    assert!(
        matches!(reissue_own(&state, roles(), None, NOW + DAY), Err(Error::NotTheMeshKey(mesh)) if mesh == own.mesh)
    );
}

/// A machine that made a mesh, and one that it let issue, by files alone.
fn delegated(key_home: &StateDir, delegate: &StateDir, life: std::time::Duration) -> Members {
    use crate::issuer::{DelegationOptions, InvitationOptions};
    use dunlin_protocol::pattern::Models;
    let issuer = Issuer::open(key_home).unwrap().unwrap();
    let none = RevocationList::default();
    let peer = delegate.identity().unwrap().public().to_peer_id();
    let mut rng = rand::make_rng::<rand::rngs::StdRng>();
    let token = issuer.invite(&InvitationOptions::default(), vec![], NOW, &mut rng).unwrap();
    let chain: Chain = issuer.redeem(peer, &token.request(peer, None).unwrap(), None, &none, NOW).unwrap();
    let member = chain.verify(NOW, &issuer.mesh()).unwrap();
    let options = DelegationOptions { life, models: Models::Any, ..DelegationOptions::default() };
    let appointment = issuer.delegate(&member, &options, &none, NOW).unwrap();
    issuer.remember(&appointment, NOW).unwrap();
    delegate.store_chain(&appointment.chain).unwrap();
    delegate.store_delegation(&appointment.delegation).unwrap();
    load(delegate, NOW).unwrap().members
}

const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * DAY);

#[test]
fn a_delegate_renews_itself_as_long_as_its_delegation_lasts() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (holder, delegate) = (StateDir::open(one.path()).unwrap(), StateDir::open(two.path()).unwrap());
    create(&holder, roles(), None, NOW).unwrap();
    let first = delegated(&holder, &delegate, YEAR).own();
    assert_eq!(first.authority(), Some(certificate::Authority::Delegation));
    // Away for longer than its certificate lived, and the mesh key is nowhere.
    let later = NOW + 200 * DAY;
    let mesh = load(&delegate, later).unwrap();
    let own = mesh.members.own();
    assert_eq!((own.issued_at, own.roles, own.authority()), (later, roles(), Some(certificate::Authority::Delegation)));
    assert!(!mesh.issuer.unwrap().holds_mesh_key());
    let last = load(&delegate, NOW + 364 * DAY).unwrap().members.own();
    assert_eq!(last.not_after, NOW + 365 * DAY, "no longer than that");
    assert!(matches!(load(&delegate, NOW + 366 * DAY), Err(Error::Expired)));
}

#[test]
fn the_mesh_key_leaves_a_machine_only_when_another_may_issue_and_comes_back() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (holder, delegate) = (StateDir::open(one.path()).unwrap(), StateDir::open(two.path()).unwrap());
    let id = create(&holder, roles(), None, NOW).unwrap().mesh;
    assert!(matches!(key::remove(&holder, NOW), Err(Error::NobodyIssues)));
    assert!(holder.mesh_key().unwrap().is_some());
    delegated(&holder, &delegate, YEAR);
    assert!(matches!(key::remove(&holder, NOW + 366 * DAY), Err(Error::NobodyIssues)), "one that holds");
    let ends = NOW + YEAR.as_secs();
    let soon = key::may_remove(&holder, ends - 59);
    assert!(matches!(soon, Err(Error::EndsSoon { left_s: 59 })), "{soon:?}");
    key::may_remove(&holder, ends - key::DELEGATED_FOR_S).unwrap();
    let (text, mesh) = key::export(&holder).unwrap();
    assert_eq!(mesh, id);
    key::remove(&holder, NOW).unwrap();
    assert!(matches!(key::export(&holder), Err(Error::NoMeshKey)));
    let left = load(&holder, NOW).unwrap();
    assert!(left.issuer.is_none() && left.members.own().authority().is_none() && left.members.own().roles == roles());
    assert!(matches!(key::remove(&holder, NOW), Err(Error::NoMeshKey)));

    let own = key::import(&holder, &text, roles(), None, NOW).unwrap();
    assert_eq!(own.authority(), Some(certificate::Authority::MeshKey));
    assert!(load(&holder, NOW).unwrap().issuer.unwrap().holds_mesh_key());
    // A machine of no mesh begins anew with it; one of another mesh is left alone.
    let (three, four) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (fresh, other) = (StateDir::open(three.path()).unwrap(), StateDir::open(four.path()).unwrap());
    assert_eq!(key::import(&fresh, &text, roles(), None, NOW).unwrap().mesh, id);
    create(&other, roles(), None, NOW).unwrap();
    assert!(matches!(key::import(&other, &text, roles(), None, NOW), Err(Error::AnotherMesh { .. })));
    assert!(matches!(key::import(&other, "dunlin1", roles(), None, NOW), Err(Error::KeyText(_))));
}

#[test]
fn a_machine_that_delegates_to_itself_goes_on_without_the_key() {
    use crate::issuer::{DelegationOptions, InvitationOptions};
    let home = tempfile::tempdir().unwrap();
    let state = StateDir::open(home.path()).unwrap();
    let own = create(&state, roles(), None, NOW).unwrap();
    let none = RevocationList::default();
    let issuer = Issuer::open(&state).unwrap().unwrap();
    let mut rng = rand::make_rng::<rand::rngs::StdRng>();
    // Made with the key, redeemed without.
    let token = issuer.invite(&InvitationOptions::default(), vec![], NOW, &mut rng).unwrap();
    let appointment = issuer.delegate(&own, &DelegationOptions::default(), &none, NOW).unwrap();
    state.store_chain(&appointment.chain).unwrap();
    state.store_delegation(&appointment.delegation).unwrap();
    issuer.remember(&appointment, NOW).unwrap();
    assert!(load(&state, NOW).unwrap().issuer.unwrap().holds_mesh_key(), "as long as it lies there");
    key::remove(&state, NOW).unwrap();
    let mesh = load(&state, NOW).unwrap();
    assert_eq!(mesh.members.own().authority(), Some(certificate::Authority::Delegation));
    let delegate = mesh.issuer.unwrap();
    let joiner = Keypair::generate_ed25519().public().to_peer_id();
    let chain = delegate.redeem(joiner, &token.request(joiner, None).unwrap(), None, &none, NOW).unwrap();
    let member = chain.verify(NOW, &own.mesh).unwrap();
    assert_eq!(member.issuer, certificate::Issuer::Delegate { peer: own.peer, delegated_at: NOW + 1 });
}

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
    assert!(own.issues() && own.roles == roles());
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

use super::*;
use std::os::unix::fs::PermissionsExt;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_second_process_is_told_who_has_it() {
    let home = directory();
    let held = StateDir::open(home.path()).unwrap();
    let error = StateDir::open(home.path()).unwrap_err();
    assert!(matches!(error, Error::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()));
    drop(held);
    StateDir::open(home.path()).unwrap();
}

#[test]
fn nobody_else_can_read_it() {
    let home = directory();
    let path = home.path().join("a/b");
    let state = StateDir::open(&path).unwrap();
    state.identity().unwrap();
    state.store_mesh_key(&Keypair::generate_ed25519()).unwrap();
    state.next_epoch(1).unwrap();
    state.store_known_peers(vec![]).unwrap();
    state.store_revocations(Arc::default).unwrap();
    state.issuer_db(&MeshId([1; 32])).unwrap();
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 7, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn a_directory_that_was_open_to_others_is_closed() {
    let home = directory();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    StateDir::open(home.path()).unwrap();
    assert_eq!(mode(home.path()), 0o700);
}

#[test]
fn the_identity_stays_and_a_damaged_one_is_not_replaced() {
    let home = directory();
    let first = StateDir::open(home.path()).unwrap().identity().unwrap().public();
    let state = StateDir::open(home.path()).unwrap();
    assert_eq!(state.identity().unwrap().public(), first);
    fs::write(home.path().join(IDENTITY), b"short").unwrap();
    assert!(matches!(state.identity(), Err(Error::Damaged { .. })));
}

#[test]
fn a_mesh_key_is_never_overwritten() {
    let home = directory();
    let state = StateDir::open(home.path()).unwrap();
    assert!(state.mesh_key().unwrap().is_none());
    let key = Keypair::generate_ed25519();
    state.store_mesh_key(&key).unwrap();
    assert!(matches!(state.store_mesh_key(&Keypair::generate_ed25519()), Err(Error::Exists(_))));
    assert_eq!(state.mesh_key().unwrap().unwrap().public(), key.public());
}

#[test]
fn epochs_grow_whatever_the_clock_does() {
    let home = directory();
    let state = StateDir::open(home.path()).unwrap();
    assert_eq!(state.next_epoch(1000).unwrap(), 1000);
    assert_eq!(state.next_epoch(1000).unwrap(), 1001);
    assert_eq!(state.next_epoch(7).unwrap(), 1002);
    drop(state);
    assert_eq!(StateDir::open(home.path()).unwrap().next_epoch(5000).unwrap(), 5000);
    fs::write(home.path().join(EPOCH), "what").unwrap();
    assert_eq!(
        StateDir::open(home.path()).unwrap().next_epoch(9000).unwrap(),
        9000,
        "a damaged counter goes on from the clock"
    );
}

#[test]
fn known_peers_are_kept_bounded_and_a_damaged_file_counts_as_empty() {
    let home = directory();
    let state = StateDir::open(home.path()).unwrap();
    let address: Multiaddr = "/ip4/192.0.2.1/tcp/4480".parse().unwrap();
    let known = || KnownPeer { peer: PeerId::random(), addresses: vec![address.clone(); KNOWN_ADDRESSES + 3] };
    let peers: Vec<_> = (0..KNOWN_PEERS + 5).map(|_| known()).collect();
    state.store_known_peers(peers.clone()).unwrap();
    let read = state.known_peers().unwrap();
    assert_eq!((read.len(), read[0].addresses.len(), read[0].peer), (KNOWN_PEERS, KNOWN_ADDRESSES, peers[0].peer));
    fs::write(home.path().join(KNOWN_PEERS_FILE), "{").unwrap();
    assert!(state.known_peers().unwrap().is_empty());
}

#[test]
fn of_writers_at_the_same_time_none_fails_and_the_newest_list_stays() {
    use dunlin_protocol::revocation::{Revocation, Target};
    const WRITERS: usize = 8;
    const ROUNDS: usize = 8;
    let home = directory();
    let state = StateDir::open(home.path()).unwrap();
    let key = Keypair::generate_ed25519();
    let mesh = MeshId::of(&key.clone().try_into_ed25519().unwrap().public());
    let list = Mutex::new(Arc::<RevocationList>::default());
    let start = std::sync::Barrier::new(WRITERS);
    let revoke_and_store = || {
        let revocation = Revocation { mesh, target: Target::Member(PeerId::random()), before: 1 };
        let signed = SignedRevocation::by_mesh_key(&revocation, &key).unwrap();
        Arc::make_mut(&mut list.lock().unwrap()).insert(signed, &mesh).unwrap();
        state.store_revocations(|| Arc::clone(&list.lock().unwrap()))
    };
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                start.wait();
                (0..ROUNDS).for_each(|_| revoke_and_store().unwrap());
            });
        }
    });
    assert_eq!(state.revocations().unwrap().len(), WRITERS * ROUNDS);
}

#[test]
fn an_issuers_database_that_is_not_its_own_is_never_taken_for_a_new_one() {
    let (home, other) = (directory(), directory());
    let (state, theirs) = (StateDir::open(home.path()).unwrap(), StateDir::open(other.path()).unwrap());
    let mesh = MeshId([1; 32]);
    let file = home.path().join(ISSUER_DB);
    state.issuer_db(&mesh).unwrap();
    state.issuer_db(&mesh).unwrap();
    let refused = |what: &str| {
        let before = fs::read(&file).unwrap();
        let error = state.issuer_db(&mesh).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("issuer.db") && error.contains("backup"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), before, "nothing was written to it");
    };
    assert!(state.issuer_db(&MeshId([2; 32])).unwrap_err().to_string().contains("another mesh"));
    theirs.issuer_db(&mesh).unwrap();
    fs::copy(other.path().join(ISSUER_DB), &file).unwrap();
    refused("belongs to peer");
    fs::write(&file, []).unwrap();
    refused("is empty");
    fs::write(&file, "nothing that SQLite ever wrote, and longer than its header, so that it looks at all of it")
        .unwrap();
    refused("is not a database");
    fs::remove_file(&file).unwrap();
    rusqlite::Connection::open(&file).unwrap().execute_batch("CREATE TABLE songs (title TEXT)").unwrap();
    refused("is not an issuer's database");
    // As the message says.
    fs::remove_file(&file).unwrap();
    // A crash while it was made.
    fs::write(file.with_extension("new"), []).unwrap();
    state.issuer_db(&mesh).unwrap();
    assert_eq!(mode(&file), 0o600);
}

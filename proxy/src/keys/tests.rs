use super::*;
use std::os::unix::fs::PermissionsExt;

/// A file of its own per test, removed at the end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("dunlin-keys-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn file(&self) -> std::path::PathBuf {
        self.0.join("keys.db")
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn made_keys_are_valid_until_revoked_and_survive_a_restart() {
    let scratch = Scratch::new("life");
    let keys = Keys::open(&scratch.file()).unwrap();
    let made = keys.create("laptop").unwrap();
    assert!(made.key.starts_with("sk-dunlin-") && made.key.len() >= 60, "{}", made.key);
    assert_eq!(keys.check(&made.key), Verdict::Valid);

    drop(keys);
    let keys = Keys::open(&scratch.file()).unwrap();
    assert_eq!(keys.check(&made.key), Verdict::Valid);
    assert_eq!(keys.list().unwrap(), std::slice::from_ref(&made.about));
    assert!(keys.any());

    assert!(keys.revoke(&made.about.id).unwrap().revoked.is_some());
    assert_eq!(keys.check(&made.key), Verdict::Revoked);
    assert!(!keys.any());
    let again = keys.revoke(&made.key).unwrap();
    assert_eq!(Some(again), keys.list().unwrap().pop(), "revoking by the whole key, a second time, changes nothing");
    assert!(matches!(keys.revoke("nobody"), Err(Error::Unknown(_))));
}

#[test]
fn what_is_not_exactly_a_key_is_unknown() {
    let scratch = Scratch::new("wrong");
    let keys = Keys::open(&scratch.file()).unwrap();
    let right = keys.create("").unwrap().key;
    let other = keys.create("").unwrap().key;
    let (head, secret) = right.rsplit_once('-').unwrap();
    let mixed = format!("{head}-{}", other.rsplit_once('-').unwrap().1);
    let short = &right[..right.len() - 1];
    let long = "x".repeat(100_000);
    for wrong in ["", "sk-", "sk-dunlin-", secret, head, short, &mixed, &right.to_uppercase(), &long] {
        assert_eq!(keys.check(wrong), Verdict::Unknown, "{wrong:.80}");
    }
}

#[test]
fn the_secret_is_not_in_the_file_and_the_file_is_private() {
    let scratch = Scratch::new("private");
    let keys = Keys::open(&scratch.file()).unwrap();
    let made = keys.create("name").unwrap();
    let secret = made.key.rsplit_once('-').unwrap().1.as_bytes();
    for entry in std::fs::read_dir(&scratch.0).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{}", path.display());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
    }
}

#[test]
fn what_another_process_writes_is_noticed() {
    let scratch = Scratch::new("other");
    let ours = Keys::open(&scratch.file()).unwrap();
    let theirs = Keys::open(&scratch.file()).unwrap();
    let made = theirs.create("").unwrap();
    assert_eq!(ours.check(&made.key), Verdict::Unknown);
    assert!(ours.refresh().unwrap());
    assert_eq!(ours.check(&made.key), Verdict::Valid);
    assert!(!ours.refresh().unwrap(), "nothing new");
    theirs.revoke(&made.about.id).unwrap();
    assert!(ours.refresh().unwrap());
    assert_eq!(ours.check(&made.key), Verdict::Revoked);
}

/// A mesh of one, whose machine may make keys.
fn member(scratch: &Scratch, home: &str) -> dunlin_node::mesh::Mesh {
    use dunlin_node::{mesh, state::StateDir};
    let state = StateDir::open(scratch.0.join(home)).unwrap();
    mesh::create(&state, dunlin_protocol::id::Roles::NONE, None, clock::unix_s()).unwrap();
    mesh::load(&state, clock::unix_s()).unwrap()
}

#[test]
fn keys_of_a_file_without_statements_become_everybodys() {
    let scratch = Scratch::new("migrate");
    let keys = Keys::open(&scratch.file()).unwrap();
    let (old, ended) = (keys.create("old").unwrap(), keys.create("ended").unwrap());
    keys.revoke(&ended.about.id).unwrap();
    assert!(keys.list().unwrap().iter().all(|key| key.local));
    keys.belong_to_state(member(&scratch, "home")).unwrap();
    assert_eq!((keys.check(&old.key), keys.check(&ended.key)), (Verdict::Valid, Verdict::Revoked));
    assert!(keys.list().unwrap().iter().all(|key| !key.local));
    let (whole, said) = keys.in_buckets(&(0..=u8::MAX).collect::<Vec<_>>(), usize::MAX).unwrap();
    assert_eq!((whole, said.len()), (256, 2));

    drop(keys);
    let again = Keys::open(&scratch.file()).unwrap();
    assert_eq!((again.check(&old.key), again.check(&ended.key)), (Verdict::Valid, Verdict::Revoked));
    assert!(again.was_synced().unwrap());
}

#[test]
fn what_one_file_says_another_takes_in_any_order_and_once() {
    let scratch = Scratch::new("replica");
    let keys = Keys::open(&scratch.file()).unwrap();
    keys.belong_to_state(member(&scratch, "home")).unwrap();
    let (made, first) = keys.make(NewKey { name: "a".into(), ..NewKey::default() }).unwrap();
    let limit = KeyChange { requests_per_minute: Some(Some(60)), ..KeyChange::default() };
    let (_, second) = keys.edit(&made.about.id, limit).unwrap();
    let (_, third) = keys.end(&made.about.id, false).unwrap();
    assert!(matches!(keys.edit(&made.about.id, KeyChange::default()), Err(Error::Final(_))));
    let copy = Keys::open(&scratch.0.join("copy.db")).unwrap();
    let told = |all: &[&Signed]| {
        let all = all.iter().flat_map(|said| said.iter());
        all.map(|signed| (signed.statement.peek().unwrap(), signed.clone())).collect::<Vec<_>>()
    };
    assert_eq!(copy.take(told(&[&second, &first])).unwrap(), 1, "the later one only");
    assert_eq!(copy.check(&made.key), Verdict::Valid);
    assert_eq!(copy.key(&made.about.id).unwrap().limits.requests_per_minute, Some(60));
    assert_eq!(copy.take(told(&[&third])).unwrap(), 1);
    assert_eq!(copy.take(told(&[&second, &first])).unwrap(), 0, "revoked is final");
    assert_eq!(copy.check(&made.key), Verdict::Revoked);
    assert_eq!(copy.buckets(), keys.buckets());
    assert!(!copy.was_synced().unwrap(), "what came by chance is not all");
    assert!(matches!(copy.make(NewKey { priority: 1, ..NewKey::default() }), Err(Error::Invalid(_))));
}

#[test]
fn expired_and_admin_keys_open_no_endpoint() {
    let scratch = Scratch::new("kinds");
    let keys = Keys::open(&scratch.file()).unwrap();
    keys.belong_to_state(member(&scratch, "home")).unwrap();
    let now = clock::unix_s();
    let (soon, _) = keys.make(NewKey { expires: Some(now + 60), ..NewKey::default() }).unwrap();
    assert!(keys.admit(&soon.key, KeyKind::Client, now + 59).is_ok());
    assert_eq!(keys.admit(&soon.key, KeyKind::Client, now + 60).unwrap_err(), Verdict::Expired);
    assert!(matches!(keys.make(NewKey { expires: Some(now), ..NewKey::default() }), Err(Error::Invalid(_))));
    let in_millis = (now + 60) * 1000;
    let refused = keys.make(NewKey { expires: Some(in_millis), ..NewKey::default() }).unwrap_err().to_string();
    assert!(refused.contains("give unix seconds, not milliseconds"), "{refused}");
    let change = KeyChange { expires: Some(Some(in_millis)), ..KeyChange::default() };
    assert!(matches!(keys.edit(&soon.about.id, change), Err(Error::Invalid(_))));
    let (admin, _) = keys.make(NewKey { kind: KeyKind::Admin, ..NewKey::default() }).unwrap();
    assert!(admin.key.starts_with("admin-dunlin-"));
    assert_eq!(keys.check(&admin.key), Verdict::Unknown);
    assert!(keys.admit(&admin.key, KeyKind::Admin, now).is_ok());
    assert_eq!(keys.admit(&soon.key, KeyKind::Admin, now).unwrap_err(), Verdict::Unknown);
    assert!(matches!(
        keys.make(NewKey { tenant: Some("t".into()), ..NewKey::default() }),
        Err(Error::UnknownTenant(_))
    ));
}

#[test]
fn the_longest_pattern_has_the_price() {
    let scratch = Scratch::new("prices");
    let keys = Keys::open(&scratch.file()).unwrap();
    keys.belong_to_state(member(&scratch, "home")).unwrap();
    let price = |models: &str, prompt, cached| {
        let models = dunlin_protocol::pattern::Pattern::new(models).unwrap();
        keys.set_price(&Price { models, prompt, completion: 3.0, cached }).unwrap()
    };
    price("*", 1.0, None);
    price("Qwen/*", 2.0, Some(0.5));
    assert_eq!(keys.cost_micros("llama", 1_000_000, 0, 500_000), 1_000_000);
    assert_eq!(keys.cost_micros("Qwen/x", 1_000_000, 1_000_000, 500_000), 1_000_000 + 250_000 + 3_000_000);
    keys.remove_price("Qwen/*").unwrap();
    assert_eq!(keys.cost_micros("Qwen/x", 1_000_000, 0, 0), 1_000_000);
    price("Qwen/*", 4.0, None);
    assert_eq!(keys.cost_micros("Qwen/x", 1_000_000, 0, 0), 4_000_000, "a price can be set again");
}

#[test]
fn the_default_tenant_is_there_unmade() {
    let scratch = Scratch::new("default");
    let keys = Keys::open(&scratch.file()).unwrap();
    keys.belong_to_state(member(&scratch, "home")).unwrap();
    let new = |name: &str| NewTenant { name: name.to_owned(), ..NewTenant::default() };
    for _ in 0..2 {
        assert!(matches!(keys.make_tenant(new(DEFAULT_TENANT)), Err(Error::TenantExists(_))));
        assert_eq!(keys.tenants().len(), 1);
        // By this it is in the table.
        keys.edit_tenant(DEFAULT_TENANT, TenantChange::default()).unwrap();
    }
    keys.make_tenant(new("search")).unwrap();
    keys.remove_tenant("search", false).unwrap();
    for (name, was) in [(DEFAULT_TENANT, true), ("search", true), ("sarch", false)] {
        assert_eq!(keys.was_tenant(name).is_ok(), was, "{name}");
    }
}

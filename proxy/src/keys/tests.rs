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

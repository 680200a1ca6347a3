//! Clients' keys: made, listed, revoked and checked.
//!
//! A key is `sk-dunlin-ID-SECRET`: an id to find it by and 256 random bits. Only the SHA-256 of the secret is kept, in
//! SQLite, so a stolen file opens nothing; the key itself is shown once. Checks read a table in memory; [`Keys::refresh`]
//! notices what another process wrote. Revoked is final.

mod store;
mod token;

use arc_swap::ArcSwap;
use dunlin_node::clock;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use store::Store;

/// Keys that one file may hold: they are all in memory.
pub const KEYS: usize = 100_000;
/// Longest name of a key, characters.
pub const NAME_CHARS: usize = 128;

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused.
    #[error("key database {path}: {source}")]
    Database {
        /// The file.
        path: String,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file's mode could not be set.
    #[error("key database {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// No key has this id.
    #[error("no key has the id {0:?}; `dunlin keys list` shows all")]
    Unknown(String),
    /// The name is too long.
    #[error("the name of a key may have at most {NAME_CHARS} characters")]
    Name,
    /// The file is full.
    #[error("there are {KEYS} keys already; no more fit")]
    TooMany,
    /// The system gave no randomness.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

/// What may be shown of a key. The secret is not among it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Names the key in lists and to `revoke`.
    pub id: String,
    /// Whatever its owner called it; may be empty.
    pub name: String,
    /// When it was made, unix seconds.
    pub created: u64,
    /// When it was revoked, unix seconds.
    pub revoked: Option<u64>,
}

/// A key just made. The only time that its text is known.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The whole key, for the client.
    pub key: String,
    /// What will be listed.
    #[serde(flatten)]
    pub about: Key,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A key in force.
    Valid,
    /// A key that was revoked.
    Revoked,
    /// No key of ours.
    Unknown,
}

/// All keys of one proxy. Cheap to clone; clones share one file and one table.
#[derive(Clone)]
pub struct Keys {
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    table: ArcSwap<HashMap<String, Entry>>,
}

/// What a check needs.
struct Entry {
    digest: [u8; 32],
    revoked: bool,
}

impl Keys {
    /// Opens the keys in `path`, made (mode 0600) when it is not there. Blocks on the disk for a moment.
    ///
    /// # Errors
    /// The file can't be opened or is no database of ours.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut store = Store::open(path)?;
        let table = load(&mut store)?;
        Ok(Self { shared: Arc::new(Shared { store: Mutex::new(store), table: ArcSwap::from_pointee(table) }) })
    }

    /// Makes a key. It is valid from now on. Blocks on the disk.
    ///
    /// # Errors
    /// The name is too long, or the database refuses.
    pub fn create(&self, name: &str) -> Result<Created, Error> {
        if name.chars().count() > NAME_CHARS {
            return Err(Error::Name);
        }
        let mut store = self.store();
        if store.count()? >= KEYS {
            return Err(Error::TooMany);
        }
        let token = token::Token::random()?;
        let about = Key { id: token.id.clone(), name: name.to_owned(), created: clock::unix_s(), revoked: None };
        store.insert(&about, &token.digest())?;
        self.reload(&mut store)?;
        Ok(Created { key: token.to_string(), about })
    }

    /// All keys, oldest first, revoked ones included. Blocks on the disk.
    ///
    /// # Errors
    /// The database refuses.
    pub fn list(&self) -> Result<Vec<Key>, Error> {
        Ok(self.store().all()?.into_iter().map(|(key, _)| key).collect())
    }

    /// Ends a key, named by its id or by its whole text. New requests are refused from now on; running ones finish.
    /// Revoking twice changes nothing. Blocks on the disk.
    ///
    /// # Errors
    /// No such key, or the database refuses.
    pub fn revoke(&self, id_or_key: &str) -> Result<Key, Error> {
        let id = token::parse(id_or_key).map_or(id_or_key.trim(), |(id, _)| id);
        let mut store = self.store();
        // The id only: what was given may have been a whole key, mistyped.
        let key = store.revoke(id, clock::unix_s())?.ok_or_else(|| Error::Unknown(id.chars().take(16).collect()))?;
        self.reload(&mut store)?;
        Ok(key)
    }

    /// Looks a key up. Reads memory only, and takes the same time for a wrong secret as for the right one.
    #[must_use]
    pub fn check(&self, key: &str) -> Verdict {
        let Some((id, secret)) = token::parse(key) else { return Verdict::Unknown };
        let table = self.shared.table.load();
        let Some(entry) = table.get(id) else { return Verdict::Unknown };
        if !token::matches(secret, &entry.digest) {
            return Verdict::Unknown;
        }
        if entry.revoked { Verdict::Revoked } else { Verdict::Valid }
    }

    /// The id of a key, which is a part of its text. `None` for what is no key.
    pub(crate) fn id(key: &str) -> Option<&str> {
        token::parse(key).map(|(id, _)| id)
    }

    /// Whether there is any key in force.
    #[must_use]
    pub fn any(&self) -> bool {
        self.shared.table.load().values().any(|entry| !entry.revoked)
    }

    /// Reads the file again if another process changed it. Blocks on the disk for a moment; call it about once a
    /// second. Returns whether anything was read.
    ///
    /// # Errors
    /// The database refuses.
    pub fn refresh(&self) -> Result<bool, Error> {
        let mut store = self.store();
        let changed = store.changed()?;
        if changed {
            self.reload(&mut store)?;
        }
        Ok(changed)
    }

    fn reload(&self, store: &mut Store) -> Result<(), Error> {
        self.shared.table.store(Arc::new(load(store)?));
        Ok(())
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("count", &self.shared.table.load().len()).finish()
    }
}

fn load(store: &mut Store) -> Result<HashMap<String, Entry>, Error> {
    let all = store.all()?;
    Ok(all.into_iter().map(|(key, digest)| (key.id, Entry { digest, revoked: key.revoked.is_some() })).collect())
}

#[cfg(test)]
mod tests;

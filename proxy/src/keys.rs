//! Clients' keys and their tenants: made, changed, revoked, checked.
//!
//! A key is `sk-dunlin-ID-SECRET`: an id to find it by and 256 random bits. Only the SHA-256 of the secret is kept, so a
//! stolen file opens nothing; the key itself is shown once. What is known of a key is a signed statement
//! ([`dunlin_protocol::key`]), in SQLite and in memory on every proxy of the mesh; `sync` brings it there. Checks read
//! memory only. Revoked is final.

mod author;
mod change;
mod error;
mod replica;
mod store;
pub(crate) mod sync;
mod table;
mod tenants;
mod token;

use author::Author;
pub(crate) use change::money;
pub use change::{Key, KeyChange, Limits, NAME_CHARS, NewKey, NewTenant, Price, Tenant, TenantChange};
use dunlin_node::{Handle, clock, mesh::Mesh};
use dunlin_protocol::{
    id::ModelId,
    key::{self as wire, About, KeyKind, KeyStatement, SignedKeyStatement},
};
pub use error::Error;
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard},
};
use store::{LocalKey, Store};
pub use sync::{Keeper, Spread};
use table::Table;
pub(crate) use table::{DEFAULT_TENANT, Grant, State};

/// Keys that one mesh may have: they are all in memory.
pub const KEYS: usize = 100_000;
/// Tenants, and prices.
pub const TENANTS: usize = 10_000;

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
    /// A key that was revoked, or whose tenant was removed.
    Revoked,
    /// A key past its end.
    Expired,
    /// A key of a tenant that is suspended.
    Suspended,
    /// No key of ours, or one of the other kind.
    Unknown,
}

/// A change that was made, to be told to the others.
pub(crate) type Signed = Vec<SignedKeyStatement>;

/// All keys that one proxy knows. Cheap to clone; clones share one file and one table.
#[derive(Clone)]
pub struct Keys {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    store: Mutex<Store>,
    table: RwLock<Table>,
    author: OnceLock<Author>,
}

impl Keys {
    /// Opens the keys in `path`, made (mode 0600) when it is not there. Blocks on the disk for a moment.
    ///
    /// # Errors
    /// The file can't be opened or is no database of ours.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut store = Store::open(path)?;
        let table = RwLock::new(Table::of(store.all()?, store.locals()?));
        Ok(Self {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                store: Mutex::new(store),
                table,
                author: OnceLock::new(),
            }),
        })
    }

    /// Another file in the folder of this one.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.shared.path.with_file_name(name)
    }

    /// From now on statements are made in the name of the node. Where it may, keys that only this file knew are told to
    /// all. Blocks on the disk.
    ///
    /// # Errors
    /// The database refuses.
    pub fn belong_to(&self, handle: Handle) -> Result<(), Error> {
        self.bind(Author::Node(handle))
    }

    /// The same while no node runs: in the name of whoever the state directory says this machine is.
    ///
    /// # Errors
    /// The database refuses.
    pub fn belong_to_state(&self, mesh: Mesh) -> Result<(), Error> {
        self.bind(Author::Offline(Box::new(mesh)))
    }

    fn bind(&self, author: Author) -> Result<(), Error> {
        let author = self.shared.author.get_or_init(|| author);
        if !author.keeps_keys() {
            return Ok(());
        }
        let mut store = self.store();
        let locals = store.locals()?;
        if locals.is_empty() {
            return Ok(());
        }
        let known = |id: &str| self.table().grant(id).is_some_and(|grant| !grant.local);
        let new: Vec<KeyStatement> = {
            let table = self.table();
            let of = |local: &LocalKey| table.next(author.mesh(), About::Key(table::key_of(local.clone())));
            locals.iter().filter(|local| !known(&local.id)).map(of).collect()
        };
        tracing::info!(keys = new.len(), "keys of this proxy alone become keys of all proxies");
        let ids: Vec<String> = locals.into_iter().map(|local| local.id).collect();
        self.say(&mut store, new, &ids).map(drop)
    }

    /// Makes a key with nothing but a name. It is valid here from now on. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn create(&self, name: &str) -> Result<Created, Error> {
        self.make(NewKey { name: name.to_owned(), ..NewKey::default() }).map(|(created, _)| created)
    }

    /// Makes a key. It is valid here from now on, and elsewhere once the second part was told there. Before there is a
    /// mesh, it is this file's alone until there is one. Blocks on the disk.
    ///
    /// # Errors
    /// Something asked for may not be, this machine may not make keys, or the database refuses.
    pub fn make(&self, asked: NewKey) -> Result<(Created, Signed), Error> {
        let mut store = self.store();
        if self.table().keys() >= KEYS {
            return Err(Error::TooMany);
        }
        let token = token::Token::random(asked.kind)?;
        let now = clock::unix_s();
        let plain = asked.is_plain();
        let key = asked.wire(&token, now)?;
        let Some(author) = self.shared.author.get() else {
            if !plain {
                return Err(Error::Invalid("before there is a mesh, a key can have a name only".into()));
            }
            let local = LocalKey { id: key.id, digest: key.digest, name: key.name, created: now, revoked: None };
            store.insert_local(&local)?;
            self.change(|table| table.put_local(local));
            return Ok((Created { key: token.to_string(), about: self.key(&token.id)? }, Vec::new()));
        };
        self.check_tenant(&key.tenant)?;
        let next = self.table().next(author.mesh(), About::Key(key));
        let signed = self.say(&mut store, vec![next], &[])?;
        Ok((Created { key: token.to_string(), about: self.key(&token.id)? }, signed))
    }

    /// All keys, oldest first, revoked ones included.
    ///
    /// # Errors
    /// None now.
    pub fn list(&self) -> Result<Vec<Key>, Error> {
        Ok(self.table().grants().iter().map(|grant| Key::of(grant)).collect())
    }

    /// One key.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn key(&self, id: &str) -> Result<Key, Error> {
        self.table().grant(id).map(|grant| Key::of(grant)).ok_or_else(|| unknown(id))
    }

    /// Changes a key. Blocks on the disk.
    ///
    /// # Errors
    /// No such key, revoked already, not a change that may be, or the database refuses.
    pub fn edit(&self, id: &str, change: KeyChange) -> Result<(Key, Signed), Error> {
        let mut store = self.store();
        let author = self.author()?;
        let (mut key, local) = self.wire_key(id)?;
        if local {
            return Err(Error::OnlyHere(key.id));
        }
        if key.revoked.is_some() {
            return Err(Error::Final(format!("key {}", key.id)));
        }
        change.apply(&mut key, clock::unix_s())?;
        let next = self.table().next(author.mesh(), About::Key(key));
        let signed = self.say(&mut store, vec![next], &[])?;
        Ok((self.key(id)?, signed))
    }

    /// Ends a key, named by its id or by its whole text. New requests are refused from now on; running ones finish.
    /// Revoking twice changes nothing. Blocks on the disk.
    ///
    /// # Errors
    /// No such key, or the database refuses.
    pub fn revoke(&self, id_or_key: &str) -> Result<Key, Error> {
        self.end(id_or_key, false).map(|(key, _)| key)
    }

    /// The same; `at_once`: the answers that are under way end too.
    ///
    /// # Errors
    /// No such key, this machine may not, or the database refuses.
    pub fn end(&self, id_or_key: &str, at_once: bool) -> Result<(Key, Signed), Error> {
        // The id only: what was given may have been a whole key, mistyped.
        let id = token::parse(id_or_key).map_or(id_or_key.trim(), |(id, _)| id);
        let mut store = self.store();
        let (mut key, local) = self.wire_key(id)?;
        let now = clock::unix_s();
        if local {
            store.revoke_local(id, now)?;
            let LocalKey { revoked, .. } = find_local(&mut store, id)?;
            key.revoked = revoked;
            let (id, digest, name, created) = (key.id, key.digest, key.name, key.created);
            self.change(|table| table.put_local(LocalKey { id, digest, name, created, revoked }));
            return Ok((self.key(id_of(id_or_key))?, Vec::new()));
        }
        if key.revoked.is_some() && (key.ends_streams || !at_once) {
            return Ok((self.key(id)?, Vec::new()));
        }
        key.revoked.get_or_insert(now);
        key.ends_streams |= at_once;
        let next = self.table().next(self.author()?.mesh(), About::Key(key));
        let signed = self.say(&mut store, vec![next], &[])?;
        Ok((self.key(id)?, signed))
    }

    fn wire_key(&self, id: &str) -> Result<(wire::Key, bool), Error> {
        let table = self.table();
        let grant = table.grant(id).ok_or_else(|| unknown(id))?;
        Ok((grant.key.clone(), grant.local))
    }

    /// Signs, stores, and takes in: what others are to be told.
    fn say(&self, store: &mut Store, new: Vec<KeyStatement>, of_locals: &[String]) -> Result<Signed, Error> {
        let author = self.author()?;
        let signed: Vec<_> = new.iter().map(|statement| author.sign(statement)).collect::<Result<_, _>>()?;
        self.put(store, new.into_iter().zip(signed.iter()), of_locals)?;
        replica::mark(store)?;
        Ok(signed)
    }

    fn put<'a>(
        &self,
        store: &mut Store,
        new: impl Iterator<Item = (KeyStatement, &'a SignedKeyStatement)>,
        of_locals: &[String],
    ) -> Result<(), Error> {
        let mut rows = Vec::new();
        let mut statements = Vec::new();
        for (statement, signed) in new {
            rows.push((statement.about.name(), signed.encode().map_err(wire::Error::from)?));
            statements.push(statement);
        }
        store.put(&rows, of_locals)?;
        self.change(|table| statements.into_iter().for_each(|statement| _ = table.put(statement)));
        Ok(())
    }

    /// Looks a client's key up. Reads memory only, and takes the same time for a wrong secret as for the right one.
    #[must_use]
    pub fn check(&self, key: &str) -> Verdict {
        match self.admit(key, KeyKind::Client, clock::unix_s()) {
            Ok(_) => Verdict::Valid,
            Err(verdict) => verdict,
        }
    }

    /// What a key of a kind gives at `now`, unix seconds.
    pub(crate) fn admit(&self, key: &str, kind: KeyKind, now: u64) -> Result<Arc<Grant>, Verdict> {
        let Some((id, secret)) = token::parse(key) else { return Err(Verdict::Unknown) };
        let Some(grant) = self.table().grant(id).cloned() else { return Err(Verdict::Unknown) };
        if !token::matches(secret, &grant.key.digest) || grant.key.kind != kind {
            return Err(Verdict::Unknown);
        }
        match grant.state(now) {
            State::Valid => Ok(grant),
            State::Revoked => Err(Verdict::Revoked),
            State::Expired => Err(Verdict::Expired),
            State::Suspended => Err(Verdict::Suspended),
        }
    }

    /// How a key stands now, by its id; `None` when it is not known.
    pub(crate) fn grant(&self, id: &str) -> Option<Arc<Grant>> {
        self.table().grant(id).cloned()
    }

    /// The id of a key, which is a part of its text. `None` for what is no key.
    pub(crate) fn id(key: &str) -> Option<&str> {
        token::parse(key).map(|(id, _)| id)
    }

    /// Whether there is any key in force that opens the endpoint.
    #[must_use]
    pub fn any(&self) -> bool {
        self.table().any(KeyKind::Client, clock::unix_s())
    }

    /// Whether this machine's statements about keys count.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.shared.author.get().is_none_or(Author::keeps_keys)
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
            let read = Table::of(store.all()?, store.locals()?);
            self.change(|table| *table = read);
        }
        Ok(changed)
    }

    fn author(&self) -> Result<&Author, Error> {
        self.shared.author.get().ok_or(Error::NotAllowed)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut self.shared.table.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.shared.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held by whoever changes anything, from reading on. Taken before the table, never after it.
    fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id_of(id_or_key: &str) -> &str {
    token::parse(id_or_key).map_or(id_or_key.trim(), |(id, _)| id)
}

fn unknown(id: &str) -> Error {
    Error::Unknown(short(id))
}

/// Never more of what was typed: it may have been a whole key.
fn short(text: &str) -> String {
    text.chars().take(16).collect()
}

fn find_local(store: &mut Store, id: &str) -> Result<LocalKey, Error> {
    store.locals()?.into_iter().find(|local| local.id == id).ok_or_else(|| unknown(id))
}

/// Whether a model may be asked for, for whoever has no grant to ask.
pub(crate) fn allows(grant: Option<&Arc<Grant>>, model: &ModelId) -> bool {
    grant.is_none_or(|grant| grant.allows(model))
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("count", &self.table().keys()).finish()
    }
}

#[cfg(test)]
mod tests;

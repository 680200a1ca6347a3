//! The SQLite file that keeps the statements about keys.
//!
//! A change is one transaction: after a kill in its middle it has happened or it has not.

use super::Error;
use crate::database::{self, Refused};
use dunlin_protocol::key::{KeyStatement, SignedKeyStatement};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;

/// `key` holds what was made before there was a mesh, or by a version that had no statements: known to this file only.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS key (
        id      TEXT PRIMARY KEY,
        digest  BLOB NOT NULL CHECK (length(digest) = 32),
        name    TEXT NOT NULL,
        created INTEGER NOT NULL,
        revoked INTEGER
    ) STRICT;
    CREATE TABLE IF NOT EXISTS statement (
        name    TEXT PRIMARY KEY,
        signed  BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS note (
        name    TEXT PRIMARY KEY,
        value   TEXT NOT NULL
    ) STRICT;";

/// A key that only this file knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalKey {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) revoked: Option<u64>,
}

/// One open database.
pub(super) struct Store {
    db: Connection,
    path: String,
    /// SQLite's count of other connections' commits, as last seen.
    seen: i64,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let database = |source| Error::Database { path: shown.clone(), source };
        let db = database::open(path, "FULL", SCHEMA).map_err(|refused| match refused {
            Refused::File(source) => Error::File { path: shown.clone(), source },
            Refused::Database(source) => database(source),
        })?;
        let seen = data_version(&db).map_err(database)?;
        Ok(Self { db, path: shown, seen })
    }

    pub(super) fn insert_local(&mut self, key: &LocalKey) -> Result<(), Error> {
        let sql = "INSERT INTO key (id, digest, name, created) VALUES (?1, ?2, ?3, ?4)";
        let done = self.db.execute(sql, params![key.id, key.digest.as_slice(), key.name, integer(key.created)]);
        self.said(done).map(|_| ())
    }

    /// Sets the time of revocation unless one is set. False: no such key.
    pub(super) fn revoke_local(&mut self, id: &str, now: u64) -> Result<bool, Error> {
        let sql = "UPDATE key SET revoked = coalesce(revoked, ?2) WHERE id = ?1";
        let done = self.db.execute(sql, params![id, integer(now)]);
        self.said(done).map(|count| count > 0)
    }

    /// Keys that only this file knows, oldest first.
    pub(super) fn locals(&mut self) -> Result<Vec<LocalKey>, Error> {
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        let read = |db: &Connection| {
            let sql = "SELECT id, digest, name, created, revoked FROM key ORDER BY created, rowid";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| {
                Ok(LocalKey {
                    id: row.get(0)?,
                    digest: row.get(1)?,
                    name: row.get(2)?,
                    created: unsigned(row.get(3)?),
                    revoked: row.get::<_, Option<i64>>(4)?.map(unsigned),
                })
            })?;
            rows.collect()
        };
        let done = read(&self.db);
        self.said(done)
    }

    /// Stores statements, each in place of what was said before about the same thing, all or none. `of_locals`: ids of
    /// keys that only this file knew, which are told to all now.
    pub(super) fn put(&mut self, all: &[(String, Vec<u8>)], of_locals: &[String]) -> Result<(), Error> {
        let write = |db: &mut Connection| {
            let change = db.transaction()?;
            for (name, signed) in all {
                let sql = "INSERT INTO statement (name, signed) VALUES (?1, ?2)
                           ON CONFLICT (name) DO UPDATE SET signed = excluded.signed";
                change.prepare_cached(sql)?.execute(params![name, signed])?;
            }
            for id in of_locals {
                change.execute("DELETE FROM key WHERE id = ?1", [id])?;
            }
            change.commit()
        };
        let done = write(&mut self.db);
        self.said(done)
    }

    /// One statement as it was signed.
    pub(super) fn signed(&mut self, name: &str) -> Result<Option<SignedKeyStatement>, Error> {
        let sql = "SELECT signed FROM statement WHERE name = ?1";
        let read = |db: &Connection| -> rusqlite::Result<Option<Vec<u8>>> {
            db.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()
        };
        let done = read(&self.db);
        Ok(self.said(done)?.and_then(|bytes| SignedKeyStatement::decode(&bytes).ok()))
    }

    /// Everything that was said. What can't be read is left out: others have it too.
    pub(super) fn all(&mut self) -> Result<Vec<KeyStatement>, Error> {
        let read = |db: &Connection| -> rusqlite::Result<Vec<Option<KeyStatement>>> {
            let mut statement = db.prepare_cached("SELECT signed FROM statement")?;
            let rows = statement.query_map([], |row| {
                let bytes: Vec<u8> = row.get(0)?;
                Ok(SignedKeyStatement::decode(&bytes).ok().and_then(|signed| signed.statement.peek().ok()))
            })?;
            rows.collect()
        };
        let done = read(&self.db);
        let rows = self.said(done)?;
        let count = rows.len();
        let all: Vec<_> = rows.into_iter().flatten().collect();
        if all.len() < count {
            tracing::warn!(path = self.path, damaged = count - all.len(), "statements about keys can't be read");
        }
        Ok(all)
    }

    pub(super) fn note(&mut self, name: &str) -> Result<Option<String>, Error> {
        let done = self.db.query_row("SELECT value FROM note WHERE name = ?1", [name], |row| row.get(0)).optional();
        self.said(done)
    }

    pub(super) fn set_note(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let sql =
            "INSERT INTO note (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let done = self.db.execute(sql, [name, value]);
        self.said(done).map(|_| ())
    }

    /// Whether another connection has committed since the last call.
    pub(super) fn changed(&mut self) -> Result<bool, Error> {
        let read = data_version(&self.db);
        let now = self.said(read)?;
        Ok(std::mem::replace(&mut self.seen, now) != now)
    }

    fn said<T>(&self, done: rusqlite::Result<T>) -> Result<T, Error> {
        done.map_err(|source| Error::Database { path: self.path.clone(), source })
    }
}

fn data_version(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "data_version", |row| row.get(0))
}

fn integer(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

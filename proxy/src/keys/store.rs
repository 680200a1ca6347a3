//! The SQLite file that keeps the keys.

use super::{Error, Key};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

/// How long a write waits for another process.
const BUSY: Duration = Duration::from_secs(5);
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS key (
        id      TEXT PRIMARY KEY,
        digest  BLOB NOT NULL CHECK (length(digest) = 32),
        name    TEXT NOT NULL,
        created INTEGER NOT NULL,
        revoked INTEGER
    ) STRICT;";

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
        // Made by hand, so that it is never readable by others, not even for a moment.
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| Error::File { path: shown.clone(), source })?;
        let opened = Connection::open(path).and_then(|db| {
            db.busy_timeout(BUSY)?;
            db.pragma_update(None, "journal_mode", "WAL")?;
            db.pragma_update(None, "synchronous", "FULL")?;
            db.execute_batch(SCHEMA)?;
            let seen = data_version(&db)?;
            Ok((db, seen))
        });
        match opened {
            Ok((db, seen)) => Ok(Self { db, path: shown, seen }),
            Err(source) => Err(Error::Database { path: shown, source }),
        }
    }

    pub(super) fn insert(&mut self, key: &Key, digest: &[u8; 32]) -> Result<(), Error> {
        let sql = "INSERT INTO key (id, digest, name, created) VALUES (?1, ?2, ?3, ?4)";
        let done = self.db.execute(sql, params![key.id, digest.as_slice(), key.name, integer(key.created)]);
        self.said(done).map(|_| ())
    }

    /// Sets the time of revocation unless one is set. `None`: no such key.
    pub(super) fn revoke(&mut self, id: &str, now: u64) -> Result<Option<Key>, Error> {
        let sql = "UPDATE key SET revoked = coalesce(revoked, ?2) WHERE id = ?1
                   RETURNING id, name, created, revoked";
        let done = self.db.query_row(sql, params![id, integer(now)], key).optional();
        self.said(done)
    }

    pub(super) fn count(&mut self) -> Result<usize, Error> {
        let done = self.db.query_row("SELECT count(*) FROM key", [], |row| row.get::<_, i64>(0));
        self.said(done).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// All keys with their digests, oldest first.
    pub(super) fn all(&mut self) -> Result<Vec<(Key, [u8; 32])>, Error> {
        let sql = "SELECT id, name, created, revoked, digest FROM key ORDER BY created, rowid";
        let read = |db: &Connection| {
            let mut statement = db.prepare_cached(sql)?;
            statement.query_map([], |row| Ok((key(row)?, row.get::<_, [u8; 32]>(4)?)))?.collect()
        };
        let done = read(&self.db);
        self.said(done)
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

fn key(row: &Row<'_>) -> rusqlite::Result<Key> {
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(Key {
        id: row.get(0)?,
        name: row.get(1)?,
        created: unsigned(row.get(2)?),
        revoked: row.get::<_, Option<i64>>(3)?.map(unsigned),
    })
}

fn integer(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

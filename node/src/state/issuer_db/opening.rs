//! Making the database, and telling it from any other: one that is empty, or another peer's, would count uses anew.

use super::{Error, IssuerDb};
use dunlin_protocol::id::{MeshId, PeerId};
use rusqlite::{Connection, OpenFlags, params};
use std::{path::Path, sync::Mutex, time::Duration};

/// Another process cannot hold the database (the directory is locked), so waiting is for SQLite's own checkpoints.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// "dunl": marks the file as ours.
const APPLICATION: i32 = 0x64_75_6e_6c;

const SCHEMA: &str = "
    CREATE TABLE invitations (
        key BLOB PRIMARY KEY, roles TEXT NOT NULL, not_after INTEGER NOT NULL, uses INTEGER NOT NULL,
        created_at INTEGER NOT NULL, withdrawn INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE redemptions (
        invitation BLOB NOT NULL REFERENCES invitations(key), peer BLOB NOT NULL, chain BLOB NOT NULL,
        redeemed_at INTEGER NOT NULL, PRIMARY KEY (invitation, peer)) STRICT;
    CREATE TABLE issued (
        peer BLOB NOT NULL, issued_at INTEGER NOT NULL, not_after INTEGER NOT NULL, roles TEXT NOT NULL,
        name TEXT) STRICT;
    CREATE TABLE delegations (
        peer BLOB PRIMARY KEY, delegation BLOB NOT NULL, name TEXT) STRICT;
    CREATE TABLE owner (mesh BLOB NOT NULL, peer BLOB NOT NULL) STRICT;
    CREATE TABLE renewals (peer BLOB PRIMARY KEY, chain BLOB NOT NULL) STRICT;
    CREATE INDEX issued_by_peer ON issued (peer, issued_at);
";

/// Came later than the rest: databases made without it get it when they are opened.
const ELSEWHERE: &str = "CREATE TABLE IF NOT EXISTS elsewhere (
    peer BLOB NOT NULL, issuer BLOB NOT NULL, delegated_at INTEGER NOT NULL, issued_at INTEGER NOT NULL,
    until INTEGER NOT NULL, PRIMARY KEY (peer, issuer)) STRICT";

/// Likewise: capabilities that an invitation gives, which the token itself says nothing of.
const CAPABILITIES: &str = "CREATE TABLE IF NOT EXISTS invitation_capabilities (
    invitation BLOB NOT NULL, capability TEXT NOT NULL, PRIMARY KEY (invitation, capability)) STRICT";

/// Whose database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The mesh that is issued for.
    pub mesh: MeshId,
    /// The peer that issues.
    pub peer: PeerId,
}

impl IssuerDb {
    /// Makes a new database in an empty file. The caller puts it in its place once this returned.
    pub(in crate::state) fn create(path: &Path, owner: &Owner) -> Result<(), Error> {
        let connection = Connection::open(path)?;
        connection.execute_batch(SCHEMA)?;
        connection
            .execute("INSERT INTO owner (mesh, peer) VALUES (?1, ?2)", params![owner.mesh.0, owner.peer.to_bytes()])?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.close().map_err(|(_, error)| Error::Failed(error))
    }

    /// Opens the database at `path`, which must be `owner`'s.
    ///
    /// # Errors
    /// [`Error::Foreign`]: empty, or anything else than this peer's database. Cannot be opened.
    pub fn open(path: &Path, owner: &Owner) -> Result<Self, Error> {
        let connection =
            Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let foreign = |cause: String| Error::Foreign { path: path.to_path_buf(), cause };
        check(&connection, owner).map_err(|error| match error {
            NotOurs::Cause(cause) => foreign(cause),
            NotOurs::Database(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == rusqlite::ErrorCode::NotADatabase =>
            {
                foreign("is not a database".to_owned())
            }
            NotOurs::Database(error) => error.into(),
        })?;
        // FULL: a use that was answered stays counted, even when the power fails.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(ELSEWHERE)?;
        connection.execute_batch(CAPABILITIES)?;
        Ok(Self(Mutex::new(connection)))
    }
}

enum NotOurs {
    Cause(String),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for NotOurs {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

fn check(connection: &Connection, owner: &Owner) -> Result<(), NotOurs> {
    let because = |cause: String| Err(NotOurs::Cause(cause));
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application != APPLICATION {
        let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
        let what = if pages == 0 { "is empty" } else { "is not an issuer's database" };
        return because(what.to_owned());
    }
    let (mesh, peer) = connection.query_row("SELECT mesh, peer FROM owner", [], |row| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Vec<u8>>(1)?))
    })?;
    if mesh != owner.mesh.0 {
        return because("belongs to another mesh".to_owned());
    }
    match PeerId::from_bytes(&peer) {
        Ok(peer) if peer == owner.peer => Ok(()),
        Ok(peer) => because(format!("belongs to peer {peer}")),
        Err(_) => because("belongs to another peer".to_owned()),
    }
}

//! How this crate's SQLite files are opened.

use rusqlite::Connection;
use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

/// How long a write waits for another process.
const BUSY: Duration = Duration::from_secs(5);

/// Why a file could not be opened.
pub(crate) enum Refused {
    /// By the system.
    File(io::Error),
    /// By SQLite.
    Database(rusqlite::Error),
}

/// Opens the database at `path`, which is made where it is missing, with `schema` in it. `synchronous`: SQLite's own word
/// for what outlives a failure of power.
pub(crate) fn open(path: &Path, synchronous: &str, schema: &str) -> Result<Connection, Refused> {
    // Made by hand, so that it is never readable by others, not even for a moment.
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(Refused::File)?;
    let opened = Connection::open(path).and_then(|db| {
        db.busy_timeout(BUSY)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", synchronous)?;
        db.execute_batch(schema)?;
        Ok(db)
    });
    opened.map_err(Refused::Database)
}

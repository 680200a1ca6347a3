//! How this crate's SQLite files are opened.

use rusqlite::{Connection, ErrorCode};
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

/// What to do about a refusal of SQLite, behind its own words; `anew` says what comes of an empty file.
pub(crate) fn advice(source: &rusqlite::Error, anew: &str) -> String {
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "; free some space there".to_owned(),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            format!("; restore it from a backup, or remove it and the files beside it of the same name: {anew}")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "; another program holds it, end that".to_owned(),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "; it must be writable, by the user that this runs as".to_owned()
        }
        _ => String::new(),
    }
}

/// What to do about a refusal of the system.
pub(crate) fn advice_on_file(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space there",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; it must be writable, by the user that this runs as"
        }
        _ => "",
    }
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

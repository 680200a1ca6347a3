//! The SQLite file that keeps usage: rows of all proxies, each as its own one stored it last.

use crate::database::{self, Refused};
use dunlin_protocol::{
    id::PeerId,
    ledger::{Counter, Counts, UsageRow},
    limits,
};
use rusqlite::{Connection, Row, params};
use std::path::Path;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS usage (
        origin TEXT NOT NULL, epoch INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, hour INTEGER NOT NULL,
        rev INTEGER NOT NULL, requests INTEGER NOT NULL, errors INTEGER NOT NULL, prompt INTEGER NOT NULL,
        completion INTEGER NOT NULL, cached INTEGER NOT NULL, estimated INTEGER NOT NULL, millis INTEGER NOT NULL,
        cost INTEGER NOT NULL, PRIMARY KEY (origin, epoch, key, model, hour)) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS usage_changes ON usage (origin, epoch, rev);
    CREATE INDEX IF NOT EXISTS usage_hours ON usage (hour);";
const COUNTS: &str = "requests, errors, prompt, completion, cached, estimated, millis, cost";

/// Why usage could not be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused.
    #[error(
        "usage database {path}: {source}{}",
        database::advice(source, "the other endpoints of the mesh fill it again, as far as they had heard of it")
    )]
    Database {
        /// The file.
        path: String,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file's mode could not be set.
    #[error("usage database {path}: {source}{}", database::advice_on_file(source))]
    File {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Sums over all proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) key: String,
    pub(super) model: String,
    pub(super) hour: u64,
    pub(super) counts: Counts,
}

pub(super) struct Store {
    db: Connection,
    path: String,
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Eight sums from the column `first` on.
fn counts(row: &Row<'_>, first: usize) -> rusqlite::Result<Counts> {
    let at = |n: usize| row.get::<_, i64>(first + n).map(unsigned);
    Ok(Counts {
        requests: at(0)?,
        errors: at(1)?,
        prompt: at(2)?,
        completion: at(3)?,
        cached: at(4)?,
        estimated: at(5)?,
        millis: at(6)?,
        cost_micros: at(7)?,
    })
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        // What a process has written outlives its kill; a failure of power may take the last second.
        match database::open(path, "NORMAL", SCHEMA) {
            Ok(db) => Ok(Self { db, path: shown }),
            Err(Refused::File(source)) => Err(Error::File { path: shown, source }),
            Err(Refused::Database(source)) => Err(Error::Database { path: shown, source }),
        }
    }

    /// Stores rows, each merged by maximum with what there is. Returns by how much each key has grown in which hour.
    pub(super) fn merge(&mut self, rows: &[UsageRow]) -> Result<Vec<Sum>, Error> {
        let write = |db: &mut Connection| {
            let change = db.transaction()?;
            let mut grown = Vec::new();
            for row in rows {
                let UsageRow { by, key, model, hour, rev, counts: new } = row;
                let (origin, epoch, hour_) = (by.origin.to_string(), integer(by.epoch), integer(*hour));
                let known = {
                    let sql = format!(
                        "SELECT rev, {COUNTS} FROM usage WHERE origin = ?1 AND epoch = ?2 AND key = ?3 AND model = ?4 AND hour = ?5"
                    );
                    let mut statement = change.prepare_cached(&sql)?;
                    let mut found = statement.query(params![origin, epoch, key, model, hour_])?;
                    match found.next()? {
                        Some(row) => (unsigned(row.get(0)?), counts(row, 1)?),
                        None => (0, Counts::default()),
                    }
                };
                let merged = known.1.max(*new);
                let sql = format!(
                    "INSERT OR REPLACE INTO usage (origin, epoch, key, model, hour, rev, {COUNTS})
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
                );
                change.prepare_cached(&sql)?.execute(params![
                    origin,
                    epoch,
                    key,
                    model,
                    hour_,
                    integer(known.0.max(*rev)),
                    integer(merged.requests),
                    integer(merged.errors),
                    integer(merged.prompt),
                    integer(merged.completion),
                    integer(merged.cached),
                    integer(merged.estimated),
                    integer(merged.millis),
                    integer(merged.cost_micros),
                ])?;
                let delta = |of: fn(&Counts) -> u64| of(&merged).saturating_sub(of(&known.1));
                let counts = Counts {
                    prompt: delta(|counts| counts.prompt),
                    completion: delta(|counts| counts.completion),
                    cost_micros: delta(|counts| counts.cost_micros),
                    ..Counts::default()
                };
                grown.push(Sum { key: key.clone(), model: model.clone(), hour: *hour, counts });
            }
            change.commit()?;
            Ok::<_, rusqlite::Error>(grown)
        };
        let done = write(&mut self.db);
        self.said(done)
    }

    /// The last change known of each process.
    pub(super) fn seen(&mut self) -> Result<Vec<(Counter, u64)>, Error> {
        let sql = "SELECT origin, epoch, max(rev) FROM usage GROUP BY origin, epoch LIMIT ?1";
        let read = |db: &Connection| -> rusqlite::Result<Vec<(String, i64, i64)>> {
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([integer(limits::USAGE_COUNTERS as u64)], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
            rows.collect()
        };
        let done = read(&self.db);
        let counter = |(origin, epoch, rev): (String, i64, i64)| {
            Some((Counter { origin: origin.parse::<PeerId>().ok()?, epoch: unsigned(epoch) }, unsigned(rev)))
        };
        Ok(self.said(done)?.into_iter().filter_map(counter).collect())
    }

    /// Rows of one process that changed after `rev`, in that order.
    pub(super) fn after(&mut self, by: Counter, rev: u64, most: usize) -> Result<Vec<UsageRow>, Error> {
        let sql = format!(
            "SELECT key, model, hour, rev, {COUNTS} FROM usage WHERE origin = ?1 AND epoch = ?2 AND rev > ?3
             ORDER BY rev LIMIT ?4"
        );
        let read = |db: &Connection| -> rusqlite::Result<Vec<UsageRow>> {
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map(
                params![by.origin.to_string(), integer(by.epoch), integer(rev), integer(most as u64)],
                |row| {
                    Ok(UsageRow {
                        by,
                        key: row.get(0)?,
                        model: row.get(1)?,
                        hour: unsigned(row.get(2)?),
                        rev: unsigned(row.get(3)?),
                        counts: counts(row, 4)?,
                    })
                },
            )?;
            rows.collect()
        };
        let done = read(&self.db);
        self.said(done)
    }

    /// Sums by key, model and hour from `from` to before `to`, both in hours since 1970.
    pub(super) fn sums(&mut self, from: u64, to: u64) -> Result<Vec<Sum>, Error> {
        // `sum` fails where a sum overflows; `total` is exact up to 2^53, and no count that is true comes near.
        let sums: Vec<String> = COUNTS.split(", ").map(|name| format!("CAST(total({name}) AS INTEGER)")).collect();
        let sql = format!(
            "SELECT key, model, hour, {} FROM usage WHERE hour >= ?1 AND hour < ?2
             GROUP BY hour, key, model ORDER BY hour, key, model",
            sums.join(", ")
        );
        let read = |db: &Connection| -> rusqlite::Result<Vec<Sum>> {
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map([integer(from), integer(to)], |row| {
                let (key, model, hour) = (row.get(0)?, row.get(1)?, unsigned(row.get(2)?));
                Ok(Sum { key, model, hour, counts: counts(row, 3)? })
            })?;
            rows.collect()
        };
        let done = read(&self.db);
        self.said(done)
    }

    /// Forgets what is older than `hour`.
    pub(super) fn forget_before(&mut self, hour: u64) -> Result<usize, Error> {
        let done = self.db.execute("DELETE FROM usage WHERE hour < ?1", [integer(hour)]);
        self.said(done)
    }

    fn said<T>(&self, done: rusqlite::Result<T>) -> Result<T, Error> {
        done.map_err(|source| Error::Database { path: self.path.clone(), source })
    }
}

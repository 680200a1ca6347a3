//! What an issuer remembers: invitations, who used them, and the newest certificate of each peer. On disk before it is
//! answered.
//!
//! Seeds of invitations are not here: a copy of the database lets nobody in.

mod delegations;
mod elsewhere;
mod opening;

pub use delegations::DelegationRow;
use dunlin_protocol::{certificate, id::PeerId, limits::CERTIFICATE_WORDS};
pub use elsewhere::Elsewhere;
pub use opening::Owner;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Certificates that ended so long ago are forgotten, seconds.
const KEPT_S: u64 = 90 * 24 * 60 * 60;
/// Invitations and certificates in one listing.
/// Bytes of an invitation's key that name it to people.
const ID_BYTES: usize = 6;
const LISTING: usize = 10_000;

/// Why the database does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It failed.
    #[error("the issuer's database (issuer.db): {0}{remedy}", remedy = remedy(.0))]
    Failed(#[from] rusqlite::Error),
    /// Not the one of this peer: with it, uses of invitations would be forgotten.
    #[error(
        "{} {cause}; restore it from a backup, or remove it to begin a new one (invitations made so far are refused then)",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        cause: String,
    },
}

/// What to do about it, where that is known.
fn remedy(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "; free some space there",
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "; make it and its directory writable for this user"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "; restore it from a backup, or remove it to begin a new one (invitations made so far are refused then)"
        }
        _ => "",
    }
}

/// An invitation as remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvitationRow {
    /// Public half of its seed.
    pub key: [u8; 32],
    /// Roles, comma-separated.
    pub roles: String,
    /// Unix seconds.
    pub not_after: u64,
    /// How many may use it.
    pub uses: u32,
    /// How many have.
    pub used: u32,
    /// Unix seconds.
    pub created_at: u64,
    /// Withdrawn by an operator.
    pub withdrawn: bool,
}

impl InvitationRow {
    /// A name for people: the beginning of its key, hexadecimal.
    #[must_use]
    pub fn id(&self) -> String {
        self.key.iter().take(ID_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A certificate as remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedRow {
    /// Its subject.
    pub peer: PeerId,
    /// Unix seconds.
    pub issued_at: u64,
    /// Unix seconds.
    pub not_after: u64,
    /// Roles, comma-separated.
    pub roles: String,
    /// Display name.
    pub name: Option<String>,
}

/// Why an invitation gives nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Never heard of.
    Unknown,
    /// Withdrawn.
    Withdrawn,
    /// Used as often as it may be.
    UsedUp,
}

/// The open database. Blocks; call through `spawn_blocking`.
#[derive(Debug)]
pub struct IssuerDb(Mutex<Connection>);

impl IssuerDb {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a new invitation, and forgets those that ended before it was made.
    ///
    /// # Errors
    /// The database fails.
    pub fn add_invitation(&self, row: &InvitationRow, capabilities: &[String]) -> Result<(), Error> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // They are refused for their age before anybody looks here.
        let ended = "SELECT key FROM invitations WHERE not_after < ?1";
        let now = seconds(row.created_at);
        transaction.execute(&format!("DELETE FROM redemptions WHERE invitation IN ({ended})"), [now])?;
        transaction.execute(&format!("DELETE FROM invitation_capabilities WHERE invitation IN ({ended})"), [now])?;
        transaction.execute("DELETE FROM invitations WHERE not_after < ?1", [now])?;
        transaction.execute(
            "INSERT INTO invitations (key, roles, not_after, uses, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![row.key, row.roles, seconds(row.not_after), row.uses, now],
        )?;
        for capability in capabilities {
            transaction.execute(
                "INSERT OR IGNORE INTO invitation_capabilities (invitation, capability) VALUES (?1, ?2)",
                params![row.key, capability],
            )?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// The capabilities that an invitation gives, in order.
    ///
    /// # Errors
    /// The database fails.
    pub fn capabilities_of(&self, key: &[u8; 32]) -> Result<Vec<String>, Error> {
        let connection = self.connection();
        let mut query = connection.prepare(
            "SELECT capability FROM invitation_capabilities WHERE invitation = ?1 ORDER BY capability LIMIT ?2",
        )?;
        let rows = query.query_map(params![key, CERTIFICATE_WORDS as i64], |row| row.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The invitations, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub fn invitations(&self) -> Result<Vec<InvitationRow>, Error> {
        let connection = self.connection();
        let mut query = connection.prepare(
            "SELECT key, roles, not_after, uses, created_at, withdrawn,
                (SELECT count(*) FROM redemptions WHERE invitation = key)
             FROM invitations ORDER BY created_at DESC, rowid DESC LIMIT ?1",
        )?;
        let rows = query.query_map([LISTING as i64], |row| {
            Ok(InvitationRow {
                key: row.get(0)?,
                roles: row.get(1)?,
                not_after: unix(row.get(2)?),
                uses: row.get(3)?,
                created_at: unix(row.get(4)?),
                withdrawn: row.get(5)?,
                used: row.get(6)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Counts one use of an invitation by `peer` and remembers the chain that `issue` makes. A peer that used the
    /// invitation before gets what it got then, if `still_good` says so, and is not counted again. `elsewhere`: the peer has
    /// another issuer's certificate.
    ///
    /// # Errors
    /// Outer: the database fails, or `issue` does, and nothing is counted. Inner: the invitation gives nothing.
    pub fn redeem<E: From<Error>>(
        &self,
        key: &[u8; 32],
        peer: &PeerId,
        now: u64,
        elsewhere: Option<&Elsewhere>,
        still_good: impl FnOnce(&[u8]) -> Result<bool, E>,
        issue: impl FnOnce() -> Result<Issued, E>,
    ) -> Result<Result<Vec<u8>, Unusable>, E> {
        let mut connection = self.connection();
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::Failed)?;
        let invitation = transaction
            .query_row("SELECT uses, withdrawn FROM invitations WHERE key = ?1", [key], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
            })
            .optional()
            .map_err(Error::Failed)?;
        let Some((uses, withdrawn)) = invitation else { return Ok(Err(Unusable::Unknown)) };
        if withdrawn {
            return Ok(Err(Unusable::Withdrawn));
        }
        let before = transaction
            .query_row(
                "SELECT chain FROM redemptions WHERE invitation = ?1 AND peer = ?2",
                params![key, peer.to_bytes()],
                |row| row.get::<_, Vec<u8>>(0),
            )
            .optional()
            .map_err(Error::Failed)?;
        if let Some(chain) = &before {
            if still_good(chain)? {
                return Ok(Ok(chain.clone()));
            }
        } else {
            let used: i64 = transaction
                .query_row("SELECT count(*) FROM redemptions WHERE invitation = ?1", [key], |row| row.get(0))
                .map_err(Error::Failed)?;
            if used >= uses {
                return Ok(Err(Unusable::UsedUp));
            }
        }
        let issued = issue()?;
        transaction
            .execute(
                "INSERT OR REPLACE INTO redemptions (invitation, peer, chain, redeemed_at) VALUES (?1, ?2, ?3, ?4)",
                params![key, peer.to_bytes(), issued.chain, seconds(now)],
            )
            .map_err(Error::Failed)?;
        if let Some(elsewhere) = elsewhere {
            elsewhere::insert(&transaction, peer, elsewhere, now)?;
        }
        insert_issued(&transaction, &issued.remembered, now)?;
        transaction.commit().map_err(Error::Failed)?;
        Ok(Ok(issued.chain))
    }

    /// Remembers a certificate that no invitation led to, at `now` (unix seconds): the first one of a mesh, for example.
    ///
    /// # Errors
    /// The database fails.
    pub fn add_issued(&self, issued: &Remembered, now: u64) -> Result<(), Error> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        insert_issued(&transaction, issued, now)?;
        Ok(transaction.commit()?)
    }

    /// The renewal that `peer` got last, if `still_good` says so of it; or else the one that `issue` makes, remembered at
    /// `now` (unix seconds). `elsewhere`: the peer has another issuer's certificate.
    ///
    /// # Errors
    /// The database fails, or `issue` does, and nothing is remembered.
    pub fn renew<E: From<Error>>(
        &self,
        peer: &PeerId,
        now: u64,
        elsewhere: Option<&Elsewhere>,
        still_good: impl FnOnce(&[u8]) -> Result<bool, E>,
        issue: impl FnOnce() -> Result<Issued, E>,
    ) -> Result<Vec<u8>, E> {
        let mut connection = self.connection();
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(Error::Failed)?;
        let last = transaction
            .query_row("SELECT chain FROM renewals WHERE peer = ?1", [peer.to_bytes()], |row| row.get::<_, Vec<u8>>(0))
            .optional()
            .map_err(Error::Failed)?;
        if let Some(chain) = last
            && still_good(&chain)?
        {
            return Ok(chain);
        }
        let issued = issue()?;
        transaction
            .execute(
                "INSERT OR REPLACE INTO renewals (peer, chain) VALUES (?1, ?2)",
                params![peer.to_bytes(), issued.chain],
            )
            .map_err(Error::Failed)?;
        if let Some(elsewhere) = elsewhere {
            elsewhere::insert(&transaction, peer, elsewhere, now)?;
        }
        insert_issued(&transaction, &issued.remembered, now)?;
        transaction.commit().map_err(Error::Failed)?;
        Ok(issued.chain)
    }

    /// When the newest certificate of `peer` was issued here, unix seconds.
    ///
    /// # Errors
    /// The database fails.
    pub fn last_issued(&self, peer: &PeerId) -> Result<Option<u64>, Error> {
        let newest: Option<i64> = self.connection().query_row(
            "SELECT max(issued_at) FROM issued WHERE peer = ?1",
            [peer.to_bytes()],
            |row| row.get(0),
        )?;
        Ok(newest.map(unix))
    }

    /// Until when a certificate that was issued here counts for `peer`, leeway included, unix seconds.
    ///
    /// # Errors
    /// The database fails.
    pub fn counts_until(&self, peer: &PeerId) -> Result<Option<u64>, Error> {
        let end: Option<i64> = self.connection().query_row(
            "SELECT max(not_after) FROM issued WHERE peer = ?1",
            [peer.to_bytes()],
            |row| row.get(0),
        )?;
        Ok(end.map(|end| unix(end).saturating_add(certificate::LEEWAY_S)))
    }

    /// Ends an invitation early. Returns whether it was there.
    ///
    /// # Errors
    /// The database fails.
    pub fn withdraw(&self, key: &[u8; 32]) -> Result<bool, Error> {
        Ok(self.connection().execute("UPDATE invitations SET withdrawn = 1 WHERE key = ?1", [key])? > 0)
    }

    /// The newest certificate of each peer, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub fn issued(&self) -> Result<Vec<IssuedRow>, Error> {
        let connection = self.connection();
        let mut query = connection.prepare(
            "SELECT peer, max(issued_at), not_after, roles, name FROM issued GROUP BY peer ORDER BY 2 DESC LIMIT ?1",
        )?;
        let rows = query.query_map([LISTING as i64], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get(3)?, row.get(4)?))
        })?;
        let mut issued = Vec::new();
        for row in rows {
            let (peer, issued_at, not_after, roles, name) = row?;
            // Rows of peer ids that a later version cannot read are no reason to list nothing.
            let Ok(peer) = PeerId::from_bytes(&peer) else { continue };
            issued.push(IssuedRow { peer, issued_at: unix(issued_at), not_after: unix(not_after), roles, name });
        }
        Ok(issued)
    }
}

/// A certificate made inside a transaction.
#[derive(Debug)]
pub struct Issued {
    /// The encoded chain.
    pub chain: Vec<u8>,
    /// What is remembered of it.
    pub remembered: Remembered,
}

/// What is remembered of a certificate that is issued here.
#[derive(Debug)]
pub struct Remembered {
    /// The certificate.
    pub row: IssuedRow,
    /// The same, unless it is of this peer's own branch: this machine may come to issue as a delegate only, whose
    /// revocation does not reach it.
    pub elsewhere: Option<Elsewhere>,
}

/// Remembers a certificate in place of those before it, and forgets what ended long ago.
fn insert_issued(connection: &Connection, issued: &Remembered, now: u64) -> Result<(), Error> {
    let Remembered { row, elsewhere } = issued;
    if let Some(elsewhere) = elsewhere {
        elsewhere::insert(connection, &row.peer, elsewhere, now)?;
    }
    connection.execute(
        "DELETE FROM issued WHERE peer = ?1 AND issued_at <= ?2",
        params![row.peer.to_bytes(), seconds(row.issued_at)],
    )?;
    let forgotten = seconds(now.saturating_sub(KEPT_S));
    if connection.execute("DELETE FROM issued WHERE not_after < ?1", [forgotten])? > 0 {
        connection.execute("DELETE FROM renewals WHERE peer NOT IN (SELECT peer FROM issued)", [])?;
    }
    connection.execute(
        "INSERT INTO issued (peer, issued_at, not_after, roles, name) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![row.peer.to_bytes(), seconds(row.issued_at), seconds(row.not_after), row.roles, row.name],
    )?;
    Ok(())
}

/// SQLite's integers are signed.
fn seconds(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unix(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

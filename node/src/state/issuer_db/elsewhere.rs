//! Certificates that a delegate's revocation does not reach: those of other issuers that members had when they came into
//! its branch, and those that this machine itself gave with the mesh key. With one that still counts, a member that the
//! delegate revokes would come back.

use super::{Error, IssuerDb, seconds, unix};
use dunlin_protocol::{
    certificate::{Issuer, LEEWAY_S, Membership},
    id::PeerId,
};
use rusqlite::{Connection, params};

/// Of one member; of each issuer the one that counts longest is remembered.
const LISTING: usize = 100;

/// Another issuer's certificate of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere {
    /// In whose name it is.
    pub issuer: Issuer,
    /// Unix seconds.
    pub issued_at: u64,
    /// Until when it counts, leeway included, unix seconds.
    pub until: u64,
}

impl Elsewhere {
    /// What a membership was before it changed hands.
    #[must_use]
    pub fn of(membership: &Membership) -> Self {
        let Membership { issuer, issued_at, not_after, .. } = *membership;
        Self { issuer, issued_at, until: not_after.saturating_add(LEEWAY_S) }
    }
}

impl IssuerDb {
    /// Certificates of other issuers that `peer` had, also those that count no more.
    ///
    /// # Errors
    /// The database fails.
    pub fn elsewhere(&self, peer: &PeerId) -> Result<Vec<Elsewhere>, Error> {
        let connection = self.connection();
        let mut query = connection.prepare(
            "SELECT issuer, delegated_at, issued_at, until FROM elsewhere WHERE peer = ?1 ORDER BY until DESC LIMIT ?2",
        )?;
        let rows = query.query_map(params![peer.to_bytes(), LISTING as i64], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
        let mut elsewhere = Vec::new();
        for row in rows {
            let (issuer, delegated_at, issued_at, until) = row?;
            let issuer = match PeerId::from_bytes(&issuer) {
                Ok(peer) => Issuer::Delegate { peer, delegated_at: unix(delegated_at) },
                Err(_) => Issuer::Mesh,
            };
            elsewhere.push(Elsewhere { issuer, issued_at: unix(issued_at), until: unix(until) });
        }
        Ok(elsewhere)
    }
}

/// Remembers one at `now` (unix seconds), and forgets those that count no more.
pub(super) fn insert(connection: &Connection, peer: &PeerId, other: &Elsewhere, now: u64) -> Result<(), Error> {
    connection.execute("DELETE FROM elsewhere WHERE until < ?1", [seconds(now)])?;
    let (issuer, delegated_at) = match other.issuer {
        Issuer::Mesh => (Vec::new(), 0),
        Issuer::Delegate { peer, delegated_at } => (peer.to_bytes(), delegated_at),
    };
    connection.execute(
        "INSERT INTO elsewhere (peer, issuer, delegated_at, issued_at, until) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (peer, issuer) DO UPDATE SET delegated_at = excluded.delegated_at, issued_at = excluded.issued_at,
             until = excluded.until WHERE excluded.until >= until",
        params![peer.to_bytes(), issuer, seconds(delegated_at), seconds(other.issued_at), seconds(other.until)],
    )?;
    Ok(())
}

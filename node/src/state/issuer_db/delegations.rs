//! Who was let issue.

use super::{Error, IssuerDb};
use dunlin_protocol::{codec, delegation::Delegation, limits, revocation::KEPT_AFTER_DELEGATION_S};
use rusqlite::params;

/// Delegations in one listing.
const LISTING: usize = 1000;

/// A delegation as remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegationRow {
    /// What it says.
    pub terms: Delegation,
    /// The delegate's display name.
    pub name: Option<String>,
}

impl IssuerDb {
    /// Remembers a delegation in place of an earlier one of the same peer, and forgets those that ended so long before `now`
    /// (unix seconds) that nothing under them counts any more.
    ///
    /// # Errors
    /// The database fails.
    pub fn add_delegation(&self, row: &DelegationRow, now: u64) -> Result<(), Error> {
        self.forget_delegations(now)?;
        // It was signed within this limit.
        let terms = codec::encode(&row.terms, limits::DELEGATION_BYTES).unwrap_or_default();
        self.connection().execute(
            "INSERT OR REPLACE INTO delegations (peer, delegation, name) VALUES (?1, ?2, ?3)",
            params![row.terms.issuer.to_bytes(), terms, row.name],
        )?;
        Ok(())
    }

    fn forget_delegations(&self, now: u64) -> Result<(), Error> {
        let ended = |row: &DelegationRow| now > row.terms.not_after.saturating_add(KEPT_AFTER_DELEGATION_S);
        for row in self.delegations()?.into_iter().filter(ended) {
            let peer = row.terms.issuer.to_bytes();
            self.connection().execute("DELETE FROM delegations WHERE peer = ?1", [peer])?;
        }
        Ok(())
    }

    /// The newest delegation of each peer, also those that have ended lately.
    ///
    /// # Errors
    /// The database fails.
    pub fn delegations(&self) -> Result<Vec<DelegationRow>, Error> {
        let connection = self.connection();
        let mut query = connection.prepare("SELECT delegation, name FROM delegations ORDER BY peer LIMIT ?1")?;
        let rows = query.query_map([LISTING as i64], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?)))?;
        let mut delegations = Vec::new();
        for row in rows {
            let (terms, name) = row?;
            // Rows that a later version cannot read are no reason to list nothing.
            let Ok(terms) = codec::decode(&terms, limits::DELEGATION_BYTES) else { continue };
            delegations.push(DelegationRow { terms, name });
        }
        Ok(delegations)
    }
}

//! Revoking members.

use super::{Error, Issuer};
use dunlin_protocol::{
    certificate::{self, Membership},
    id::PeerId,
    revocation::{Revocation, RevocationList, SignedRevocation, Target},
};

impl Issuer {
    /// Ends every certificate of `peer` issued up to now; where a delegate says so, of those that it issued. `known` is the
    /// newest moment of issue that this process has seen in a certificate of the peer, unix seconds (0 if none): another
    /// issuer's clock may be ahead.
    ///
    /// # Errors
    /// The database fails.
    pub fn revoke(&self, peer: PeerId, known: u64, now: u64) -> Result<SignedRevocation, Error> {
        let newest = self.0.db.last_issued(&peer)?.unwrap_or(0).max(known).max(now);
        let target = Target::Member(peer);
        self.0.signer.revoke(&Revocation { mesh: self.0.mesh, target, before: newest.saturating_add(1) })
    }

    /// Whether revoking `peer` here would end its membership, of which `known` was seen last.
    ///
    /// # Errors
    /// [`Error::NotInBranch`]; [`Error::AdmittedByMeshKey`]; this peer may not issue any more; the database fails.
    pub fn may_revoke(
        &self,
        peer: PeerId,
        known: Option<&Membership>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<(), Error> {
        let Some(branch) = self.0.signer.branch() else { return Ok(()) };
        branch.check(revocations, now)?;
        let own = match known.map(|membership| membership.issuer) {
            Some(certificate::Issuer::Delegate { peer, .. }) => peer == self.0.peer,
            Some(certificate::Issuer::Mesh) => false,
            None => self.0.db.last_issued(&peer)?.is_some(),
        };
        if !own {
            return Err(Error::NotInBranch(peer));
        }
        // The member would come back with that one.
        match self.0.db.taken_until(&peer)? {
            Some(until) if until >= now => Err(Error::AdmittedByMeshKey { peer, until }),
            _ => Ok(()),
        }
    }
}

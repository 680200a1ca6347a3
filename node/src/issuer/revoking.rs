//! Revoking members.

use super::{Error, Issuer};
use crate::state::issuer_db::Elsewhere;
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

    /// Whether revoking `peer` here ends its membership, of which `known` was seen last, as far as it was given here.
    ///
    /// A delegate revokes its own branch. A member that came into it with another issuer's certificate would come back
    /// with that, so it must have ended first; what this machine gave with the mesh key, which is gone, is such a one. Who
    /// left the branch for another issuer's may be revoked in both.
    ///
    /// # Errors
    /// [`Error::NotInBranch`]; [`Error::AdmittedByMeshKey`]; [`Error::AdmittedByAnother`]; this peer may not issue any more;
    /// the database fails.
    pub fn may_revoke(
        &self,
        peer: PeerId,
        known: Option<&Membership>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<(), Error> {
        let Some(branch) = self.0.signer.branch() else { return Ok(()) };
        branch.check(revocations, now)?;
        let other = known.filter(|membership| !self.admitted(membership));
        let admitted = match (known, other) {
            (Some(_), None) => true,
            (None, _) => self.0.db.last_issued(&peer)?.is_some(),
            (_, Some(_)) => self.0.db.counts_until(&peer)?.is_some_and(|until| until >= now),
        };
        if !admitted {
            return Err(Error::NotInBranch(peer));
        }
        let issued_at = self.0.db.last_issued(&peer)?.unwrap_or(0);
        let seen = other.map(Elsewhere::of).filter(|other| other.issued_at < issued_at);
        let remembered = self.0.db.elsewhere(&peer)?;
        let counts =
            |old: &Elsewhere| old.until >= now && !revocations.revokes_certificate(&peer, &old.issuer, old.issued_at);
        let Some(Elsewhere { issuer, until, .. }) = remembered.into_iter().chain(seen).find(counts) else {
            return Ok(());
        };
        Err(match issuer {
            certificate::Issuer::Mesh => Error::AdmittedByMeshKey { peer, until },
            certificate::Issuer::Delegate { peer: by, .. } => {
                Error::AdmittedByAnother { peer, by: Box::new(by), until }
            }
        })
    }

    /// Whether a membership is of this delegate's branch.
    fn admitted(&self, membership: &Membership) -> bool {
        self.is_own_branch(&membership.issuer)
    }

    /// Whether it names this peer as the delegate.
    pub(super) fn is_own_branch(&self, issuer: &certificate::Issuer) -> bool {
        matches!(issuer, certificate::Issuer::Delegate { peer, .. } if *peer == self.0.peer)
    }

    /// What is to be remembered of a member that comes into this delegate's branch, `known` as it was before.
    pub(super) fn elsewhere(&self, known: &Membership, revocations: &RevocationList, now: u64) -> Option<Elsewhere> {
        let counts = known.valid_at(now) && !revocations.revokes(known);
        (self.terms().is_some() && counts && !self.admitted(known)).then(|| Elsewhere::of(known))
    }
}

//! Certificates for pods, which are on record elsewhere.

use super::{Error, Issuer, signer::Grant};
use crate::pods::{self, Standing};
use dunlin_protocol::{certificate::Chain, hello::Refusal, id::PeerId, revocation::RevocationList};

impl Issuer {
    /// A certificate for the peer of a pod, at `now` (unix seconds), of at most [`pods::CERTIFICATE_LIFE`].
    ///
    /// # Errors
    /// [`Error::Refused`]: the peer was revoked, as it is with its pod; it may not be given that here; this peer may not issue
    /// any more; or the database fails.
    pub fn admit_pod(
        &self,
        peer: PeerId,
        standing: Standing,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        self.check(revocations, now)?;
        let delegate = self.terms().map(|terms| &terms.issuer);
        if revocations.revoked_before(&peer, delegate) > 0 {
            return Err(Error::Refused(Refusal::Revoked));
        }
        let Standing { roles, models, name } = standing;
        let grant =
            Grant { subject: peer, roles, models, capabilities: Vec::new(), name, life: pods::CERTIFICATE_LIFE };
        self.issue(grant, revocations, now).map_err(|error| match error {
            Error::Delegation(_) => Error::Refused(Refusal::NotAllowed),
            other => other,
        })
    }
}

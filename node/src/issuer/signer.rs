//! The key that an issuer signs with, and the bounds within which it may.

use super::Error;
use dunlin_protocol::{
    certificate::{self, Certificate, Chain},
    delegation::{self, Delegation},
    id::{MeshId, Name, PeerId, Roles},
    pattern::Models,
    revocation::{Revocation, RevocationList, SignedRevocation},
    signed::{self, Signed, Statement},
};
use libp2p::identity::{Keypair, PublicKey};
use std::time::Duration;

/// Contents of a certificate that the issuer does not decide.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) subject: PeerId,
    pub(super) roles: Roles,
    pub(super) models: Models,
    pub(super) capabilities: Vec<String>,
    pub(super) name: Option<Name>,
    /// How long it is to count, at most.
    pub(super) life: Duration,
}

/// A delegation with what it says.
#[derive(Debug, Clone)]
pub(super) struct Branch {
    pub(super) signed: Signed<Delegation>,
    pub(super) terms: Delegation,
}

impl Branch {
    pub(super) fn verified(signed: Signed<Delegation>, mesh: &MeshId) -> Result<Self, delegation::Error> {
        let terms = delegation::verify(&signed, mesh)?;
        Ok(Self { signed, terms })
    }

    /// In whose name certificates under it are.
    pub(super) fn issuer(&self) -> certificate::Issuer {
        certificate::Issuer::Delegate { peer: self.terms.issuer, delegated_at: self.terms.issued_at }
    }

    /// Whether certificates are still issued under it at `now`, unix seconds.
    pub(super) fn check(&self, revocations: &RevocationList, now: u64) -> Result<(), Error> {
        if revocations.ends_delegation(&self.terms.issuer, self.terms.issued_at) {
            return Err(Error::DelegationRevoked);
        }
        if now >= self.terms.not_after {
            return Err(Error::DelegationEnded);
        }
        Ok(())
    }
}

/// Who signs.
pub(super) enum Signer {
    /// The mesh key.
    MeshKey(Keypair),
    /// A member's own key.
    Delegate { identity: Keypair, branch: Box<Branch> },
}

impl Signer {
    fn key(&self) -> &Keypair {
        match self {
            Self::MeshKey(key) => key,
            Self::Delegate { identity, .. } => identity,
        }
    }

    pub(super) fn public(&self) -> PublicKey {
        self.key().public()
    }

    /// The bounds of everything that is signed here; the mesh key has none.
    pub(super) fn branch(&self) -> Option<&Branch> {
        match self {
            Self::MeshKey(_) => None,
            Self::Delegate { branch, .. } => Some(branch),
        }
    }

    /// Signs anything but a certificate or a revocation.
    pub(super) fn sign<T: Statement>(&self, statement: &T) -> Result<Signed<T>, signed::Error> {
        Signed::sign(statement, self.key())
    }

    /// A certificate of `mesh` for a grant, in the name of `branch`, issued at `issued_at` and as long-lived as may be from
    /// `now` on, both in unix seconds.
    ///
    /// # Errors
    /// The grant is more than the branch allows, or too large.
    pub(super) fn certify(
        &self,
        mesh: MeshId,
        grant: Grant,
        branch: Option<&Branch>,
        issued_at: u64,
        now: u64,
    ) -> Result<(Certificate, Chain), Error> {
        let mut not_after = now.saturating_add(grant.life.as_secs());
        if let Some(Branch { terms, .. }) = branch {
            not_after = not_after.min(now.saturating_add(terms.life_s)).min(terms.not_after);
        }
        let certificate = Certificate {
            mesh,
            subject: grant.subject,
            issuer: branch.map_or_else(|| self.public().to_peer_id(), |branch| branch.terms.issuer),
            roles: grant.roles,
            models: grant.models,
            tenants: Vec::new(),
            capabilities: grant.capabilities,
            name: grant.name,
            issued_at,
            not_after,
        };
        let chain = match (self, branch) {
            (Self::MeshKey(key), None) => Chain::by_mesh_key(&certificate, key)?,
            (Self::MeshKey(key), Some(branch)) => Chain::in_name_of_delegate(&certificate, branch.signed.clone(), key)?,
            (Self::Delegate { identity, branch: own }, _) => {
                Chain::by_delegate(&certificate, own.signed.clone(), identity)?
            }
        };
        if let Some(branch) = branch {
            branch.terms.permits(&certificate)?;
        }
        // What it says of its lists is the verifier's to judge: better told here than there.
        certificate::check_bounds(&certificate.models, &certificate.capabilities).map_err(certificate::Error::from)?;
        Ok((certificate, chain))
    }

    pub(super) fn revoke(&self, revocation: &Revocation) -> Result<SignedRevocation, Error> {
        Ok(match self {
            Self::MeshKey(key) => SignedRevocation::by_mesh_key(revocation, key)?,
            Self::Delegate { identity, branch } => {
                SignedRevocation::by_delegate(revocation, branch.signed.clone(), identity)?
            }
        })
    }
}

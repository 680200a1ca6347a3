//! Issuing: invitations and their redemption, renewal, revocation. Lives where the mesh key lies, and with delegates.
//!
//! Everything here waits for the disk: call it through `spawn_blocking` from async code.

mod admitting;
mod delegating;
mod inviting;
mod issuing;
mod renewing;
mod revoking;
mod signer;

use crate::state::{
    self, StateDir,
    issuer_db::{self, Elsewhere, Issued, IssuedRow, IssuerDb, Remembered},
};
pub use delegating::{DELEGATION_LIFE, DelegationOptions};
use dunlin_protocol::{
    certificate::{self, Chain},
    delegation::{self, Delegation},
    hello::Refusal,
    id::{MeshId, PeerId},
    invitation,
    revocation::{self, RevocationList},
    signed,
};
pub use inviting::{INVITATION_LIFE, InvitationOptions};
pub use issuing::Issuing;
use libp2p::identity::Keypair;
use signer::{Branch, Grant, Signer};
use std::{sync::Arc, time::Duration};

/// Life of a certificate.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Why nothing was issued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory or its database.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The database.
    #[error(transparent)]
    Database(#[from] issuer_db::Error),
    /// What would be issued is too large, or does not hold.
    #[error(transparent)]
    Certificate(#[from] certificate::Error),
    /// What would be issued is too large, or does not hold.
    #[error(transparent)]
    Invitation(#[from] invitation::Error),
    /// The key cannot sign.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// A revocation cannot be made.
    #[error(transparent)]
    Revocation(#[from] revocation::Error),
    /// More than a delegate may give.
    #[error("the delegation does not allow it: {0}")]
    Delegation(#[from] delegation::Error),
    /// The delegation is over.
    #[error("the delegation has ended; delegate anew where the mesh key lies")]
    DelegationEnded,
    /// The delegation was taken back.
    #[error("the delegation was revoked; delegate anew where the mesh key lies")]
    DelegationRevoked,
    /// Only the mesh key does this.
    #[error("this takes the mesh key, which does not lie on this machine")]
    NotTheMeshKey,
    /// The member still has a certificate that the mesh key gave it.
    #[error(
        "peer {peer} was admitted by the mesh key, and its certificate of then counts until {until} (unix seconds); revoke it where the mesh key lies"
    )]
    AdmittedByMeshKey {
        /// The member.
        peer: PeerId,
        /// End of that certificate, leeway included, unix seconds.
        until: u64,
    },
    /// The member still has a certificate of the delegate from whose branch it came.
    #[error(
        "peer {peer} was admitted by {by} before, and its certificate of then counts until {until} (unix seconds); revoke it there first, or where the mesh key lies"
    )]
    AdmittedByAnother {
        /// The member.
        peer: PeerId,
        /// The other delegate.
        by: Box<PeerId>,
        /// End of that certificate, leeway included, unix seconds.
        until: u64,
    },
    /// The delegation that is in force gives what the new one does not, and the machine keeps it.
    #[error(
        "peer {0} has a delegation that gives more, or for longer, and would keep it; end that with `dunlin mesh undelegate` first"
    )]
    Narrower(PeerId),
    /// The member was admitted by somebody else.
    #[error("peer {0} was not admitted by this machine; revoke it where the mesh key lies, or where it was invited")]
    NotInBranch(PeerId),
    /// Too early: the certificate has most of its life left.
    #[error("the certificate is not due for renewal yet")]
    NotDue,
    /// No later end can be had.
    #[error("the certificate ends with its issuer's delegation; renew that where the mesh key lies")]
    EndsWithDelegation,
    /// The member may not be given anything.
    #[error("refused: {0}")]
    Refused(Refusal),
}

impl Error {
    /// What to tell the peer that asked.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Refused(refusal) => *refusal,
            Self::DelegationEnded | Self::DelegationRevoked => Refusal::NotAnIssuer,
            // Narrower than when the invitation was made.
            Self::Delegation(
                delegation::Error::Roles { .. } | delegation::Error::Models | delegation::Error::Capability(_),
            ) => Refusal::InvitationWithdrawn,
            _ => Refusal::Internal,
        }
    }
}

/// Signs certificates, invitations and revocations, with the mesh key or under a delegation. Cheap to clone.
#[derive(Clone)]
pub struct Issuer(Arc<Inner>);

struct Inner {
    signer: Signer,
    mesh: MeshId,
    /// The peer that invitations name: this process.
    peer: PeerId,
    /// Of this peer: invitations that it signed count whether or not the mesh key lies here by now.
    identity: Keypair,
    db: IssuerDb,
}

impl Issuer {
    /// The issuer of a state directory: with the mesh key if that lies there, else under its delegation; `None` where
    /// there is neither.
    ///
    /// # Errors
    /// A key, the delegation or the database cannot be read, or does not belong there.
    pub fn open(state: &StateDir) -> Result<Option<Self>, Error> {
        let identity = state.identity()?;
        let (signer, mesh) = match (state.mesh_key()?, state.delegation()?) {
            (Some(key), _) => {
                let mesh = mesh_id(&key)?;
                (Signer::MeshKey(key), mesh)
            }
            (None, Some(signed)) => {
                let mesh = signed.peek()?.mesh;
                let branch = Box::new(Branch::verified(signed, &mesh)?);
                if branch.terms.issuer != identity.public().to_peer_id() {
                    return Err(certificate::Error::WrongSubject(branch.terms.issuer).into());
                }
                (Signer::Delegate { identity: identity.clone(), branch }, mesh)
            }
            (None, None) => return Ok(None),
        };
        let db = state.issuer_db(&mesh)?;
        let peer = identity.public().to_peer_id();
        Ok(Some(Self(Arc::new(Inner { signer, mesh, peer, identity, db }))))
    }

    /// The mesh that it issues for.
    #[must_use]
    pub fn mesh(&self) -> MeshId {
        self.0.mesh
    }

    /// Whether it signs with the mesh key.
    #[must_use]
    pub fn holds_mesh_key(&self) -> bool {
        self.0.signer.branch().is_none()
    }

    /// The bounds of a delegate.
    #[must_use]
    pub fn terms(&self) -> Option<&Delegation> {
        self.0.signer.branch().map(|branch| &branch.terms)
    }

    /// Whether it may issue anything at `now`, unix seconds.
    ///
    /// # Errors
    /// Its delegation ended or was revoked.
    pub fn check(&self, revocations: &RevocationList, now: u64) -> Result<(), Error> {
        self.0.signer.branch().map_or(Ok(()), |branch| branch.check(revocations, now))
    }

    fn issue(&self, grant: Grant, revocations: &RevocationList, now: u64) -> Result<Chain, Error> {
        let branch = self.0.signer.branch();
        let issued_at = first_moment(&grant.subject, branch, revocations, now)?;
        let (remembered, chain) = self.certify(grant, branch, issued_at, now)?;
        self.0.db.add_issued(&remembered, now)?;
        Ok(chain)
    }

    fn issued_of(
        &self,
        grant: Grant,
        branch: Option<&Branch>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Issued, Error> {
        let issued_at = first_moment(&grant.subject, branch, revocations, now)?;
        let (remembered, chain) = self.certify(grant, branch, issued_at, now)?;
        Ok(Issued { chain: chain.encode().map_err(certificate::Error::from)?, remembered })
    }

    fn certify(
        &self,
        grant: Grant,
        branch: Option<&Branch>,
        issued_at: u64,
        now: u64,
    ) -> Result<(Remembered, Chain), Error> {
        let (certificate, chain) = self.0.signer.certify(self.0.mesh, grant, branch, issued_at, now)?;
        let row = IssuedRow {
            peer: certificate.subject,
            issued_at,
            not_after: certificate.not_after,
            roles: certificate.roles.to_string(),
            name: certificate.name.as_ref().map(ToString::to_string),
        };
        let issuer = branch.map_or(certificate::Issuer::Mesh, Branch::issuer);
        let until = row.not_after.saturating_add(certificate::LEEWAY_S);
        let elsewhere = (!self.is_own_branch(&issuer)).then_some(Elsewhere { issuer, issued_at, until });
        Ok((Remembered { row, elsewhere }, chain))
    }

    /// The newest certificate of each peer that was issued one here.
    ///
    /// # Errors
    /// The database fails.
    pub fn issued(&self) -> Result<Vec<IssuedRow>, Error> {
        Ok(self.0.db.issued()?)
    }
}

/// A peer that is invited again within the second of its revocation, or by a slower clock, is a member. One that is revoked
/// for longer than clocks differ is not: a certificate of the far future would be out of reach of every later revocation.
fn first_moment(peer: &PeerId, branch: Option<&Branch>, revocations: &RevocationList, now: u64) -> Result<u64, Error> {
    let delegate = branch.map(|branch| &branch.terms.issuer);
    let first = now.max(revocations.revoked_before(peer, delegate));
    // Without a delegate it was the mesh key that said so.
    if delegate.is_some() && first > now.saturating_add(certificate::LEEWAY_S) {
        return Err(Error::Refused(Refusal::Revoked));
    }
    Ok(first)
}

/// The mesh of a mesh key.
pub(crate) fn mesh_id(mesh_key: &Keypair) -> Result<MeshId, Error> {
    let public = mesh_key.public();
    let no_key = |_| signed::Error::NoKey(public.to_peer_id());
    Ok(MeshId::of(&public.clone().try_into_ed25519().map_err(no_key)?))
}

#[cfg(test)]
mod tests;

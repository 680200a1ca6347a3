//! Delegations: the mesh key lets a member issue certificates, within bounds. Depth one: a delegate cannot delegate.

use crate::{
    certificate::{BoundsError, Certificate, check_bounds},
    id::{MeshId, PeerId, Roles},
    limits,
    pattern::Models,
    signed::{self, Signed, Statement},
};
use serde::{Deserialize, Serialize};

/// The right to issue, and the most that may be given. Signed by the mesh key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delegation {
    /// The mesh.
    pub mesh: MeshId,
    /// Who may issue; certificates are signed with this peer's identity key.
    pub issuer: PeerId,
    /// The roles that it may give.
    pub roles: Roles,
    /// The models that it may give.
    pub models: Models,
    /// The capabilities that it may give.
    pub capabilities: Vec<String>,
    /// The longest life of a certificate, seconds.
    pub life_s: u64,
    /// Unix seconds; compared only with revocations.
    pub issued_at: u64,
    /// Unix seconds; no certificate under this delegation ends later.
    pub not_after: u64,
}

impl Statement for Delegation {
    const DOMAIN: &'static str = "/dunlin/delegation/1";
    const LIMIT: usize = limits::DELEGATION_BYTES - 80;
}

/// Why a delegation, or a certificate under one, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not signed by the mesh key, or malformed.
    #[error("delegation: {0}")]
    Signed(#[from] signed::Error),
    /// A delegation of another mesh.
    #[error("delegation of mesh {0}")]
    WrongMesh(MeshId),
    /// Lists that are too long.
    #[error("delegation: {0}")]
    Bounds(#[from] BoundsError),
    /// The certificate gives roles that the delegate may not give.
    #[error("its issuer may give the roles {allowed}, not {given}")]
    Roles {
        /// Roles in the certificate.
        given: Roles,
        /// Roles in the delegation.
        allowed: Roles,
    },
    /// The certificate gives models that the delegate may not give.
    #[error("its issuer may not give these models")]
    Models,
    /// The certificate gives a capability that the delegate may not give.
    #[error("its issuer may not give the capability {0:?}")]
    Capability(String),
    /// The certificate lives longer than the delegate may let it.
    #[error("a life of {given_s} s; its issuer may give {allowed_s} s")]
    Life {
        /// Life of the certificate, seconds.
        given_s: u64,
        /// Longest life, seconds.
        allowed_s: u64,
    },
    /// The certificate ends after the delegation does.
    #[error("the certificate outlives its issuer's delegation")]
    Outlives,
}

/// Verifies a delegation against the mesh key. Its end is no matter here: certificates end no later, and are checked.
///
/// # Errors
/// Not signed by the mesh key, of another mesh, or malformed.
pub fn verify(delegation: &Signed<Delegation>, mesh: &MeshId) -> Result<Delegation, Error> {
    let claimed = delegation.peek()?;
    if claimed.mesh != *mesh {
        return Err(Error::WrongMesh(claimed.mesh));
    }
    let verified = delegation.verify(&signed::mesh_key(mesh)?)?;
    check_bounds(&verified.models, &verified.capabilities)?;
    Ok(verified)
}

impl Delegation {
    /// Whether the delegate may issue `certificate`.
    ///
    /// # Errors
    /// Says what is given that may not be given.
    pub fn permits(&self, certificate: &Certificate) -> Result<(), Error> {
        if !self.roles.includes(certificate.roles) {
            return Err(Error::Roles { given: certificate.roles, allowed: self.roles });
        }
        if !self.models.covers(&certificate.models) {
            return Err(Error::Models);
        }
        if let Some(extra) = certificate.capabilities.iter().find(|given| !self.capabilities.contains(given)) {
            return Err(Error::Capability(extra.clone()));
        }
        let given_s = certificate.not_after.saturating_sub(certificate.issued_at);
        if given_s > self.life_s {
            return Err(Error::Life { given_s, allowed_s: self.life_s });
        }
        if certificate.not_after > self.not_after {
            return Err(Error::Outlives);
        }
        Ok(())
    }
}

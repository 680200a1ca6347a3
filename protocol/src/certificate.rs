//! Membership certificates: who is a member of a mesh, in which roles, for which models, until when.
//!
//! A chain leads from the mesh key, over at most one delegation, to the certificate. It is verified with nothing but
//! the mesh's id and the time. There is no not-before: a fast clock of the mesh key's holder locks nobody out. Delegates are
//! not trusted as far: what they issue ahead of time, no revocation of today would reach.

use crate::{
    codec,
    delegation::{self, Delegation},
    id::{MeshId, ModelId, Name, PeerId, Role, Roles},
    limits,
    pattern::Models,
    signed::{self, Signed, Statement},
    topic::Topic,
};
use libp2p_identity::Keypair;
use serde::{Deserialize, Serialize};

/// How long after its not-after a certificate still counts, seconds: the most by which clocks of a mesh may differ.
pub const LEEWAY_S: u64 = 60 * 60;

/// Capability of members that hold the mesh key, so that others know whom to ask for a renewal. Gives no right by itself:
/// what counts is the signature.
pub const ISSUE: &str = "issue";
/// Capability of members that have a delegation. Gives no right by itself either.
pub const DELEGATE: &str = "delegate";
/// How a capability begins that names a namespace for the role [`Role::Operator`]: `@team-a`. The longest name that
/// Kubernetes takes for one, 63 characters, just fits.
pub const NAMESPACE: char = '@';
/// In place of a name: every namespace.
pub const EVERY_NAMESPACE: &str = "*";

/// Capability of members whose statements about keys, tenants and prices count: see [`Membership::keeps_keys`].
pub const KEYS: &str = "keys";

/// What an issuer says of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The mesh that the subject is a member of.
    pub mesh: MeshId,
    /// The member. Noise and TLS prove that a connection's other end is this peer.
    pub subject: PeerId,
    /// In whose name it is issued: the mesh key's, in the form of a peer id, or a delegated issuer's. That key signs. The
    /// mesh key may also sign in a delegate's name, so that a renewal leaves the member in the delegate's branch.
    pub issuer: PeerId,
    /// What the member may do.
    pub roles: Roles,
    /// What the member may serve as agent.
    pub models: Models,
    /// Reserved for tenants; empty.
    pub tenants: Vec<String>,
    /// Further abilities by name, for example [`ISSUE`]. Unknown ones are ignored.
    pub capabilities: Vec<String>,
    /// For people to read.
    pub name: Option<Name>,
    /// Unix seconds by the issuer's clock. Only compared with revocations, which issuers write too.
    pub issued_at: u64,
    /// Unix seconds; valid up to [`LEEWAY_S`] later.
    pub not_after: u64,
}

impl Statement for Certificate {
    const DOMAIN: &'static str = "/dunlin/certificate/1";
    // The envelope adds two lengths of 8 bytes and the signature of 64.
    const LIMIT: usize = limits::CERTIFICATE_BYTES - 80;
}

/// Why a chain was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad signature or encoding.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// The delegation does not allow it.
    #[error(transparent)]
    Delegation(#[from] delegation::Error),
    /// A certificate of another mesh.
    #[error("certificate of mesh {0}")]
    WrongMesh(MeshId),
    /// The certificate names another key than the one that signed it.
    #[error("certificate names {0} as its issuer, which did not sign it")]
    WrongIssuer(PeerId),
    /// The certificate is another peer's.
    #[error("certificate of peer {0}")]
    WrongSubject(PeerId),
    /// In a delegate's name, and issued after its own end.
    #[error("certificate issued at {issued_at}, after its end at {not_after} (unix seconds)")]
    EndsBeforeIssue {
        /// Unix seconds.
        issued_at: u64,
        /// Unix seconds.
        not_after: u64,
    },
    /// In a delegate's name, and issued later than now and the leeway.
    #[error("a delegate's certificate, issued at {issued_at} (unix seconds), which is to come; check the clocks")]
    Ahead {
        /// Unix seconds.
        issued_at: u64,
    },
    /// This peer has one that was issued later.
    #[error("issued before the certificate that is in use")]
    Superseded,
    /// Past its end and the leeway.
    #[error("certificate expired at {not_after} (unix seconds)")]
    Expired {
        /// Its end, unix seconds.
        not_after: u64,
    },
    /// More patterns, capabilities or tenants than allowed, or longer ones.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
}

impl From<codec::Error> for Error {
    fn from(error: codec::Error) -> Self {
        Self::Signed(error.into())
    }
}

/// A list in a certificate, delegation or invitation is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// Too many model patterns.
    #[error("{0} model patterns; at most {max} are allowed", max = limits::CERTIFICATE_PATTERNS)]
    Patterns(usize),
    /// Too many capabilities or tenants.
    #[error("{0} capabilities or tenants; at most {max} are allowed", max = limits::CERTIFICATE_WORDS)]
    Words(usize),
    /// A capability or tenant is too long.
    #[error("a capability or tenant of {0} bytes; at most {max} are allowed", max = limits::WORD_BYTES)]
    WordLength(usize),
}

/// Checks the lists that certificates, delegations and invitations share.
///
/// # Errors
/// Says which bound is broken.
pub fn check_bounds(models: &Models, words: &[String]) -> Result<(), BoundsError> {
    if let Models::Only(patterns) = models
        && patterns.len() > limits::CERTIFICATE_PATTERNS
    {
        return Err(BoundsError::Patterns(patterns.len()));
    }
    if words.len() > limits::CERTIFICATE_WORDS {
        return Err(BoundsError::Words(words.len()));
    }
    match words.iter().map(String::len).find(|&length| length > limits::WORD_BYTES) {
        Some(length) => Err(BoundsError::WordLength(length)),
        None => Ok(()),
    }
}

/// A certificate with what leads to it from the mesh key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The right of the certificate's signer, where that is not the mesh key itself.
    pub delegation: Option<Signed<Delegation>>,
    /// The member's certificate.
    pub certificate: Signed<Certificate>,
}

impl Chain {
    /// Signs `certificate` with the mesh key in the name of the delegate that it names as its issuer.
    ///
    /// # Errors
    /// The certificate is too large. That the delegation allows it is checked by [`Chain::verify`].
    pub fn in_name_of_delegate(
        certificate: &Certificate,
        delegation: Signed<Delegation>,
        mesh_key: &Keypair,
    ) -> Result<Self, Error> {
        Ok(Self { delegation: Some(delegation), certificate: Signed::sign(certificate, mesh_key)? })
    }

    /// Signs `certificate` with the mesh key.
    ///
    /// # Errors
    /// The certificate is too large.
    pub fn by_mesh_key(certificate: &Certificate, mesh_key: &Keypair) -> Result<Self, Error> {
        Ok(Self { delegation: None, certificate: Signed::sign(certificate, mesh_key)? })
    }

    /// Signs `certificate` with the identity key of a delegated issuer.
    ///
    /// # Errors
    /// The certificate is too large. That the delegation allows it is checked by [`Chain::verify`].
    pub fn by_delegate(
        certificate: &Certificate,
        delegation: Signed<Delegation>,
        identity: &Keypair,
    ) -> Result<Self, Error> {
        Ok(Self { delegation: Some(delegation), certificate: Signed::sign(certificate, identity)? })
    }

    /// Bytes for a file or a message.
    ///
    /// # Errors
    /// Too large.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::HELLO_BYTES)
    }

    /// The chain in `bytes`, nothing of it verified.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::HELLO_BYTES)
    }

    /// What the chain proves, at `now` (unix seconds), in `mesh`. Revocations are not looked at here.
    ///
    /// # Errors
    /// Any signature, bound, right or time that does not hold.
    pub fn verify(&self, now: u64, mesh: &MeshId) -> Result<Membership, Error> {
        let mesh_key = signed::mesh_key(mesh)?;
        let delegation = match &self.delegation {
            Some(signed) => Some(delegation::verify(signed, mesh)?),
            None => None,
        };
        let issuer = match &delegation {
            Some(delegation) => signed::public_key(&delegation.issuer)?,
            None => mesh_key.clone(),
        };
        // A certificate of another mesh is told as such, not as a bad signature.
        let claimed = self.certificate.peek()?;
        if claimed.mesh != *mesh {
            return Err(Error::WrongMesh(claimed.mesh));
        }
        let certificate = match self.certificate.verify(&issuer) {
            // The mesh key in the delegate's name.
            Err(signed::Error::Signature) if delegation.is_some() => self.certificate.verify(&mesh_key)?,
            verified => verified?,
        };
        if certificate.issuer != issuer.to_peer_id() {
            return Err(Error::WrongIssuer(certificate.issuer));
        }
        check_bounds(&certificate.models, &certificate.capabilities)?;
        check_bounds(&certificate.models, &certificate.tenants)?;
        if let Some(delegation) = &delegation {
            delegation.permits(&certificate)?;
        }
        let (issued_at, not_after) = (certificate.issued_at, certificate.not_after);
        if delegation.is_some() && issued_at > not_after {
            return Err(Error::EndsBeforeIssue { issued_at, not_after });
        }
        if delegation.is_some() && issued_at > now.saturating_add(LEEWAY_S) {
            return Err(Error::Ahead { issued_at });
        }
        let membership = Membership::of(certificate, delegation.as_ref());
        if !membership.valid_at(now) {
            return Err(Error::Expired { not_after: membership.not_after });
        }
        Ok(membership)
    }
}

/// In whose name a certificate was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Issuer {
    /// A holder of the mesh key.
    Mesh,
    /// A delegated issuer.
    Delegate {
        /// The delegated issuer.
        peer: PeerId,
        /// When the delegation was issued, unix seconds: revoking it ends the branch.
        delegated_at: u64,
    },
}

/// Why a member may issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authority {
    /// The mesh key lies with it.
    MeshKey,
    /// The mesh key let it, within bounds.
    Delegation,
}

/// What a verified chain says. Made by [`Chain::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The mesh.
    pub mesh: MeshId,
    /// The member.
    pub peer: PeerId,
    /// What the member may do.
    pub roles: Roles,
    /// What the member may serve as agent.
    pub models: Models,
    /// For people to read; trusted for nothing.
    pub name: Option<Name>,
    /// Further abilities by name.
    pub capabilities: Vec<String>,
    /// Unix seconds by the issuer's clock.
    pub issued_at: u64,
    /// Unix seconds; valid up to [`LEEWAY_S`] later.
    pub not_after: u64,
    /// In whose name.
    pub issuer: Issuer,
}

impl Membership {
    fn of(certificate: Certificate, delegation: Option<&Delegation>) -> Self {
        let issuer = match delegation {
            None => Issuer::Mesh,
            Some(by) => Issuer::Delegate { peer: by.issuer, delegated_at: by.issued_at },
        };
        Self {
            mesh: certificate.mesh,
            peer: certificate.subject,
            roles: certificate.roles,
            models: certificate.models,
            name: certificate.name,
            capabilities: certificate.capabilities,
            issued_at: certificate.issued_at,
            not_after: certificate.not_after,
            issuer,
        }
    }

    /// Whether the member may answer for `model`: role agent, and a pattern that matches.
    #[must_use]
    pub fn may_serve(&self, model: &ModelId) -> bool {
        self.roles.contains(Role::Agent) && self.models.allows(model)
    }

    /// Whether the member may create, change and end jobs in `namespace`: role operator, and that namespace or all.
    #[must_use]
    pub fn may_operate(&self, namespace: &str) -> bool {
        let named = |capability: &String| {
            capability.strip_prefix(NAMESPACE).is_some_and(|named| named == namespace || named == EVERY_NAMESPACE)
        };
        self.roles.contains(Role::Operator) && self.capabilities.iter().any(named)
    }

    /// The namespaces that the member may operate in; [`EVERY_NAMESPACE`] stands for all.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let operates = self.roles.contains(Role::Operator);
        self.capabilities.iter().filter_map(|capability| capability.strip_prefix(NAMESPACE)).filter(move |_| operates)
    }

    /// Whether the member may stand under `topic` in the DHT.
    #[must_use]
    pub fn may_register(&self, topic: &Topic) -> bool {
        match topic {
            Topic::Model(model) => self.may_serve(model),
            Topic::Job(_) => self.roles.contains(Role::Agent) || self.roles.contains(Role::Orchestrator),
            Topic::Role(role) => self.roles.contains(*role),
        }
    }

    /// Whether the membership counts at `now` (unix seconds), an hour of leeway included.
    #[must_use]
    pub fn valid_at(&self, now: u64) -> bool {
        now <= self.not_after.saturating_add(LEEWAY_S)
    }

    /// Whether the member's statements about keys count. Who holds the mesh key could give itself the capability, so it
    /// need not.
    #[must_use]
    pub fn keeps_keys(&self) -> bool {
        self.capabilities.iter().any(|capability| capability == KEYS) || self.authority() == Some(Authority::MeshKey)
    }

    /// How the member comes to issue certificates, if it does. Who holds a delegation can show it by a certificate that
    /// it issued to itself.
    #[must_use]
    pub fn authority(&self) -> Option<Authority> {
        let has = |word: &str| self.capabilities.iter().any(|capability| capability == word);
        match self.issuer {
            Issuer::Mesh if has(ISSUE) => Some(Authority::MeshKey),
            Issuer::Mesh if has(DELEGATE) => Some(Authority::Delegation),
            Issuer::Delegate { peer, .. } if peer == self.peer => Some(Authority::Delegation),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

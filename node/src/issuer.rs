//! Issuing: invitations and their redemption, renewal, revocation. Lives where the mesh key lies.
//!
//! Everything here waits for the disk: call it through `spawn_blocking` from async code.

use crate::{
    renewal,
    state::{
        self, StateDir,
        issuer_db::{self, InvitationRow, Issued, IssuedRow, IssuerDb, Unusable},
    },
};
use dunlin_protocol::{
    certificate::{self, Certificate, Chain, Membership},
    hello::Refusal,
    id::{MeshId, Name, PeerId, Role, Roles},
    invitation::{self, Invitation, JoinRequest, Token},
    pattern::Models,
    revocation::{self, Revocation, RevocationList, SignedRevocation, Target},
    signed::{self, Signed},
};
use libp2p::{Multiaddr, identity::Keypair};
use rand::Rng;
use std::{sync::Arc, time::Duration};

/// Life of a certificate.
pub const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Life of an invitation unless told otherwise.
pub const INVITATION_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

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
    /// Too early: the certificate has most of its life left.
    #[error("the certificate is not due for renewal yet")]
    NotDue,
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
            _ => Refusal::Internal,
        }
    }
}

/// What an invitation is to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvitationOptions {
    /// Roles of the members-to-be.
    pub roles: Roles,
    /// Models that they may serve.
    pub models: Models,
    /// How long the invitation can be used.
    pub life: Duration,
    /// How many peers may use it; at least 1.
    pub uses: u32,
}

impl Default for InvitationOptions {
    /// One machine that serves and asks, within a day.
    fn default() -> Self {
        let roles = Roles::from_iter([Role::Agent, Role::Proxy]);
        Self { roles, models: Models::Any, life: INVITATION_LIFE, uses: 1 }
    }
}

/// Signs with the mesh key. Cheap to clone.
#[derive(Clone)]
pub struct Issuer(Arc<Inner>);

struct Inner {
    mesh_key: Keypair,
    mesh: MeshId,
    /// The peer that invitations name: this process.
    peer: PeerId,
    db: IssuerDb,
}

/// Contents of a certificate that the issuer does not decide.
struct Grant {
    subject: PeerId,
    roles: Roles,
    models: Models,
    capabilities: Vec<String>,
    name: Option<Name>,
}

impl Issuer {
    /// The issuer of a state directory; `None` where no mesh key lies.
    ///
    /// # Errors
    /// Key or database cannot be read.
    pub fn open(state: &StateDir) -> Result<Option<Self>, Error> {
        let Some(mesh_key) = state.mesh_key()? else { return Ok(None) };
        let mesh = mesh_id(&mesh_key)?;
        let peer = state.identity()?.public().to_peer_id();
        Ok(Some(Self(Arc::new(Inner { mesh_key, mesh, peer, db: state.issuer_db()? }))))
    }

    /// The mesh that it issues for.
    #[must_use]
    pub fn mesh(&self) -> MeshId {
        self.0.mesh
    }

    /// Makes an invitation that is redeemed by this peer at `addresses`, at `now` (unix seconds).
    ///
    /// # Errors
    /// Too many patterns or addresses, or the database fails.
    pub fn invite(
        &self,
        options: &InvitationOptions,
        addresses: Vec<Multiaddr>,
        now: u64,
        rng: &mut impl Rng,
    ) -> Result<Token, Error> {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        let invitation = Invitation {
            mesh: self.0.mesh,
            issuer: self.0.peer,
            key: invitation::public_half(&seed)?,
            roles: options.roles,
            models: options.models.clone(),
            not_after: now.saturating_add(options.life.as_secs()),
            uses: options.uses.max(1),
        };
        let token = Token::new(seed, Signed::sign(&invitation, &self.0.mesh_key)?, addresses)?;
        // Told now rather than when it is printed, after the database remembers it.
        token.to_text()?;
        self.0.db.add_invitation(&InvitationRow {
            key: invitation.key,
            roles: invitation.roles.to_string(),
            not_after: invitation.not_after,
            uses: invitation.uses,
            created_at: now,
            withdrawn: false,
        })?;
        Ok(token)
    }

    /// Redeems an invitation for `joiner`, whose connection has proved its peer id, at `now` (unix seconds). The use is
    /// on disk before this returns. The same peer gets the same certificate again, and is not counted again.
    ///
    /// # Errors
    /// [`Error::Refused`] with what to answer; or the database fails.
    pub fn redeem(
        &self,
        joiner: PeerId,
        request: &JoinRequest,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        // An invitation of another mesh is told as such, not as a bad signature.
        let claimed = request.invitation.peek().map_err(|_| Error::Refused(Refusal::Malformed))?;
        if claimed.mesh != self.0.mesh {
            return Err(Error::Refused(Refusal::WrongMesh));
        }
        let invitation = request
            .verify(&joiner, &self.0.peer, &self.0.mesh_key.public())
            .map_err(|_| Error::Refused(Refusal::InvitationUnknown))?;
        if now > invitation.not_after {
            return Err(Error::Refused(Refusal::InvitationExpired));
        }
        let still_good = |chain: &[u8]| {
            let membership = Chain::decode(chain).map_err(certificate::Error::from)?.verify(now, &self.0.mesh);
            match membership {
                Ok(membership) if revocations.revokes(&membership) => Err(Error::Refused(Refusal::Revoked)),
                Ok(_) => Ok(true),
                Err(_) => Ok(false),
            }
        };
        let grant = Grant {
            subject: joiner,
            roles: invitation.roles,
            models: invitation.models.clone(),
            capabilities: Vec::new(),
            name: request.name.clone(),
        };
        let issue = || self.issued_of(grant, revocations, now);
        let redeemed = self.0.db.redeem(&invitation.key, &joiner, now, still_good, issue)?;
        let chain = redeemed.map_err(|unusable| {
            Error::Refused(match unusable {
                Unusable::Unknown => Refusal::InvitationUnknown,
                Unusable::Withdrawn => Refusal::InvitationWithdrawn,
                Unusable::UsedUp => Refusal::InvitationUsedUp,
            })
        })?;
        Ok(Chain::decode(&chain).map_err(certificate::Error::from)?)
    }

    /// A new certificate with the same rights for a member, at `now` (unix seconds). Whoever asks again gets the same one
    /// again, until that is due itself.
    ///
    /// # Errors
    /// [`Error::NotDue`]; [`Error::Refused`] when the membership has ended or was revoked; or the database fails.
    pub fn renew(&self, member: &Membership, revocations: &RevocationList, now: u64) -> Result<Chain, Error> {
        if member.mesh != self.0.mesh {
            return Err(Error::Refused(Refusal::WrongMesh));
        }
        if revocations.revokes(member) {
            return Err(Error::Refused(Refusal::Revoked));
        }
        if !member.valid_at(now) {
            return Err(Error::Refused(Refusal::Expired));
        }
        // The member decides when to ask, by its own clock.
        let is_due = |membership: &Membership| renewal::is_due(membership, now.saturating_add(certificate::LEEWAY_S));
        if !is_due(member) {
            return Err(Error::NotDue);
        }
        let still_good = |chain: &[u8]| {
            let last = Chain::decode(chain).map_err(certificate::Error::from)?.verify(now, &self.0.mesh);
            Ok(last.is_ok_and(|last| !is_due(&last) && !revocations.revokes(&last) && same_rights(&last, member)))
        };
        let grant = Grant {
            subject: member.peer,
            roles: member.roles,
            models: member.models.clone(),
            capabilities: member.capabilities.clone(),
            name: member.name.clone(),
        };
        let chain = self.0.db.renew(&member.peer, still_good, || self.issued_of(grant, revocations, now))?;
        Ok(Chain::decode(&chain).map_err(certificate::Error::from)?)
    }

    /// A certificate for the peer that holds the mesh key itself.
    ///
    /// # Errors
    /// The database fails.
    pub fn issue_own(
        &self,
        roles: Roles,
        name: Option<Name>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        let capabilities = vec![certificate::ISSUE.to_owned()];
        let grant = Grant { subject: self.0.peer, roles, models: Models::Any, capabilities, name };
        self.issue(grant, revocations, now)
    }

    fn issue(&self, grant: Grant, revocations: &RevocationList, now: u64) -> Result<Chain, Error> {
        let (chain, row) = self.sign(grant, revocations, now)?;
        self.0.db.add_issued(&row)?;
        Ok(chain)
    }

    fn issued_of(&self, grant: Grant, revocations: &RevocationList, now: u64) -> Result<Issued, Error> {
        let (chain, row) = self.sign(grant, revocations, now)?;
        Ok(Issued { chain: chain.encode().map_err(certificate::Error::from)?, row })
    }

    fn sign(&self, grant: Grant, revocations: &RevocationList, now: u64) -> Result<(Chain, IssuedRow), Error> {
        // A peer that is invited again within the second of its revocation, or by a slower clock, is a member.
        let issued_at = now.max(revocations.revoked_before(&grant.subject));
        let certificate = Certificate {
            mesh: self.0.mesh,
            subject: grant.subject,
            issuer: self.0.mesh_key.public().to_peer_id(),
            roles: grant.roles,
            models: grant.models,
            tenants: Vec::new(),
            capabilities: grant.capabilities,
            name: grant.name,
            issued_at,
            not_after: now.saturating_add(CERTIFICATE_LIFE.as_secs()),
        };
        let row = IssuedRow {
            peer: certificate.subject,
            issued_at,
            not_after: certificate.not_after,
            roles: certificate.roles.to_string(),
            name: certificate.name.as_ref().map(ToString::to_string),
        };
        Ok((Chain::by_mesh_key(&certificate, &self.0.mesh_key)?, row))
    }

    /// Ends every certificate of `peer` issued up to now. `known` is the newest moment of issue that this process has
    /// seen in a certificate of the peer, unix seconds (0 if none): another issuer's clock may be ahead.
    ///
    /// # Errors
    /// The database fails.
    pub fn revoke(&self, peer: PeerId, known: u64, now: u64) -> Result<SignedRevocation, Error> {
        let newest = self.0.db.last_issued(&peer)?.unwrap_or(0).max(known).max(now);
        let target = Target::Member(peer);
        let revocation = Revocation { mesh: self.0.mesh, target, before: newest.saturating_add(1) };
        Ok(SignedRevocation::by_mesh_key(&revocation, &self.0.mesh_key)?)
    }

    /// Ends an invitation early, by the public half of its seed. Returns whether it was known.
    ///
    /// # Errors
    /// The database fails.
    pub fn withdraw(&self, key: &[u8; 32]) -> Result<bool, Error> {
        Ok(self.0.db.withdraw(key)?)
    }

    /// The newest certificate of each peer that was issued one here.
    ///
    /// # Errors
    /// The database fails.
    pub fn issued(&self) -> Result<Vec<IssuedRow>, Error> {
        Ok(self.0.db.issued()?)
    }
}

fn same_rights(one: &Membership, other: &Membership) -> bool {
    let rights = |of: &Membership| (of.roles, of.models.clone(), of.capabilities.clone(), of.name.clone());
    rights(one) == rights(other)
}

/// The mesh of a mesh key.
pub(crate) fn mesh_id(mesh_key: &Keypair) -> Result<MeshId, Error> {
    let public = mesh_key.public();
    let no_key = |_| signed::Error::NoKey(public.to_peer_id());
    Ok(MeshId::of(&public.clone().try_into_ed25519().map_err(no_key)?))
}

#[cfg(test)]
mod tests;

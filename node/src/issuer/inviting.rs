//! Invitations: made, redeemed once for each of their uses, withdrawn.

use super::{
    CERTIFICATE_LIFE, Error, Issuer,
    signer::{Branch, Grant},
};
use crate::state::issuer_db::{InvitationRow, Unusable};
use dunlin_protocol::{
    certificate::{self, Chain, EVERY_NAMESPACE, Membership, NAMESPACE},
    hello::Refusal,
    id::{PeerId, Role, Roles},
    invitation::{self, Invitation, JoinRequest, Token},
    pattern::Models,
    revocation::RevocationList,
    signed,
};
use libp2p::Multiaddr;
use rand::Rng;
use std::time::Duration;

/// Life of an invitation unless told otherwise.
pub const INVITATION_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

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
    /// For the role operator: the namespaces, or [`EVERY_NAMESPACE`].
    pub namespaces: Vec<String>,
    /// Whether they may make keys ([`certificate::KEYS`]).
    pub keys: bool,
}

impl InvitationOptions {
    /// As certificates say it. An operator of no namespace in particular is one of all of them.
    fn capabilities(&self) -> Vec<String> {
        let mut capabilities = if self.keys { vec![certificate::KEYS.to_owned()] } else { Vec::new() };
        if !self.roles.contains(Role::Operator) {
            return capabilities;
        }
        let named = |namespace: &str| format!("{NAMESPACE}{namespace}");
        match self.namespaces.is_empty() {
            true => capabilities.push(named(EVERY_NAMESPACE)),
            false => capabilities.extend(self.namespaces.iter().map(|namespace| named(namespace))),
        }
        capabilities
    }
}

impl Default for InvitationOptions {
    /// One machine that serves and asks, within a day.
    fn default() -> Self {
        let roles = Roles::from_iter([Role::Agent, Role::Proxy]);
        Self { roles, models: Models::Any, life: INVITATION_LIFE, uses: 1, namespaces: Vec::new(), keys: false }
    }
}

impl Issuer {
    /// What an invitation gives unless told otherwise: the usual, as far as it may be given here.
    #[must_use]
    pub fn default_invitation(&self) -> InvitationOptions {
        let usual = InvitationOptions::default();
        match self.terms() {
            None => usual,
            Some(terms) => InvitationOptions {
                roles: usual.roles.intersection(terms.roles),
                models: terms.models.clone(),
                ..usual
            },
        }
    }

    /// Makes an invitation that is redeemed by this peer at `addresses`, at `now` (unix seconds).
    ///
    /// # Errors
    /// Too many patterns or addresses, more than this peer may give, or the database fails.
    pub fn invite(
        &self,
        options: &InvitationOptions,
        addresses: Vec<Multiaddr>,
        now: u64,
        rng: &mut impl Rng,
    ) -> Result<Token, Error> {
        let capabilities = options.capabilities();
        certificate::check_bounds(&options.models, &capabilities).map_err(certificate::Error::from)?;
        let mut not_after = now.saturating_add(options.life.as_secs());
        if let Some(Branch { terms, .. }) = self.0.signer.branch() {
            not_after = not_after.min(terms.not_after);
            // Told now rather than to whoever comes with it.
            let grant = Grant {
                subject: self.0.peer,
                roles: options.roles,
                models: options.models.clone(),
                capabilities: capabilities.clone(),
                name: None,
                life: CERTIFICATE_LIFE,
            };
            self.certify(grant, self.0.signer.branch(), now, now)?;
        }
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        let invitation = Invitation {
            mesh: self.0.mesh,
            issuer: self.0.peer,
            key: invitation::public_half(&seed)?,
            roles: options.roles,
            models: options.models.clone(),
            not_after,
            uses: options.uses.max(1),
        };
        let token = Token::new(seed, self.0.signer.sign(&invitation)?, addresses)?;
        // Told now rather than when it is printed, after the database remembers it.
        token.to_text()?;
        let row = InvitationRow {
            key: invitation.key,
            roles: invitation.roles.to_string(),
            not_after: invitation.not_after,
            uses: invitation.uses,
            used: 0,
            created_at: now,
            withdrawn: false,
        };
        self.0.db.add_invitation(&row, &capabilities)?;
        Ok(token)
    }

    /// The invitation in a request, if this peer made it: with the mesh key or with its own. Which of them it has may have
    /// changed since.
    fn own_invitation(&self, joiner: &PeerId, request: &JoinRequest) -> Result<Invitation, Error> {
        // An invitation of another mesh is told as such, not as a bad signature.
        let claimed = request.invitation.peek().map_err(|_| Error::Refused(Refusal::Malformed))?;
        if claimed.mesh != self.0.mesh {
            return Err(Error::Refused(Refusal::WrongMesh));
        }
        let keys = [signed::mesh_key(&self.0.mesh)?, self.0.identity.public()];
        let verified = keys.iter().find_map(|key| request.verify(joiner, &self.0.peer, key).ok());
        verified.ok_or(Error::Refused(Refusal::InvitationUnknown))
    }

    /// Redeems an invitation for `joiner`, whose connection has proved its peer id, at `now` (unix seconds). The use is
    /// on disk before this returns. The same peer gets the same certificate again, and is not counted again; one that was
    /// revoked since needs another invitation. `known`: its membership so far, if it was met.
    ///
    /// # Errors
    /// [`Error::Refused`] with what to answer; this peer may not issue any more; or the database fails.
    pub fn redeem(
        &self,
        joiner: PeerId,
        request: &JoinRequest,
        known: Option<&Membership>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        let invitation = self.own_invitation(&joiner, request)?;
        self.check(revocations, now)?;
        if now > invitation.not_after {
            return Err(Error::Refused(Refusal::InvitationExpired));
        }
        let still_good = |chain: &[u8]| {
            let chain = Chain::decode(chain).map_err(certificate::Error::from)?;
            // As it was then: a revocation counts for longer than the certificate that it ended.
            let then = chain.certificate.peek()?.issued_at;
            match chain.verify(then, &self.0.mesh) {
                Ok(membership) if revocations.revokes(&membership) => Err(Error::Refused(Refusal::Revoked)),
                Ok(membership) => Ok(membership.valid_at(now)),
                Err(_) => Ok(false),
            }
        };
        let grant = Grant {
            subject: joiner,
            roles: invitation.roles,
            models: invitation.models.clone(),
            capabilities: self.0.db.capabilities_of(&invitation.key)?,
            name: request.name.clone(),
            life: CERTIFICATE_LIFE,
        };
        let issue = || self.issued_of(grant, self.0.signer.branch(), revocations, now);
        let elsewhere = known.and_then(|known| self.elsewhere(known, revocations, now));
        let redeemed = self.0.db.redeem(&invitation.key, &joiner, now, elsewhere.as_ref(), still_good, issue)?;
        let chain = redeemed.map_err(|unusable| {
            Error::Refused(match unusable {
                Unusable::Unknown => Refusal::InvitationUnknown,
                Unusable::Withdrawn => Refusal::InvitationWithdrawn,
                Unusable::UsedUp => Refusal::InvitationUsedUp,
            })
        })?;
        Ok(Chain::decode(&chain).map_err(certificate::Error::from)?)
    }

    /// The invitations that this peer made, newest first; some of those that ended are not remembered.
    ///
    /// # Errors
    /// The database fails.
    pub fn invitations(&self) -> Result<Vec<InvitationRow>, Error> {
        Ok(self.0.db.invitations()?)
    }

    /// Ends early the one invitation whose [id](InvitationRow::id) is `id`, and returns it. `None`: there is none that can
    /// still be used at `now` (unix seconds).
    ///
    /// # Errors
    /// The database fails.
    pub fn withdraw(&self, id: &str, now: u64) -> Result<Option<InvitationRow>, Error> {
        let usable = |row: &InvitationRow| row.id() == id && !row.withdrawn && row.not_after >= now;
        let Some(mut row) = self.invitations()?.into_iter().find(usable) else { return Ok(None) };
        row.withdrawn = self.0.db.withdraw(&row.key)?;
        Ok(Some(row))
    }
}

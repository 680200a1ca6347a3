//! What only the mesh key does: letting members issue, and ending that.

use super::{CERTIFICATE_LIFE, Error, Issuer, signer::Grant};
use crate::state::issuer_db::DelegationRow;
use dunlin_protocol::{
    appointment::Appointment,
    certificate::{self, Authority, Membership},
    delegation::Delegation,
    id::{Name, PeerId, Role, Roles},
    pattern::Models,
    revocation::{Revocation, RevocationList, SignedRevocation, Target},
};
use std::time::Duration;

/// Life of a delegation unless told otherwise.
pub const DELEGATION_LIFE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The most that a delegate may give, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelegationOptions {
    /// Roles.
    pub roles: Roles,
    /// Models.
    pub models: Models,
    /// Longest life of a certificate.
    pub certificate_life: Duration,
    /// How long the delegation is good for.
    pub life: Duration,
}

impl Default for DelegationOptions {
    /// As the mesh key's holder invites by default, for a year.
    fn default() -> Self {
        Self {
            roles: Roles::from_iter([Role::Agent, Role::Proxy]),
            models: Models::Any,
            certificate_life: super::CERTIFICATE_LIFE,
            life: DELEGATION_LIFE,
        }
    }
}

impl Issuer {
    /// Lets `member` issue, from `now` (unix seconds) on. It counts once the member has it; see [`Self::remember`].
    ///
    /// # Errors
    /// [`Error::NotTheMeshKey`]; [`Error::Narrower`]; the member was revoked; too many patterns.
    pub fn delegate(
        &self,
        member: &Membership,
        options: &DelegationOptions,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Appointment, Error> {
        self.appoint(member, CERTIFICATE_LIFE, options, revocations, now)
    }

    /// A membership for a peer that is none yet, in these roles and to serve nothing, and a delegation, which end together: for
    /// a machine that can't keep what it is given, and so is given it for long.
    ///
    /// # Errors
    /// As [`Self::delegate`].
    pub fn equip(
        &self,
        peer: PeerId,
        roles: Roles,
        name: Option<Name>,
        options: &DelegationOptions,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Appointment, Error> {
        let nobody = Membership {
            mesh: self.mesh(),
            peer,
            roles,
            models: Models::Only(Vec::new()),
            name,
            capabilities: Vec::new(),
            issued_at: 0,
            not_after: 0,
            issuer: certificate::Issuer::Mesh,
        };
        let appointment = self.appoint(&nobody, options.life, options, revocations, now)?;
        self.remember(&appointment, now)?;
        Ok(appointment)
    }

    fn appoint(
        &self,
        member: &Membership,
        life: Duration,
        options: &DelegationOptions,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Appointment, Error> {
        self.require_mesh_key()?;
        if member.mesh != self.mesh() {
            return Err(Error::Refused(dunlin_protocol::hello::Refusal::WrongMesh));
        }
        if revocations.revokes(member) {
            return Err(Error::Refused(dunlin_protocol::hello::Refusal::Revoked));
        }
        let peer = member.peer;
        // Later than what was revoked and than the certificate that others know, whatever the clocks say. Delegation and
        // certificate at the same moment, so that who knows the one can revoke the other.
        let revoked = revocations.revoked_before(&peer, None).max(revocations.delegations_revoked_before(&peer));
        let issued_at = now.max(revoked).max(member.issued_at.saturating_add(1));
        let delegation = Delegation {
            mesh: self.mesh(),
            issuer: peer,
            roles: options.roles,
            models: options.models.clone(),
            capabilities: Vec::new(),
            life_s: options.certificate_life.as_secs(),
            issued_at,
            not_after: now.saturating_add(options.life.as_secs()),
        };
        // The delegate may keep the file of the former one, which nothing but a revocation ends.
        let former = self.delegations(revocations, now)?.into_iter().find(|row| row.terms.issuer == peer);
        if former.is_some_and(|former| !covers(&delegation, &former.terms)) {
            return Err(Error::Narrower(peer));
        }
        certificate::check_bounds(&delegation.models, &[]).map_err(certificate::Error::from)?;
        let holder = member.authority() == Some(Authority::MeshKey);
        let capability = if holder { certificate::ISSUE } else { certificate::DELEGATE };
        let grant = Grant {
            subject: peer,
            roles: member.roles,
            models: member.models.clone(),
            capabilities: vec![capability.to_owned()],
            name: member.name.clone(),
            life,
        };
        let delegation = self.0.signer.sign(&delegation)?;
        let (remembered, chain) = self.certify(grant, None, issued_at, now)?;
        self.0.db.add_issued(&remembered, now)?;
        Ok(Appointment { delegation, chain })
    }

    /// Remembers at `now` (unix seconds) a delegation that its delegate has.
    ///
    /// # Errors
    /// The database fails.
    pub fn remember(&self, appointment: &Appointment, now: u64) -> Result<(), Error> {
        let terms = appointment.delegation.peek()?;
        let certificate = appointment.chain.certificate.peek()?;
        let name = certificate.name.map(|name| name.to_string());
        Ok(self.0.db.add_delegation(&DelegationRow { terms, name }, now)?)
    }

    /// Ends the delegations of `peer` up to now, and every membership that it gave. `known` is the newest moment of a
    /// delegation of the peer that this process has seen, unix seconds (0 if none).
    ///
    /// # Errors
    /// [`Error::NotTheMeshKey`]; the database fails.
    pub fn undelegate(&self, peer: PeerId, known: u64, now: u64) -> Result<SignedRevocation, Error> {
        self.require_mesh_key()?;
        let remembered = self.0.db.delegations()?.into_iter().find(|row| row.terms.issuer == peer);
        // Its certificate came with it: should nothing be remembered of the delegation, that tells.
        let issued = self.0.db.last_issued(&peer)?.unwrap_or(0);
        let newest = remembered.map_or(0, |row| row.terms.issued_at).max(issued).max(known).max(now);
        let target = Target::Delegate(peer);
        self.0.signer.revoke(&Revocation { mesh: self.mesh(), target, before: newest.saturating_add(1) })
    }

    /// Delegations made here that hold at `now`, unix seconds.
    ///
    /// # Errors
    /// The database fails.
    pub fn delegations(&self, revocations: &RevocationList, now: u64) -> Result<Vec<DelegationRow>, Error> {
        let mut rows = self.0.db.delegations()?;
        rows.retain(|row| {
            row.terms.not_after > now && !revocations.ends_delegation(&row.terms.issuer, row.terms.issued_at)
        });
        Ok(rows)
    }

    fn require_mesh_key(&self) -> Result<(), Error> {
        if self.holds_mesh_key() { Ok(()) } else { Err(Error::NotTheMeshKey) }
    }
}

/// Whether whatever `former` gives, `new` does too.
fn covers(new: &Delegation, former: &Delegation) -> bool {
    new.roles.includes(former.roles)
        && new.models.covers(&former.models)
        && former.capabilities.iter().all(|capability| new.capabilities.contains(capability))
        && new.life_s >= former.life_s
        && new.not_after >= former.not_after
}

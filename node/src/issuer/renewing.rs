//! Renewal: the same rights for longer, in the same branch.

use super::{
    CERTIFICATE_LIFE, Error, Issuer,
    signer::{Branch, Grant},
};
use crate::renewal;
use dunlin_protocol::{
    certificate::{self, Chain, Membership},
    delegation::Delegation,
    hello::Refusal,
    id::{Name, Role, Roles},
    pattern::Models,
    revocation::RevocationList,
    signed::Signed,
};

impl Issuer {
    /// A new certificate with the same rights for a member, at `now` (unix seconds); `delegation` is the one in its present
    /// chain, if any. Whoever asks again gets the same one again, until that is due itself.
    ///
    /// A member stays in the branch that it is in; a delegate takes those of the mesh key into its own. What it gives is
    /// never more than the delegation allows, nor longer.
    ///
    /// # Errors
    /// [`Error::NotDue`]; [`Error::Refused`] when the membership has ended, was revoked, or is another delegate's;
    /// the delegation does not allow it; or the database fails.
    pub fn renew(
        &self,
        member: &Membership,
        delegation: Option<&Signed<Delegation>>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        if member.mesh != self.0.mesh {
            return Err(Error::Refused(Refusal::WrongMesh));
        }
        if revocations.revokes(member) {
            return Err(Error::Refused(Refusal::Revoked));
        }
        if !member.valid_at(now) {
            return Err(Error::Refused(Refusal::Expired));
        }
        let branch = self.branch_of(member, delegation)?;
        if let Some(branch) = &branch {
            branch.check(revocations, now)?;
        }
        // The member decides when to ask, by its own clock.
        let is_due = |membership: &Membership| renewal::is_due(membership, now.saturating_add(certificate::LEEWAY_S));
        if !is_due(member) {
            return Err(Error::NotDue);
        }
        if branch.as_ref().is_some_and(|branch| branch.terms.not_after <= member.not_after) {
            return Err(Error::EndsWithDelegation);
        }
        let mut capabilities = member.capabilities.clone();
        if revocations.ends_delegation(&member.peer, member.issued_at) {
            capabilities.retain(|capability| capability != certificate::DELEGATE);
        }
        if let Some(branch) = &branch {
            capabilities.retain(|capability| branch.terms.capabilities.contains(capability));
        }
        let grant = Grant {
            subject: member.peer,
            roles: member.roles,
            models: member.models.clone(),
            capabilities,
            name: member.name.clone(),
            life: CERTIFICATE_LIFE,
        };
        let still_good = |chain: &[u8]| {
            let last = Chain::decode(chain).map_err(certificate::Error::from)?.verify(now, &self.0.mesh);
            Ok(last.is_ok_and(|last| !is_due(&last) && !revocations.revokes(&last) && gives(&last, &grant)))
        };
        let issue = || self.issued_of(grant.clone(), branch.as_ref(), revocations, now);
        let elsewhere = self.elsewhere(member, revocations, now);
        let chain = self.0.db.renew(&member.peer, now, elsewhere.as_ref(), still_good, issue)?;
        Ok(Chain::decode(&chain).map_err(certificate::Error::from)?)
    }

    /// In whose name a member's renewal is to be.
    fn branch_of(&self, member: &Membership, shown: Option<&Signed<Delegation>>) -> Result<Option<Branch>, Error> {
        use certificate::Issuer::{Delegate, Mesh};
        match (self.0.signer.branch(), member.issuer) {
            (None, Mesh) => Ok(None),
            (None, Delegate { peer, delegated_at }) => {
                let shown = shown.ok_or(Error::Refused(Refusal::Invalid))?;
                let branch = Branch::verified(shown.clone(), &self.0.mesh)?;
                if (branch.terms.issuer, branch.terms.issued_at) != (peer, delegated_at) {
                    return Err(Error::Refused(Refusal::Invalid));
                }
                Ok(Some(branch))
            }
            (Some(own), Mesh) => Ok(Some(own.clone())),
            (Some(own), Delegate { peer, .. }) if peer == own.terms.issuer => Ok(Some(own.clone())),
            (Some(_), Delegate { .. }) => Err(Error::Refused(Refusal::NotAnIssuer)),
        }
    }

    /// A certificate for this peer itself: as the holder of the mesh key, or as far as the delegation goes.
    ///
    /// # Errors
    /// More than the delegation allows, or the database fails.
    pub fn issue_own(
        &self,
        roles: Roles,
        name: Option<Name>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        let (models, capabilities) = match self.terms() {
            None => {
                let mut capabilities = vec![certificate::ISSUE.to_owned()];
                if roles.contains(Role::Operator) {
                    capabilities.push(format!("{}{}", certificate::NAMESPACE, certificate::EVERY_NAMESPACE));
                }
                (Models::Any, capabilities)
            }
            Some(terms) => (terms.models.clone(), Vec::new()),
        };
        self.check(revocations, now)?;
        self.issue(
            Grant { subject: self.0.peer, roles, models, capabilities, name, life: CERTIFICATE_LIFE },
            revocations,
            now,
        )
    }

    /// A certificate for this peer as one that holds no mesh key any more. Others are told that it issues only if
    /// `delegation`, its own, is in force.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) fn step_down(
        &self,
        own: &Membership,
        delegation: Option<Signed<Delegation>>,
        revocations: &RevocationList,
        now: u64,
    ) -> Result<Chain, Error> {
        let branch = delegation.and_then(|signed| Branch::verified(signed, &self.0.mesh).ok());
        let delegated = branch.is_some_and(|branch| branch.check(revocations, now).is_ok());
        // The keys that it made remain its to change.
        let mut capabilities = vec![certificate::KEYS.to_owned()];
        capabilities.extend(delegated.then(|| certificate::DELEGATE.to_owned()));
        let (roles, models, name) = (own.roles, own.models.clone(), own.name.clone());
        self.issue(
            Grant { subject: self.0.peer, roles, models, capabilities, name, life: CERTIFICATE_LIFE },
            revocations,
            now,
        )
    }
}

fn gives(membership: &Membership, grant: &Grant) -> bool {
    (membership.roles, &membership.models, &membership.capabilities, &membership.name)
        == (grant.roles, &grant.models, &grant.capabilities, &grant.name)
}

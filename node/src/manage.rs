//! Managing memberships from a running node: inviting, revoking, letting others do so.

use crate::{
    addresses, clock,
    gossip::MeshMessage,
    handle::{Command, ConnectError, Handle},
    hop, info,
    issuer::{self, DelegationOptions, InvitationOptions, Issuer},
    renew, routes,
    state::{
        self,
        issuer_db::{DelegationRow, InvitationRow},
    },
};
use dunlin_protocol::{
    appointment::{self, Appointment},
    certificate,
    delegation::Delegation,
    id::{Name, PeerId, Roles},
    invitation::Token,
    limits,
    revocation::{Merged, SignedRevocation},
};
use libp2p::Multiaddr;
use rand::rngs::StdRng;

/// Why a membership could not be managed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// Neither the mesh key nor a delegation.
    #[error(
        "this machine may not issue; run the command on a machine that may issue: where the mesh was created, or a delegate (`dunlin mesh show` lists them)"
    )]
    NotAnIssuer,
    /// The node has ended.
    #[error("the node has stopped")]
    Stopped,
    /// Issuing failed.
    #[error(transparent)]
    Issuer(#[from] issuer::Error),
    /// The state directory.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A delegation for this peer that does not hold.
    #[error(transparent)]
    Appointment(#[from] appointment::Error),
    /// A delegation for this peer that is older than the one that it has, or was revoked.
    #[error("the delegation was replaced or revoked")]
    Outdated,
    /// There is no room for another revocation: an earlier one would count no more.
    #[error(
        "not revoked: the list of revocations is full, and an earlier one would have to go; on a delegate, revoke it where the mesh key lies, which has room of its own, or let that `dunlin mesh undelegate` this machine and delegate to it again, which ends what it gave and frees its room; where the mesh key lies, only a new mesh has room"
    )]
    ListFull,
    /// The member has a certificate of another issuer as well.
    #[error(
        "what this machine gave peer {peer} is revoked, but it is a member still: {by} has admitted it since; revoke it there too, or where the mesh key lies"
    )]
    StillMember {
        /// The member.
        peer: PeerId,
        /// The other issuer.
        by: String,
    },
    /// A delegate was told to revoke a member that it has not met.
    #[error(
        "what this machine gave peer {0} is revoked, but it can't be known whether that ends the membership: this node has not met the peer since it started, another issuer may have admitted it, and this machine, a delegate, ends only what it gave itself; revoke it where the mesh key lies too, or here again once `dunlin peers` shows it"
    )]
    MaybeMember(PeerId),
    /// The member to be delegated to must be there.
    #[error(
        "peer {peer} cannot be reached: {cause}; start it, see that `dunlin peers` shows it connected, and try again"
    )]
    Unreachable {
        /// The member.
        peer: PeerId,
        /// Why.
        cause: String,
    },
    /// It did not take its delegation.
    #[error("peer {peer} did not take the delegation: {cause}")]
    NotTaken {
        /// The member.
        peer: PeerId,
        /// What it said.
        cause: String,
    },
    /// A task ended badly.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl Handle {
    /// This process's issuer, as long as it may issue.
    fn issuer(&self) -> Result<Issuer, ManageError> {
        let issuer = self.0.issuing.get().ok_or(ManageError::NotAnIssuer)?;
        issuer.check(&self.members().revocations(), clock::unix_s())?;
        Ok(issuer)
    }

    /// Whether this process may issue now.
    #[must_use]
    pub fn issues(&self) -> bool {
        self.issuer().is_ok()
    }

    /// The bounds within which this process issues; `None` where the mesh key lies, and where nothing is issued.
    #[must_use]
    pub fn delegation(&self) -> Option<Delegation> {
        self.issuer().ok()?.terms().cloned()
    }

    /// What an invitation gives unless told otherwise.
    ///
    /// # Errors
    /// This peer does not issue.
    pub fn default_invitation(&self) -> Result<InvitationOptions, ManageError> {
        Ok(self.issuer()?.default_invitation())
    }

    /// Makes an invitation that this peer redeems, at the addresses that it can be reached at.
    ///
    /// # Errors
    /// This peer does not issue, or may not give that; too many patterns; the database fails.
    pub async fn invite(&self, options: InvitationOptions) -> Result<Token, ManageError> {
        let issuer = self.issuer()?;
        let addresses = self.invitation_addresses();
        let invite = move || issuer.invite(&options, addresses, clock::unix_s(), &mut rand::make_rng::<StdRng>());
        Ok(tokio::task::spawn_blocking(invite).await??)
    }

    /// The invitations that this peer made, newest first.
    ///
    /// # Errors
    /// This peer does not issue; the database fails.
    pub async fn invitations(&self) -> Result<Vec<InvitationRow>, ManageError> {
        let issuer = self.issuer()?;
        Ok(tokio::task::spawn_blocking(move || issuer.invitations()).await??)
    }

    /// Ends early the invitation with this [id](InvitationRow::id); whoever has used it stays a member. `None`: there is
    /// none that can still be used.
    ///
    /// # Errors
    /// This peer does not issue; the database fails.
    pub async fn withdraw(&self, id: String) -> Result<Option<InvitationRow>, ManageError> {
        let issuer = self.issuer()?;
        Ok(tokio::task::spawn_blocking(move || issuer.withdraw(&id, clock::unix_s())).await??)
    }

    /// Ends the membership of `peer` everywhere: gossiped at once, and fetched by whoever was away. On disk before this
    /// returns. With a delegate's membership its delegation ends, and so do the memberships that it gave.
    ///
    /// # Errors
    /// This peer does not issue, or did not admit that one; the list is full; the database fails.
    /// [`ManageError::StillMember`]: revoked here, and another issuer's certificate counts; [`ManageError::MaybeMember`]: so
    /// may be, where this peer is a delegate.
    /// [`ManageError::State`]: revoked until this process ends, but not stored.
    pub async fn revoke(&self, peer: PeerId) -> Result<(), ManageError> {
        let issuer = self.issuer()?;
        let members = self.members().clone();
        let is_delegate = !issuer.holds_mesh_key();
        self.publish_revocation(move || {
            let (known, now) = (members.get(&peer), clock::unix_s());
            issuer.may_revoke(peer, known.as_deref(), &members.revocations(), now)?;
            issuer.revoke(peer, known.map_or(0, |membership| membership.issued_at), now)
        })
        .await?;
        if is_delegate && self.members().get(&peer).is_none() {
            return Err(ManageError::MaybeMember(peer));
        }
        let by = match self.members().check(&peer, clock::unix_s()).map(|still| still.issuer) {
            Err(_) => return Ok(()),
            Ok(certificate::Issuer::Mesh) => "the mesh key".to_owned(),
            Ok(certificate::Issuer::Delegate { peer, .. }) => format!("peer {peer}"),
        };
        Err(ManageError::StillMember { peer, by })
    }

    /// Ends what this process gave to the peer of a pod, which has gone: whoever knows pods keeps on record which peer was one,
    /// so that it need not have met the peer since it started. As [`Self::revoke`] otherwise; what another issuer gave stays.
    ///
    /// # Errors
    /// This peer does not issue; the list is full; the database fails; revoked until this process ends, but not stored.
    pub async fn revoke_pod(&self, peer: PeerId) -> Result<(), ManageError> {
        let issuer = self.issuer()?;
        let known = self.members().get(&peer).map_or(0, |membership| membership.issued_at);
        self.publish_revocation(move || issuer.revoke(peer, known, clock::unix_s())).await
    }

    /// Ends the delegation of `peer`, and every membership that it gave; its own, which the mesh key gave, stays.
    ///
    /// # Errors
    /// The mesh key does not lie here; otherwise as [`Self::revoke`].
    pub async fn undelegate(&self, peer: PeerId) -> Result<(), ManageError> {
        let issuer = self.issuer()?;
        let known = self.members().newest_delegation(&peer);
        self.publish_revocation(move || issuer.undelegate(peer, known, clock::unix_s())).await
    }

    async fn publish_revocation(
        &self,
        make: impl FnOnce() -> Result<SignedRevocation, issuer::Error> + Send + 'static,
    ) -> Result<(), ManageError> {
        let (members, state) = (self.members().clone(), self.0.state.clone());
        let revoke = move || {
            let revocation = make()?;
            let merged = members.revoke_own(revocation.clone()).map_err(issuer::Error::from)?;
            if merged == Merged::Full {
                return Err(ManageError::ListFull);
            }
            state.store_revocations(|| members.revocations())?;
            Ok::<_, ManageError>(revocation)
        };
        let revocation = tokio::task::spawn_blocking(revoke).await??;
        let message = Box::new(MeshMessage::Revocation(revocation));
        self.0.commands.send(Command::Publish(message)).await.map_err(|_| ManageError::Stopped)
    }

    /// Lets the connected member `peer` issue, within bounds. The peer has stored its delegation before this returns.
    ///
    /// # Errors
    /// The mesh key does not lie here; the peer is no member, cannot be reached, or did not take it.
    pub async fn delegate(&self, peer: PeerId, options: DelegationOptions) -> Result<Delegation, ManageError> {
        let issuer = self.issuer()?;
        let unreachable = |error: ConnectError| ManageError::Unreachable { peer, cause: error.to_string() };
        self.connect(peer).await.map_err(unreachable)?;
        let not_a_member = |cause: crate::members::Denied| ManageError::NotTaken { peer, cause: cause.to_string() };
        let member = self.members().check(&peer, clock::unix_s()).map_err(not_a_member)?;
        let (by, revocations) = (issuer.clone(), self.members().revocations());
        let make = move || by.delegate(&member, &options, &revocations, clock::unix_s());
        let appointment = tokio::task::spawn_blocking(make).await??;
        if peer == self.peer_id() {
            self.accept(appointment.clone()).await?;
        } else {
            self.hand_over(peer, &appointment).await?;
        }
        let delegation = appointment.delegation.peek().map_err(issuer::Error::from)?;
        tokio::task::spawn_blocking(move || issuer.remember(&appointment, clock::unix_s())).await??;
        tracing::info!(%peer, not_after = delegation.not_after, "a member may issue from now on");
        Ok(delegation)
    }

    /// A membership with a delegation for a peer that is no member yet: see [`Issuer::equip`].
    ///
    /// # Errors
    /// The mesh key does not lie here; the peer was revoked; the database fails.
    pub async fn equip(
        &self,
        peer: PeerId,
        roles: Roles,
        name: Option<Name>,
        options: DelegationOptions,
    ) -> Result<Appointment, ManageError> {
        let (issuer, revocations) = (self.issuer()?, self.members().revocations());
        let equip = move || issuer.equip(peer, roles, name, &options, &revocations, clock::unix_s());
        Ok(tokio::task::spawn_blocking(equip).await??)
    }

    /// Delegations that were made here and hold; none where the mesh key does not lie.
    ///
    /// # Errors
    /// The database fails.
    pub(crate) async fn delegations(&self) -> Result<Vec<DelegationRow>, ManageError> {
        let Some(issuer) = self.0.issuing.get().filter(Issuer::holds_mesh_key) else { return Ok(Vec::new()) };
        let revocations = self.members().revocations();
        let list = move || issuer.delegations(&revocations, clock::unix_s());
        Ok(tokio::task::spawn_blocking(list).await??)
    }

    async fn hand_over(&self, peer: PeerId, appointment: &Appointment) -> Result<(), ManageError> {
        let bytes = appointment.encode().map_err(|error| issuer::Error::from(certificate::Error::from(error)))?;
        let body = hop::Body::from(bytes::Bytes::from(bytes));
        let answer = info::ask(self.hop(), peer, http::Method::POST, routes::DELEGATION_PATH, body, limits::NAME_BYTES);
        let not_taken = |error: info::Error| ManageError::NotTaken { peer, cause: error.to_string() };
        answer.await.map(drop).map_err(not_taken)
    }

    /// Takes a delegation for this peer: stores it, shows others the certificate that came with it, issues.
    ///
    /// # Errors
    /// It does not hold, is older than the one that is here, or cannot be stored.
    pub(crate) async fn accept(&self, appointment: Appointment) -> Result<(), ManageError> {
        let (members, state, issuing) = (self.members().clone(), self.0.state.clone(), self.0.issuing.clone());
        let store = move || {
            let now = clock::unix_s();
            let (terms, membership) = appointment.verify(now, &members.mesh(), &members.peer_id())?;
            let _changing = issuing.changing();
            let known = state.delegation()?;
            // Whoever repeats it makes no work, nor a message to everybody.
            if known.as_ref() == Some(&appointment.delegation)
                && *members.own_chain() == appointment.chain
                && issuing.get().is_some()
            {
                return Ok(None);
            }
            let has = known.and_then(|known| known.peek().ok());
            let newer = has.is_none_or(|known| known.mesh != terms.mesh || known.issued_at <= terms.issued_at);
            let revoked = members.revocations().ends_delegation(&terms.issuer, terms.issued_at);
            if !newer || revoked || members.own().issued_at > membership.issued_at || members.is_revoked(&membership) {
                return Err(ManageError::Outdated);
            }
            // First what a delegation needs, so that a crash in between leaves none that does not work.
            state.issuer_db(&members.mesh())?;
            state.store_chain(&appointment.chain)?;
            state.store_delegation(&appointment.delegation)?;
            // While nothing else can: a renewal under way must not put an older one in its place.
            members.replace_own(appointment.chain.clone(), now).map_err(issuer::Error::from)?;
            if let Some(issuer) = Issuer::open(&state)? {
                issuing.set(issuer);
            }
            Ok(Some((terms, appointment.chain)))
        };
        let Some((terms, chain)) = tokio::task::spawn_blocking(store).await?? else { return Ok(()) };
        tracing::info!(roles = %terms.roles, not_after = terms.not_after, "this peer may issue from now on");
        renew::publish(self, chain).await;
        Ok(())
    }

    /// Addresses for somebody who is not a member yet, with loopback ones last: the joiner may be on this machine.
    fn invitation_addresses(&self) -> Vec<Multiaddr> {
        let listening = self.listen_addresses();
        let all = self.0.external.iter().chain(&listening).cloned();
        addresses::dialable(all, true, limits::INVITATION_ADDRESSES)
    }
}

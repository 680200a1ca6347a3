//! The members that this peer has met, who this peer itself is, and what was revoked. Shared by admission, which writes,
//! and the hop, record store and directory, which read on every request.

use arc_swap::ArcSwap;
use dunlin_protocol::{
    certificate::{self, Authority, Chain, Membership},
    hello::Refusal,
    id::{MeshId, PeerId},
    revocation::{self, ListVersion, Merged, Revocation, RevocationList, SignedRevocation},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Members remembered. One takes about 300 bytes; the one admitted longest ago makes room.
pub const MEMBERS: usize = 16 * 1024;
/// How long a peer that refused us, or that we refused, is not dialled.
pub const NO_DIAL: Duration = Duration::from_secs(10 * 60);
/// Peers on the no-dial list; the one that is on it longest makes room.
pub const NO_DIAL_PEERS: usize = 1024;

/// Why a peer has no rights now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never admitted.
    #[error("not a member")]
    NotAMember,
    /// Its certificate has ended.
    #[error("the certificate has expired")]
    Expired,
    /// Its certificate was revoked.
    #[error("the membership was revoked")]
    Revoked,
}

/// How this peer stands in its mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A member, as far as it knows.
    Member,
    /// Its certificate was revoked: the signed revocation is here.
    Revoked,
    /// That member refused it as revoked, and none has let it in since.
    CalledRevoked(PeerId),
}

/// What a gossiped certificate tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The peer's rights are others from now on.
    New,
    /// Nothing here; others may not know it.
    Known,
    /// Nothing to anybody: outdated, revoked, or not its issuer's to say.
    Useless,
}

/// Shared table of members. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Members(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    mesh: MeshId,
    peer: PeerId,
    own: ArcSwap<Own>,
    replacing: Mutex<()>,
    table: RwLock<Table>,
    /// Read on every request, written once a month: readers never wait for a merge.
    revocations: ArcSwap<RevocationList>,
    merging: Mutex<()>,
    changes: watch::Sender<ListVersion>,
    refused: Mutex<HashMap<PeerId, (Instant, Refusal)>>,
    /// Who called this peer revoked, since somebody let it in.
    called_revoked: Mutex<Option<PeerId>>,
}

#[derive(Debug)]
struct Own {
    chain: Arc<Chain>,
    membership: Arc<Membership>,
}

#[derive(Debug, Default)]
struct Table {
    members: HashMap<PeerId, Entry>,
    admitted: u64,
}

#[derive(Debug)]
struct Entry {
    membership: Arc<Membership>,
    /// What the peer's list was when it was admitted.
    revocations: ListVersion,
    /// Counts admissions: the smallest is evicted first.
    order: u64,
}

impl Members {
    /// A table that knows only this peer.
    ///
    /// # Errors
    /// The own chain does not hold at `now` (unix seconds).
    pub fn new(chain: Chain, mesh: MeshId, revocations: RevocationList, now: u64) -> Result<Self, certificate::Error> {
        let membership = Arc::new(chain.verify(now, &mesh)?);
        let changes = watch::Sender::new(revocations.version());
        Ok(Self(Arc::new(Shared {
            mesh,
            peer: membership.peer,
            own: ArcSwap::from_pointee(Own { chain: Arc::new(chain), membership }),
            replacing: Mutex::default(),
            table: RwLock::default(),
            revocations: ArcSwap::from_pointee(revocations),
            merging: Mutex::default(),
            changes,
            refused: Mutex::default(),
            called_revoked: Mutex::default(),
        })))
    }

    /// The mesh.
    #[must_use]
    pub fn mesh(&self) -> MeshId {
        self.0.mesh
    }

    /// This peer.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        self.0.peer
    }

    /// This peer's membership.
    #[must_use]
    pub fn own(&self) -> Arc<Membership> {
        self.0.own.load().membership.clone()
    }

    /// This peer's certificate chain.
    #[must_use]
    pub fn own_chain(&self) -> Arc<Chain> {
        self.0.own.load().chain.clone()
    }

    /// Takes a renewed chain of this peer. Who refused the old one may be asked again.
    ///
    /// # Errors
    /// It does not hold at `now` (unix seconds), is another peer's, or was issued before the one in use.
    pub fn replace_own(&self, chain: Chain, now: u64) -> Result<Arc<Membership>, certificate::Error> {
        let membership = Arc::new(chain.verify(now, &self.0.mesh)?);
        if membership.peer != self.0.peer {
            return Err(certificate::Error::WrongSubject(membership.peer));
        }
        let _replacing = self.0.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        if membership.issued_at < self.own().issued_at {
            return Err(certificate::Error::Superseded);
        }
        self.0.own.store(Arc::new(Own { chain: Arc::new(chain), membership: membership.clone() }));
        self.refused_peers().clear();
        self.set_called_revoked(None);
        Ok(membership)
    }

    /// The membership of a peer that was admitted once, or of this peer. Says nothing about expiry and revocation:
    /// [`Self::check`] does.
    #[must_use]
    pub fn get(&self, peer: &PeerId) -> Option<Arc<Membership>> {
        if *peer == self.0.peer {
            return Some(self.own());
        }
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.members.get(peer).map(|entry| entry.membership.clone())
    }

    /// The membership of a peer that has rights at `now` (unix seconds).
    ///
    /// # Errors
    /// It has none, and why.
    pub fn check(&self, peer: &PeerId, now: u64) -> Result<Arc<Membership>, Denied> {
        let membership = self.get(peer).ok_or(Denied::NotAMember)?;
        if self.is_revoked(&membership) {
            return Err(Denied::Revoked);
        }
        if !membership.valid_at(now) {
            return Err(Denied::Expired);
        }
        Ok(membership)
    }

    /// Takes the verified membership of a peer that was admitted with it, and the version of the revocation list that its
    /// peer has.
    pub fn insert(&self, membership: Membership, revocations: ListVersion) {
        self.refused_peers().remove(&membership.peer);
        self.set_called_revoked(None);
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.members.len() >= MEMBERS && !table.members.contains_key(&membership.peer) {
            let oldest = table.members.iter().min_by_key(|(_, entry)| entry.order).map(|(peer, _)| *peer);
            oldest.and_then(|peer| table.members.remove(&peer));
        }
        table.admitted += 1;
        let order = table.admitted;
        let peer = membership.peer;
        table.members.insert(peer, Entry { membership: Arc::new(membership), revocations, order });
    }

    /// Takes a verified membership that came by gossip, shown `by_itself` or by somebody else. A connection proves nothing
    /// here: the issuer may have made the certificate without its subject.
    ///
    /// A delegate has a say over the members of its own branch only, else it could take the rights of any other away, the
    /// mesh key's holder included, by a certificate that gives none. Peers never met make no room for themselves.
    pub fn hear(&self, membership: Membership, by_itself: bool) -> Heard {
        if membership.peer == self.0.peer || self.is_revoked(&membership) {
            return Heard::Useless;
        }
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = table.members.get_mut(&membership.peer) else { return Heard::Known };
        let known = &entry.membership;
        let delegate = |of: &Membership| match of.issuer {
            certificate::Issuer::Delegate { peer, .. } => Some(peer),
            certificate::Issuer::Mesh => None,
        };
        // Who is revoked has nothing to lose, and may have been invited again.
        let may_say = by_itself
            || delegate(&membership).is_none()
            || delegate(&membership) == delegate(known)
            || self.is_revoked(known);
        if !may_say || membership.issued_at < known.issued_at {
            return Heard::Useless;
        }
        if membership.issued_at == known.issued_at {
            return Heard::Known;
        }
        let peer = membership.peer;
        entry.membership = Arc::new(membership);
        drop(table);
        self.refused_peers().remove(&peer);
        Heard::New
    }

    /// Members met that issue certificates, the one admitted last first; not this peer.
    #[must_use]
    pub fn issuers(&self) -> Vec<Arc<Membership>> {
        let list = self.revocations();
        let issues = |of: &Membership| match of.authority() {
            Some(Authority::MeshKey) => true,
            Some(Authority::Delegation) => !list.ends_delegation(&of.peer, of.issued_at),
            None => false,
        };
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut issuers: Vec<&Entry> = table.members.values().filter(|entry| issues(&entry.membership)).collect();
        issuers.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.order));
        issuers.into_iter().map(|entry| entry.membership.clone()).collect()
    }

    /// The newest moment at which `delegate` was let issue that certificates of members met tell, unix seconds; 0 if none.
    #[must_use]
    pub fn newest_delegation(&self, delegate: &PeerId) -> u64 {
        let told = |of: &Membership| match of.issuer {
            certificate::Issuer::Delegate { peer, delegated_at } if peer == *delegate => delegated_at,
            certificate::Issuer::Mesh if of.peer == *delegate => of.issued_at,
            _ => 0,
        };
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.members.values().map(|entry| told(&entry.membership)).max().unwrap_or(0)
    }

    /// The revocations known now.
    #[must_use]
    pub fn revocations(&self) -> Arc<RevocationList> {
        self.0.revocations.load_full()
    }

    /// Whether a membership was issued before a revocation that counts against it.
    #[must_use]
    pub fn is_revoked(&self, membership: &Membership) -> bool {
        self.0.revocations.load().revokes(membership)
    }

    /// The list of `peer` as it was when it was admitted, if it is another one than ours.
    #[must_use]
    pub fn other_list_of(&self, peer: &PeerId) -> Option<ListVersion> {
        let own = self.0.revocations.load().version();
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.members.get(peer).map(|entry| entry.revocations).filter(|list| *list != own)
    }

    /// Takes one revocation, from gossip or made here.
    ///
    /// # Errors
    /// It does not verify.
    pub fn revoke(&self, revocation: SignedRevocation) -> Result<Merged, revocation::Error> {
        let _merging = self.0.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = RevocationList::clone(&self.revocations());
        let merged = list.insert(revocation, &self.0.mesh)?;
        self.publish(list);
        Ok(merged)
    }

    /// Takes one that was made by this process's issuer. [`Merged::Full`] where another of the same issuer would have to
    /// make room: nothing has changed then.
    ///
    /// # Errors
    /// It does not verify.
    pub fn revoke_own(&self, revocation: SignedRevocation) -> Result<Merged, revocation::Error> {
        let _merging = self.0.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = RevocationList::clone(&self.revocations());
        let merged = list.insert_own(revocation, &self.0.mesh)?;
        self.publish(list);
        Ok(merged)
    }

    /// Drops revocations that end nothing any more at `now`, unix seconds.
    pub fn expire_revocations(&self, now: u64) {
        let _merging = self.0.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = RevocationList::clone(&self.revocations());
        list.expire(now);
        self.publish(list);
    }

    /// Takes a whole list from another member; what does not verify is left out. Verifies thousands of signatures at
    /// worst, a fraction of a second: call through `spawn_blocking`. Returns what is new.
    #[must_use]
    pub fn merge_revocations(&self, entries: Vec<SignedRevocation>) -> Vec<Revocation> {
        let _merging = self.0.merging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = RevocationList::clone(&self.revocations());
        let (new, refused) = list.merge(entries, &self.0.mesh);
        if refused > 0 {
            tracing::warn!(refused, "revocations left out: not valid, or the list is full");
        }
        self.publish(list);
        new
    }

    fn publish(&self, list: RevocationList) {
        let version = list.version();
        if list.displaced() > 0 && self.revocations().displaced() == 0 {
            tracing::error!(
                "the list of revocations is full, and members whose revocation was dropped count again; where the mesh key \
                 lies, `dunlin mesh undelegate` delegates that revoke too much, and revoke these members there"
            );
        }
        self.0.revocations.store(Arc::new(list));
        self.0.changes.send_if_modified(|known| std::mem::replace(known, version) != version);
    }

    /// Wakes when revocations were added: time to store them, and to disconnect [`Self::revoked`].
    #[must_use]
    pub fn revocation_changes(&self) -> watch::Receiver<ListVersion> {
        self.0.changes.subscribe()
    }

    /// Members met whose certificates are revoked.
    #[must_use]
    pub fn revoked(&self) -> Vec<PeerId> {
        let list = self.revocations();
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        let revoked = table.members.iter().filter(|(_, entry)| list.revokes(&entry.membership));
        revoked.map(|(peer, _)| *peer).collect()
    }

    fn refused_peers(&self) -> std::sync::MutexGuard<'_, HashMap<PeerId, (Instant, Refusal)>> {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a peer on the no-dial list.
    pub fn note_refused(&self, peer: PeerId, refusal: Refusal, now: Instant) {
        if !refusal.is_lasting() {
            return;
        }
        let mut refused = self.refused_peers();
        refused.retain(|_, (since, _)| now.saturating_duration_since(*since) < NO_DIAL);
        if refused.len() >= NO_DIAL_PEERS && !refused.contains_key(&peer) {
            let oldest = refused.iter().min_by_key(|(_, (since, _))| *since).map(|(peer, _)| *peer);
            oldest.and_then(|peer| refused.remove(&peer));
        }
        refused.insert(peer, (now, refusal));
    }

    /// Takes what a peer said when it refused this one.
    pub fn note_refused_by(&self, peer: PeerId, refusal: Refusal, now: Instant) {
        if refusal == Refusal::Revoked {
            self.set_called_revoked(Some(peer));
        }
        self.note_refused(peer, refusal, now);
    }

    /// Peers of another mesh that were met within [`NO_DIAL`]: who refused whom doesn't matter. Newest first, with the time
    /// since then.
    #[must_use]
    pub fn of_other_meshes(&self, now: Instant) -> Vec<(PeerId, Duration)> {
        let refused = self.refused_peers();
        let met = refused.iter().filter(|(_, (_, refusal))| *refusal == Refusal::WrongMesh);
        let ages = met.map(|(peer, (since, _))| (*peer, now.saturating_duration_since(*since)));
        let mut lately: Vec<_> = ages.filter(|(_, age)| *age < NO_DIAL).collect();
        lately.sort_by_key(|(_, age)| *age);
        lately
    }

    fn set_called_revoked(&self, by: Option<PeerId>) {
        *self.0.called_revoked.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// How this peer stands: it may have been revoked while nobody could tell it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if self.is_revoked(&self.own()) {
            return Standing::Revoked;
        }
        let called = *self.0.called_revoked.lock().unwrap_or_else(PoisonError::into_inner);
        called.map_or(Standing::Member, Standing::CalledRevoked)
    }

    /// Why `peer` should not be dialled now, if so.
    #[must_use]
    pub fn refused(&self, peer: &PeerId, now: Instant) -> Option<Refusal> {
        let refused = self.refused_peers();
        let (since, refusal) = refused.get(peer)?;
        (now.saturating_duration_since(*since) < NO_DIAL).then_some(*refusal)
    }
}

#[cfg(test)]
mod tests;

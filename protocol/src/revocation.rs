//! Revocations: "certificates of P issued before T do not count any more". Signed, only ever added, merged in any order.
//!
//! A revocation by the mesh key counts against everybody; one by a delegated issuer counts against the members that
//! this issuer admitted. Inviting a revoked peer again works: its new certificate is issued after T.

use crate::{
    certificate::{Issuer, LEEWAY_S, Membership},
    codec,
    delegation::{self, Delegation},
    id::{MeshId, PeerId},
    limits,
    signed::{self, Signed, Statement},
};
use libp2p_identity::Keypair;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt};

/// How long after the end of its delegation a delegate's revocation is kept, seconds. The last certificate under it counts
/// up to [`LEEWAY_S`] longer, on a machine whose clock may be behind by as much.
pub const KEPT_AFTER_DELEGATION_S: u64 = 2 * LEEWAY_S;

/// What is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// A member's certificates. By the mesh key: also its delegations, since whoever has the member's key could issue to
    /// itself in other names.
    Member(PeerId),
    /// A delegate's right to issue, and with it every certificate that it issued under it.
    Delegate(PeerId),
}

/// Ends what `target` was given before a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// The mesh.
    pub mesh: MeshId,
    /// Whose certificates, or delegations.
    pub target: Target,
    /// Unix seconds: what was issued earlier is void.
    pub before: u64,
}

impl Statement for Revocation {
    const DOMAIN: &'static str = "/dunlin/revocation/1";
    const LIMIT: usize = 160;
}

/// A revocation with its signature and, unless the mesh key signed, the signer's delegation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedRevocation {
    /// The signer's right.
    pub delegation: Option<Signed<Delegation>>,
    /// The statement.
    pub revocation: Signed<Revocation>,
}

/// Why a revocation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad signature or encoding.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// The signer's delegation does not hold.
    #[error(transparent)]
    Delegation(#[from] delegation::Error),
    /// A revocation of another mesh.
    #[error("revocation of mesh {0}")]
    WrongMesh(MeshId),
    /// Only the mesh key revokes delegations.
    #[error("a delegated issuer may not revoke a delegation")]
    NotAllowed,
    /// A delegate's revocation of certificates that it cannot have issued: nothing issued later would count any more.
    #[error("revokes what was issued before {before}, but the delegation ends at {not_after} (unix seconds)")]
    BeyondDelegation {
        /// Of the revocation, unix seconds.
        before: u64,
        /// Of the delegation, unix seconds.
        not_after: u64,
    },
    /// More entries than a list may have.
    #[error("list of {0} revocations")]
    TooMany(usize),
}

impl From<codec::Error> for Error {
    fn from(error: codec::Error) -> Self {
        Self::Signed(error.into())
    }
}

/// Whose signature an entry bears. The mesh key's come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Signer {
    Mesh,
    Delegate(PeerId),
}

impl SignedRevocation {
    /// Signs with the mesh key.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn by_mesh_key(revocation: &Revocation, mesh_key: &Keypair) -> Result<Self, Error> {
        Ok(Self { delegation: None, revocation: Signed::sign(revocation, mesh_key)? })
    }

    /// Signs with the identity key of a delegated issuer.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn by_delegate(
        revocation: &Revocation,
        delegation: Signed<Delegation>,
        identity: &Keypair,
    ) -> Result<Self, Error> {
        Ok(Self { delegation: Some(delegation), revocation: Signed::sign(revocation, identity)? })
    }

    /// Verifies against the mesh key. No clock: a revocation never expires, nor does the right to have made it, since
    /// it reaches no further than the certificates of that right.
    ///
    /// # Errors
    /// Any signature or right that does not hold.
    pub fn verify(&self, mesh: &MeshId) -> Result<Revocation, Error> {
        self.verify_signer(mesh).map(|(revocation, _)| revocation)
    }

    fn verify_signer(&self, mesh: &MeshId) -> Result<(Revocation, Signer), Error> {
        let (key, signer, not_after) = match &self.delegation {
            None => (signed::mesh_key(mesh)?, Signer::Mesh, None),
            Some(signed) => {
                let Delegation { issuer, not_after, .. } = delegation::verify(signed, mesh)?;
                (signed::public_key(&issuer)?, Signer::Delegate(issuer), Some(not_after))
            }
        };
        let revocation = self.revocation.verify(&key)?;
        if revocation.mesh != *mesh {
            return Err(Error::WrongMesh(revocation.mesh));
        }
        if matches!((signer, revocation.target), (Signer::Delegate(_), Target::Delegate(_))) {
            return Err(Error::NotAllowed);
        }
        if let Some(not_after) = not_after
            && revocation.before > not_after.saturating_add(LEEWAY_S)
        {
            return Err(Error::BeyondDelegation { before: revocation.before, not_after });
        }
        Ok((revocation, signer))
    }

    /// Bytes for gossip.
    ///
    /// # Errors
    /// Too large.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::REVOCATION_BYTES)
    }

    /// From gossip, not verified.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::REVOCATION_BYTES)
    }
}

/// Names the content of a list: equal versions, equal lists. Where a peer's differs, its list is fetched and merged.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListVersion(pub u64);

impl fmt::Debug for ListVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
impl fmt::Display for ListVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl ListVersion {
    /// As an HTTP entity tag, RFC 9110 §8.8.3.
    #[must_use]
    pub fn entity_tag(self) -> String {
        format!("\"{self}\"")
    }

    /// The version in an entity tag; `None` if it is none of ours.
    #[must_use]
    pub fn from_entity_tag(tag: &str) -> Option<Self> {
        let digits = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
        let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(Self)
    }
}

/// What a merge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merged {
    /// Known already, or nothing is left of what it ends.
    Known,
    /// New, and kept.
    New(Revocation),
    /// The list is full: an operator must act, since something that is revoked counts again.
    Full,
}

/// Names an entry: its signer, its target, and when the delegation was issued under which it was signed (unix seconds; 0
/// for the mesh key). What a delegate said under one delegation outlives what it said under an earlier one.
type Key = (Signer, Target, u64);

/// All revocations that a peer knows, at most one for each target, signer and delegation. Merging commutes and is
/// idempotent, also at the bound: what is kept is a function of what was seen.
///
/// A delegate's entries go when nothing is left that they could end: its delegation was revoked, and everything under it
/// with it, or ended long enough ago ([`RevocationList::expire`]). The mesh key's stay: nothing says how long what they end
/// would last.
#[derive(Debug, Clone, Default)]
pub struct RevocationList {
    entries: BTreeMap<Key, (u64, SignedRevocation)>,
    version: ListVersion,
    /// What has ended by then is not kept, unix seconds.
    as_of: u64,
    displaced: u64,
}

impl RevocationList {
    /// Verifies and adds one revocation.
    ///
    /// # Errors
    /// It does not verify.
    pub fn insert(&mut self, signed: SignedRevocation, mesh: &MeshId) -> Result<Merged, Error> {
        // Repeats are common (gossip, and every pull of a list): skip the signature.
        if self.entries.values().any(|(_, known)| *known == signed) {
            return Ok(Merged::Known);
        }
        let (revocation, signer) = signed.verify_signer(mesh)?;
        let merged = self.add(revocation, signer, signed);
        self.version = self.content_version();
        Ok(merged)
    }

    /// The same for a revocation of one's own: where another one of the same signer would have to make room, nothing is
    /// added, and the answer is [`Merged::Full`].
    ///
    /// # Errors
    /// It does not verify.
    pub fn insert_own(&mut self, signed: SignedRevocation, mesh: &MeshId) -> Result<Merged, Error> {
        let (_, own) = signed.verify_signer(mesh)?;
        let mut with = self.clone();
        let merged = with.insert(signed, mesh)?;
        if self.entries.keys().any(|key| key.0 == own && !with.entries.contains_key(key)) {
            return Ok(Merged::Full);
        }
        *self = with;
        Ok(merged)
    }

    /// Drops what ends nothing any more at `now` (unix seconds), and takes in no such entry from here on.
    pub fn expire(&mut self, now: u64) {
        self.as_of = now;
        self.drop_spent(|_| true);
        self.version = self.content_version();
    }

    fn drop_spent(&mut self, by: impl Fn(&Signer) -> bool) {
        // The mesh key's come first, and stay.
        let delegated = self.entries.iter().rev().take_while(|(key, _)| key.0 != Signer::Mesh);
        let spent = delegated.filter(|(key, (_, signed))| by(&key.0) && self.is_spent(signed)).map(|(key, _)| *key);
        for key in spent.collect::<Vec<_>>() {
            self.entries.remove(&key);
        }
    }

    /// Whether nothing is left that a delegate's revocation could end.
    fn is_spent(&self, signed: &SignedRevocation) -> bool {
        let delegation = signed.delegation.as_ref().and_then(|right| right.peek().ok());
        delegation.is_some_and(|under| {
            self.as_of > under.not_after.saturating_add(KEPT_AFTER_DELEGATION_S)
                || self.ends_delegation(&under.issuer, under.issued_at)
        })
    }

    /// Verifies and adds a whole list.
    ///
    /// Returns what is new. Entries that do not verify are left out and counted.
    pub fn merge(&mut self, other: Vec<SignedRevocation>, mesh: &MeshId) -> (Vec<Revocation>, usize) {
        let known: std::collections::HashSet<Vec<u8>> =
            self.entries.values().filter_map(|(_, entry)| entry.encode().ok()).collect();
        let (mut new, mut refused) = (Vec::new(), 0);
        for signed in other {
            if signed.encode().is_ok_and(|bytes| known.contains(&bytes)) {
                continue;
            }
            let Ok((revocation, signer)) = signed.verify_signer(mesh) else {
                refused += 1;
                continue;
            };
            match self.add(revocation, signer, signed) {
                Merged::New(revocation) => new.push(revocation),
                Merged::Known => {}
                Merged::Full => refused += 1,
            }
        }
        self.version = self.content_version();
        (new, refused)
    }

    fn add(&mut self, revocation: Revocation, signer: Signer, signed: SignedRevocation) -> Merged {
        if self.is_spent(&signed) {
            return Merged::Known;
        }
        let delegation = signed.delegation.as_ref().and_then(|right| right.peek().ok());
        let key = (signer, revocation.target, delegation.map_or(0, |under| under.issued_at));
        if let Some((before, known)) = self.entries.get(&key) {
            // Of two equal ones with different delegations either would do; the bytes decide, so that all agree.
            let newer = (revocation.before, signed.encode().ok()) > (*before, known.encode().ok());
            if !newer {
                return Merged::Known;
            }
        }
        self.entries.insert(key, (revocation.before, signed));
        if signer == Signer::Mesh {
            // Its delegations end with either.
            let (Target::Member(peer) | Target::Delegate(peer)) = revocation.target;
            self.drop_spent(|signer| *signer == Signer::Delegate(peer));
        }
        self.trim();
        if self.entries.contains_key(&key) { Merged::New(revocation) } else { Merged::Full }
    }

    /// Drops what is over the bounds, last in order first. Delegates cannot crowd out the mesh key, nor each other: the one
    /// with the most entries loses one.
    fn trim(&mut self) {
        let is_mesh = |key: &&Key| key.0 == Signer::Mesh;
        let by_mesh = self.entries.keys().filter(is_mesh).count();
        if self.entries.len() - by_mesh > limits::DELEGATED_REVOCATIONS {
            let mut counts = BTreeMap::<Signer, usize>::new();
            for (signer, ..) in self.entries.keys().filter(|key| key.0 != Signer::Mesh) {
                *counts.entry(*signer).or_default() += 1;
            }
            // Of several with as many, the last: which it is may not depend on the order of arrival.
            let most = counts.into_iter().max_by_key(|(signer, count)| (*count, *signer)).map(|(signer, _)| signer);
            let last = self.entries.keys().rfind(|key| Some(key.0) == most).copied();
            self.displaced += u64::from(last.and_then(|key| self.entries.remove(&key)).is_some());
        }
        if by_mesh > limits::REVOCATIONS {
            let last = self.entries.keys().rfind(is_mesh).copied();
            self.displaced += u64::from(last.and_then(|key| self.entries.remove(&key)).is_some());
        }
    }

    fn content_version(&self) -> ListVersion {
        if self.entries.is_empty() {
            return ListVersion(0);
        }
        let mut hash = Sha256::new();
        for (_, entry) in self.entries.values() {
            hash.update(entry.encode().unwrap_or_default());
        }
        let digest: [u8; 32] = hash.finalize().into();
        ListVersion(u64::from_le_bytes(std::array::from_fn(|i| digest[i])))
    }

    /// Names the content; 0 when empty.
    #[must_use]
    pub fn version(&self) -> ListVersion {
        self.version
    }

    /// How many entries this process has dropped because the list was full.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.displaced
    }

    /// Whether `membership` was issued before a revocation that counts against it.
    #[must_use]
    pub fn revokes(&self, membership: &Membership) -> bool {
        self.revokes_certificate(&membership.peer, &membership.issuer, membership.issued_at)
    }

    /// The same of a certificate of `peer` by `issuer`, issued at `issued_at` (unix seconds).
    #[must_use]
    pub fn revokes_certificate(&self, peer: &PeerId, issuer: &Issuer, issued_at: u64) -> bool {
        match issuer {
            Issuer::Mesh => issued_at < self.revoked_before(peer, None),
            Issuer::Delegate { peer: delegate, delegated_at } => {
                issued_at < self.revoked_before(peer, Some(delegate)) || self.ends_delegation(delegate, *delegated_at)
            }
        }
    }

    /// Whether a delegation of `delegate` that was issued at `delegated_at` (unix seconds) was revoked: by itself, or
    /// with the delegate's membership.
    #[must_use]
    pub fn ends_delegation(&self, delegate: &PeerId, delegated_at: u64) -> bool {
        delegated_at < self.delegations_revoked_before(delegate)
    }

    /// The moment before which delegations of `delegate` are void, unix seconds; 0 when never revoked.
    #[must_use]
    pub fn delegations_revoked_before(&self, delegate: &PeerId) -> u64 {
        let before = |target| self.before(Signer::Mesh, target);
        before(Target::Delegate(*delegate)).max(before(Target::Member(*delegate)))
    }

    /// The moment before which certificates of `peer` are void, unix seconds; 0 when never revoked. `delegate`: in whose
    /// name they are, unless the mesh key's. What other delegates say does not count.
    #[must_use]
    pub fn revoked_before(&self, peer: &PeerId, delegate: Option<&PeerId>) -> u64 {
        let before = |signer| self.before(signer, Target::Member(*peer));
        before(Signer::Mesh).max(delegate.map_or(0, |delegate| before(Signer::Delegate(*delegate))))
    }

    fn before(&self, signer: Signer, target: Target) -> u64 {
        let entries = self.entries.range((signer, target, 0)..=(signer, target, u64::MAX));
        entries.map(|(_, (before, _))| *before).max().unwrap_or(0)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was ever revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, the mesh key's first.
    pub fn iter(&self) -> impl Iterator<Item = &SignedRevocation> {
        self.entries.values().map(|(_, entry)| entry)
    }

    /// Bytes for a file or an answer on the hop.
    ///
    /// # Errors
    /// Never at the bounds that the list keeps.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(&self.iter().collect::<Vec<_>>(), limits::REVOCATION_LIST_BYTES)
    }

    /// The entries in `bytes`, not verified: [`RevocationList::merge`] does that.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Vec<SignedRevocation>, Error> {
        let entries: Vec<SignedRevocation> = codec::decode_v1(bytes, limits::REVOCATION_LIST_BYTES)?;
        if entries.len() > limits::REVOCATIONS + limits::DELEGATED_REVOCATIONS {
            return Err(Error::TooMany(entries.len()));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests;

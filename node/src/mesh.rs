//! Which mesh a state directory belongs to: making one, and taking up membership at the start of a process.

pub mod key;

use crate::{
    issuer::{self, Issuer},
    members::Members,
    renewal,
    state::{self, StateDir},
};
use dunlin_protocol::{
    certificate::{self, Chain, Membership},
    id::{MeshId, Name, Roles},
    mesh_key,
    revocation::RevocationList,
};
use libp2p::identity::Keypair;

/// Why there is no membership to take up, or none was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither created nor joined.
    #[error("this machine is in no mesh yet; run `dunlin up` to make one, or `dunlin join TOKEN` to join one")]
    NotAMember,
    /// Created or joined before.
    #[error(
        "this machine is in mesh {0} already; to leave it, remove the state directory; for a second one, choose another directory with --home"
    )]
    AlreadyAMember(MeshId),
    /// Only who holds the mesh key gives itself roles.
    #[error(
        "the key of mesh {0} does not lie on this machine; ask for a new invitation on a machine that may issue: where the mesh was created, or a delegate"
    )]
    NotTheMeshKey(MeshId),
    /// Not where the mesh was made, nor where the key was brought.
    #[error("the mesh key does not lie on this machine")]
    NoMeshKey,
    /// Without the key and without a delegate the mesh could not grow.
    #[error(
        "nobody could invite any more without the key; name a machine that may, this one or another, while it runs: dunlin mesh delegate PEER"
    )]
    NobodyIssues,
    /// Whoever may issue without the key may soon issue no more.
    #[error(
        "nobody could invite any more without the key after {left_s} s, when the last delegation ends; name a machine that may for a day at least, while it runs: dunlin mesh delegate PEER --ttl 365d"
    )]
    EndsSoon {
        /// Until the last delegation ends, seconds.
        left_s: u64,
    },
    /// The key of one mesh on a machine of another.
    #[error("this machine belongs to mesh {here}, the key to mesh {key}; choose another directory with --home")]
    AnotherMesh {
        /// The mesh here.
        here: MeshId,
        /// The mesh of the key.
        key: MeshId,
    },
    /// Not a mesh key.
    #[error(transparent)]
    KeyText(#[from] mesh_key::Error),
    /// The certificate ended while the machine was away.
    #[error("this machine's certificate has expired; join again with a new invitation")]
    Expired,
    /// The membership was revoked.
    #[error(
        "this machine's membership was revoked; ask for a new invitation on a machine that may issue (where the mesh was created, or a delegate), then: dunlin join TOKEN"
    )]
    Revoked,
    /// The stored certificate is another peer's, or does not hold.
    #[error("the stored certificate does not hold: {0}")]
    Certificate(#[from] certificate::Error),
    /// The state directory.
    #[error(transparent)]
    State(#[from] state::Error),
    /// Issuing to oneself failed.
    #[error(transparent)]
    Issuer(#[from] issuer::Error),
}

/// A membership taken up.
pub struct Mesh {
    /// This peer's key.
    pub identity: Keypair,
    /// Who this peer is, and everything that it will learn of others.
    pub members: Members,
    /// Where the mesh key lies, and at delegates.
    pub issuer: Option<Issuer>,
}

/// Makes a mesh: its key, and the first certificate, with `roles`, for this peer. `now` is unix seconds.
///
/// # Errors
/// [`Error::AlreadyAMember`]; or the state directory fails.
pub fn create(state: &StateDir, roles: Roles, name: Option<Name>, now: u64) -> Result<Membership, Error> {
    if let Some(chain) = state.chain()? {
        let certificate = chain.certificate.peek().map_err(certificate::Error::from)?;
        return Err(Error::AlreadyAMember(certificate.mesh));
    }
    // Left alone when a crash came between key and certificate.
    if state.mesh_key()?.is_none() {
        state.store_mesh_key(&Keypair::generate_ed25519())?;
    }
    let issuer = Issuer::open(state)?.ok_or(Error::NotAMember)?;
    let chain = issuer.issue_own(roles, name, &RevocationList::default(), now)?;
    state.store_chain(&chain)?;
    Ok(chain.verify(now, &issuer.mesh())?)
}

/// Gives the holder of the mesh key another certificate, with `roles`, and with `name` unless it is to keep the one that
/// it has. `now` is unix seconds. A process that runs uses it from its next start on.
///
/// # Errors
/// [`Error::NotTheMeshKey`]; in no mesh yet; or the state directory fails.
pub fn reissue_own(state: &StateDir, roles: Roles, name: Option<Name>, now: u64) -> Result<Membership, Error> {
    let chain = state.chain()?.ok_or(Error::NotAMember)?;
    let certificate = chain.certificate.peek().map_err(certificate::Error::from)?;
    let mesh = certificate.mesh;
    let issuer = Issuer::open(state)?.filter(|issuer| issuer.mesh() == mesh && issuer.holds_mesh_key());
    let issuer = issuer.ok_or(Error::NotTheMeshKey(mesh))?;
    let revocations = revocations(state, &mesh, now)?;
    let chain = issuer.issue_own(roles, name.or(certificate.name), &revocations, now)?;
    state.store_chain(&chain)?;
    Ok(chain.verify(now, &mesh)?)
}

fn revocations(state: &StateDir, mesh: &MeshId, now: u64) -> Result<RevocationList, Error> {
    let mut revocations = RevocationList::default();
    revocations.expire(now);
    let (_, refused) = revocations.merge(state.revocations()?, mesh);
    if refused > 0 {
        tracing::warn!(refused, "stored revocations of another mesh, or damaged, left out");
    }
    Ok(revocations)
}

/// Takes up the stored membership at `now` (unix seconds). The holder of the mesh key renews its own certificate here.
///
/// # Errors
/// Says what is missing or has ended, and what to do.
pub fn load(state: &StateDir, now: u64) -> Result<Mesh, Error> {
    let identity = state.identity()?;
    let mut chain = state.chain()?.ok_or(Error::NotAMember)?;
    let certificate = chain.certificate.peek().map_err(certificate::Error::from)?;
    if certificate.subject != identity.public().to_peer_id() {
        return Err(certificate::Error::WrongSubject(certificate.subject).into());
    }
    let mesh = certificate.mesh;
    let revocations = revocations(state, &mesh, now)?;
    let issuer = Issuer::open(state)?.filter(|issuer| issuer.mesh() == mesh);
    if let Some(issuer) = &issuer
        && let Some(own) = renew_own(issuer, &chain, &revocations, now)?
    {
        state.store_chain(&own)?;
        chain = own;
    }
    let members = members(chain, mesh, revocations, now)?;
    Ok(Mesh { identity, members, issuer })
}

/// Whoever holds the mesh key is a member as long as it wants to be, however long it was away; a delegate as long as its
/// delegation lasts.
fn renew_own(issuer: &Issuer, chain: &Chain, revocations: &RevocationList, now: u64) -> Result<Option<Chain>, Error> {
    let certificate = chain.certificate.peek().map_err(certificate::Error::from)?;
    let own = chain.verify(now, &issuer.mesh());
    let holds = own.as_ref().is_ok_and(|own| !revocations.revokes(own));
    if issuer.holds_mesh_key() {
        let due = !holds || own.is_ok_and(|own| renewal::is_due(&own, now));
        return Ok(match due {
            true => Some(issuer.issue_own(certificate.roles, certificate.name, revocations, now)?),
            false => None,
        });
    }
    // One that holds is renewed where the mesh key lies, if that is reached in time. One that was revoked stays so.
    if !matches!(own, Err(certificate::Error::Expired { .. })) {
        return Ok(None);
    }
    match issuer.issue_own(certificate.roles, certificate.name, revocations, now) {
        Ok(chain) => Ok(Some(chain)),
        Err(error) => {
            tracing::warn!(%error, "this delegate cannot renew its own certificate");
            Ok(None)
        }
    }
}

fn members(chain: Chain, mesh: MeshId, revocations: RevocationList, now: u64) -> Result<Members, Error> {
    let members = Members::new(chain, mesh, revocations, now).map_err(|error| match error {
        certificate::Error::Expired { .. } => Error::Expired,
        other => other.into(),
    })?;
    if members.is_revoked(&members.own()) {
        return Err(Error::Revoked);
    }
    Ok(members)
}

#[cfg(test)]
mod tests;

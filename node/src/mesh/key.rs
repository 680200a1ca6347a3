//! The mesh key taken away from a machine, and brought to one.

use super::{Error, create, load, revocations};
use crate::{
    issuer::{Issuer, mesh_id},
    state::StateDir,
};
use dunlin_protocol::{
    certificate::{self, Membership},
    id::{MeshId, Name, Roles},
    mesh_key,
};
use libp2p::identity::Keypair;

/// The mesh key as text, and its mesh. Whoever has the text decides over the whole mesh.
///
/// # Errors
/// The key does not lie here, or cannot be read.
pub fn export(state: &StateDir) -> Result<(String, MeshId), Error> {
    let key = state.mesh_key()?.ok_or(Error::NoMeshKey)?;
    let mesh = mesh_id(&key)?;
    let no_key = |_| Error::NoMeshKey;
    let pair = key.try_into_ed25519().map_err(no_key)?;
    let seed: [u8; 32] = pair.secret().as_ref().try_into().map_err(|_| Error::NoMeshKey)?;
    Ok((mesh_key::to_text(&seed), mesh))
}

/// A delegation that ends sooner is none to rely on: once it has ended, nobody invites.
pub const DELEGATED_FOR_S: u64 = 24 * 60 * 60;

/// Whether the key can be removed: somebody may invite, for [`DELEGATED_FOR_S`] from `now` (unix seconds) at least, when it
/// is gone.
///
/// # Errors
/// [`Error::NobodyIssues`]; [`Error::EndsSoon`]; in no mesh; the key does not lie here.
pub fn may_remove(state: &StateDir, now: u64) -> Result<(), Error> {
    let (issuer, mesh) = holder(state, now)?;
    let delegations = issuer.delegations(&mesh.members.revocations(), now)?;
    match delegations.iter().map(|row| row.terms.not_after.saturating_sub(now)).max() {
        None => Err(Error::NobodyIssues),
        Some(left_s) if left_s < DELEGATED_FOR_S => Err(Error::EndsSoon { left_s }),
        Some(_) => Ok(()),
    }
}

/// Removes the key, once the caller has put its text in a safe place. This machine stays a member, and issues on if it
/// has a delegation of its own. `now` is unix seconds.
///
/// # Errors
/// As [`may_remove`]; the certificate without the key cannot be stored, or the key not be removed.
pub fn remove(state: &StateDir, now: u64) -> Result<(), Error> {
    may_remove(state, now)?;
    let (issuer, mesh) = holder(state, now)?;
    // Others must not ask here for what can't be given any more.
    let own = mesh.members.own();
    let chain = issuer.step_down(&own, state.delegation()?, &mesh.members.revocations(), now)?;
    state.store_chain(&chain)?;
    Ok(state.remove_mesh_key()?)
}

fn holder(state: &StateDir, now: u64) -> Result<(Issuer, super::Mesh), Error> {
    let mesh = load(state, now)?;
    let issuer = mesh.issuer.clone().filter(Issuer::holds_mesh_key).ok_or(Error::NoMeshKey)?;
    Ok((issuer, mesh))
}

/// Takes the key in `text` on a machine of its mesh, which issues from now on. On a machine of no mesh it makes a member of
/// it, with `roles` and `name`: so a mesh whose machines are all lost begins anew under its old key. `now` is unix seconds.
///
/// # Errors
/// Not a mesh key; the machine is in another mesh, or has another key; it cannot be stored.
pub fn import(state: &StateDir, text: &str, roles: Roles, name: Option<Name>, now: u64) -> Result<Membership, Error> {
    let seed = mesh_key::parse(text)?;
    let key = Keypair::ed25519_from_bytes(seed).map_err(|_| mesh_key::Error::Damaged)?;
    let mesh = mesh_id(&key)?;
    let chain = state.chain()?;
    if let Some(chain) = &chain {
        let own = chain.certificate.peek().map_err(certificate::Error::from)?;
        if own.mesh != mesh {
            return Err(Error::AnotherMesh { here: own.mesh, key: mesh });
        }
    }
    match state.mesh_key()? {
        Some(here) if here.public() == key.public() => {}
        Some(here) => {
            return Err(Error::AnotherMesh { here: mesh_id(&here)?, key: mesh });
        }
        None => {
            // Before the key, so that a database of another peer is told while nothing has changed.
            state.issuer_db(&mesh)?;
            state.store_mesh_key(&key)?;
        }
    }
    let Some(chain) = chain else { return create(state, roles, name, now) };
    let certificate = chain.certificate.peek().map_err(certificate::Error::from)?;
    let issuer = Issuer::open(state)?.ok_or(Error::NoMeshKey)?;
    let revocations = revocations(state, &mesh, now)?;
    let chain = issuer.issue_own(certificate.roles, certificate.name, &revocations, now)?;
    state.store_chain(&chain)?;
    Ok(chain.verify(now, &mesh)?)
}

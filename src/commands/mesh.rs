//! `dunlin mesh create|roles|show`.

use crate::{args::MeshCommand, args::Output, output};
use anyhow::{Result, anyhow};
use dunlin_node::{clock, control::Client, control::ClientError, control::Status, mesh, state::StateDir};
use dunlin_protocol::{
    certificate::Membership,
    id::{Name, Role, Roles},
};
use serde::Serialize;
use std::path::Path;

/// What a machine's membership looks like from outside.
#[derive(Serialize)]
struct Shown {
    mesh: String,
    peer: String,
    name: Option<Name>,
    roles: Vec<Role>,
    issuer: bool,
    /// Unix seconds.
    not_after: u64,
}

pub(crate) async fn run(command: MeshCommand, home: &Path) -> Result<()> {
    match command {
        MeshCommand::Create { name, roles, listing } => {
            let state = StateDir::open(home)?;
            let roles = if roles.is_empty() { first_roles() } else { roles.into_iter().collect() };
            let own = mesh::create(&state, roles, name, clock::unix_s()).map_err(|error| explain(error, &state))?;
            show(listing.output, &Shown::of(&own, true))
        }
        MeshCommand::Roles { roles, listing } => {
            let roles = roles.into_iter().collect();
            let own = mesh::reissue_own(&StateDir::open(home)?, roles, None, clock::unix_s())?;
            show(listing.output, &Shown::of(&own, true))
        }
        MeshCommand::Show(listing) => show(listing.output, &current(home).await?),
    }
}

/// Whoever made the mesh may have wanted another role.
fn explain(error: mesh::Error, state: &StateDir) -> anyhow::Error {
    match (&error, state.mesh_key()) {
        (mesh::Error::AlreadyAMember(mesh), Ok(Some(_))) => {
            anyhow!("this machine made mesh {mesh}; to change its roles: dunlin mesh roles agent,proxy,relay")
        }
        _ => error.into(),
    }
}

/// Roles of the machine that makes a mesh.
pub(crate) fn first_roles() -> Roles {
    Roles::from_iter([Role::Agent, Role::Proxy])
}

/// From the running node, or, when none runs, from the state directory.
async fn current(home: &Path) -> Result<Shown> {
    match Client::connect(home).await {
        Ok(mut client) => {
            let status: Status = client.get("/status").await?;
            Ok(Shown {
                mesh: status.mesh,
                peer: status.peer,
                name: status.name,
                roles: status.roles,
                issuer: status.issuer,
                not_after: status.not_after,
            })
        }
        Err(ClientError::NotRunning(_)) => {
            let mesh = mesh::load(&StateDir::open(home)?, clock::unix_s())?;
            Ok(Shown::of(&mesh.members.own(), mesh.issuer.is_some()))
        }
        Err(error) => Err(error.into()),
    }
}

impl Shown {
    fn of(own: &Membership, issuer: bool) -> Self {
        Self {
            mesh: own.mesh.to_string(),
            peer: own.peer.to_string(),
            name: own.name.clone(),
            roles: own.roles.iter().collect(),
            issuer,
            not_after: own.not_after,
        }
    }
}

fn show(output: Output, shown: &Shown) -> Result<()> {
    output::show(output, shown, |shown| {
        let roles: Vec<_> = shown.roles.iter().map(|role| role.as_str()).collect();
        let days = shown.not_after.saturating_sub(clock::unix_s()) / 86_400;
        let mut text = format!("mesh   {}\npeer   {}\n", shown.mesh, shown.peer);
        if let Some(name) = &shown.name {
            text.push_str(&format!("name   {name}\n"));
        }
        let issuer = if shown.issuer { ", and issues invitations" } else { "" };
        text.push_str(&format!("roles  {}{issuer}\nvalid  {days} more days, renewed by itself\n", roles.join(", ")));
        text
    })
}

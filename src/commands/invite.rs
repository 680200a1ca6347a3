//! `dunlin invite`: the bare token on standard output.

use super::connect;
use crate::{args::InviteArgs, exit::Failure, output};
use anyhow::{Context, Result, bail};
use dunlin_node::{
    clock,
    control::{Invitation, Invite},
    issuer::InvitationOptions,
    mesh,
    state::StateDir,
};
use dunlin_protocol::{id::Roles, pattern::Models};
use std::path::Path;

pub(crate) async fn run(args: InviteArgs, home: &Path) -> Result<()> {
    let token = if args.address.is_empty() { from_node(args, home).await? } else { offline(args, home)? };
    output::line(&token)?;
    Ok(())
}

async fn from_node(args: InviteArgs, home: &Path) -> Result<String> {
    let asked = Invite {
        roles: args.roles,
        models: (!args.models.is_empty()).then_some(args.models),
        ttl_s: Some(args.ttl.as_secs()),
        uses: Some(args.uses),
    };
    let answer: Invitation = connect(home).await?.post("/invite", &asked).await?;
    Ok(answer.token)
}

/// For scripts that hand out tokens before the first node runs.
fn offline(args: InviteArgs, home: &Path) -> Result<String> {
    let state = StateDir::open(home).context("--address makes a token without the running node")?;
    let mesh = mesh::load(&state, clock::unix_s())?;
    let Some(issuer) = mesh.issuer else {
        bail!(Failure::Usage(
            "this machine may not issue; run the command on a machine that may issue: where the mesh was created, or a delegate"
                .into()
        ));
    };
    issuer.check(&mesh.members.revocations(), clock::unix_s())?;
    let defaults = issuer.default_invitation();
    let options = InvitationOptions {
        roles: if args.roles.is_empty() { defaults.roles } else { Roles::from_iter(args.roles) },
        models: if args.models.is_empty() { defaults.models } else { Models::Only(args.models) },
        life: args.ttl,
        uses: args.uses,
    };
    let token = issuer.invite(&options, args.address, clock::unix_s(), &mut rand::make_rng::<rand::rngs::StdRng>())?;
    Ok(token.to_text()?)
}

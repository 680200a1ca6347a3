//! `dunlin invite`: the bare token on standard output.

use super::{connect, keys::path_segment};
use crate::{
    args::{InviteArgs, InviteCommand, Output},
    exit::Failure,
    output,
};
use anyhow::{Context, Result, bail};
use dunlin_node::{
    clock,
    control::{ClientError, Invitation, InvitationInfo, Invite},
    issuer::InvitationOptions,
    mesh,
    state::StateDir,
};
use dunlin_protocol::{id::Roles, pattern::Models};
use http::StatusCode;
use std::path::Path;

pub(crate) async fn run(mut args: InviteArgs, home: &Path) -> Result<()> {
    match args.command.take() {
        Some(InviteCommand::List(listing)) => return list(listing.output, home).await,
        Some(InviteCommand::Withdraw { id }) => return withdraw(&id, home).await,
        None => {}
    }
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
        namespaces: args.namespaces,
        keys: args.keys,
    };
    let answer: Invitation = connect(home).await?.post("/invite", &asked).await?;
    Ok(answer.token)
}

async fn list(output: Output, home: &Path) -> Result<()> {
    let made: Vec<InvitationInfo> = connect(home).await?.get("/invitations").await?;
    let now = clock::unix_s();
    output::show(output, &made, |made| {
        let state = |one: &InvitationInfo| match one {
            InvitationInfo { withdrawn: true, .. } => "withdrawn",
            InvitationInfo { not_after, .. } if *not_after < now => "ended",
            InvitationInfo { uses, used, .. } if used >= uses => "used up",
            _ => "open",
        };
        let rows = made.iter().map(|one| {
            let made = output::ago(now.saturating_sub(one.created));
            [one.id.clone(), one.roles.clone(), made, format!("{}/{}", one.used, one.uses), state(one).to_owned()]
        });
        output::table(["ID", "ROLES", "MADE", "USED", "STATE"], rows)
    })
}

async fn withdraw(id: &str, home: &Path) -> Result<()> {
    match connect(home).await?.delete::<InvitationInfo>(&format!("/invitations/{}", path_segment(id))).await {
        Ok(withdrawn) => Ok(output::line(&format!("withdrawn {}", withdrawn.id))?),
        Err(ClientError::Refused { status: StatusCode::NOT_FOUND, message }) => bail!(Failure::NotFound {
            what: "invitation".into(),
            hint: format!(": {message}\n  `dunlin invite list` shows the ids"),
        }),
        Err(error) => Err(error.into()),
    }
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
        namespaces: args.namespaces,
        keys: args.keys,
    };
    let token = issuer.invite(&options, args.address, clock::unix_s(), &mut rand::make_rng::<rand::rngs::StdRng>())?;
    Ok(token.to_text()?)
}

//! `dunlin mesh create|roles|show|delegate|undelegate|key`.

mod key;
mod secret;

use super::{connect, who};
use crate::{
    args::{DelegateArgs, MeshCommand, Output},
    output,
};
use anyhow::{Result, anyhow};
use dunlin_node::{
    clock,
    control::{Bounds, Client, ClientError, Delegate, IssuerInfo, Status, Undelegate},
    mesh,
    state::StateDir,
};
use dunlin_protocol::{
    certificate::{Authority, Membership},
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
    /// Those that are known here.
    issuers: Vec<IssuerInfo>,
}

pub(crate) async fn run(command: MeshCommand, home: &Path) -> Result<()> {
    match command {
        MeshCommand::Create { name, roles, listing } => {
            let state = StateDir::open(home)?;
            let roles = if roles.is_empty() { first_roles() } else { roles.into_iter().collect() };
            let own = mesh::create(&state, roles, name, clock::unix_s()).map_err(|error| explain(error, &state))?;
            show(listing.output, &Shown::of_holder(&own))
        }
        MeshCommand::Roles { roles, listing } => {
            let roles = roles.into_iter().collect();
            let own = mesh::reissue_own(&StateDir::open(home)?, roles, None, clock::unix_s())?;
            show(listing.output, &Shown::of_holder(&own))
        }
        MeshCommand::Show(listing) => show(listing.output, &current(home).await?),
        MeshCommand::Delegate(args) => delegate(args, home).await,
        MeshCommand::Secret(args) => secret::run(args, home).await,
        MeshCommand::Undelegate { peer } => undelegate(&peer, home).await,
        MeshCommand::Key { command } => key::run(command, home),
    }
}

async fn delegate(args: DelegateArgs, home: &Path) -> Result<()> {
    let mut client = connect(home).await?;
    let peer = who::expect(&mut client, &args.peer).await?.to_string();
    let asked = Delegate {
        peer: peer.clone(),
        roles: args.roles,
        models: (!args.models.is_empty()).then_some(args.models),
        life_s: Some(args.life.as_secs()),
        ttl_s: Some(args.ttl.as_secs()),
    };
    let given: Bounds = client.post("/delegate", &asked).await?;
    output::line(&format!("{peer} may issue: {}", bounds(&given)))?;
    let peers: Vec<dunlin_node::PeerInfo> = client.get("/peers").await?;
    let delegate = peers.into_iter().find(|other| other.peer == peer);
    let missing = delegate.is_some_and(|it| it.roles.iter().any(|role| !given.roles.contains(role)));
    if missing {
        output::note(
            "it has roles that it may not give, so without the mesh key it can't renew its own certificate; name them with --role as well, unless that is what you want",
        );
    }
    Ok(())
}

async fn undelegate(peer: &str, home: &Path) -> Result<()> {
    let mut client = connect(home).await?;
    let peer = who::expect(&mut client, peer).await?;
    let asked = Undelegate { peer: peer.to_string() };
    let issuers: Vec<IssuerInfo> = client.get("/issuers").await?;
    let was_delegate =
        issuers.iter().any(|issuer| issuer.peer == asked.peer && issuer.authority == Authority::Delegation);
    // Also where nothing is known of a delegation: it may have one that this machine never saw.
    client.post::<serde_json::Value>("/undelegate", &asked).await?;
    if !was_delegate {
        output::line(&format!("{peer} may not issue; no delegation of it that still counts was known here"))?;
        return Ok(());
    }
    output::line(&format!("{peer} may issue no more; the memberships that it gave have ended"))?;
    output::note("invite again whoever is to stay");
    Ok(())
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
            let issuers = client.get("/issuers").await?;
            Ok(Shown {
                mesh: status.mesh,
                peer: status.peer,
                name: status.name,
                roles: status.roles,
                issuer: status.issuer,
                not_after: status.not_after,
                issuers,
            })
        }
        Err(ClientError::NotRunning(_)) => {
            let now = clock::unix_s();
            let mesh = mesh::load(&StateDir::open(home)?, now)?;
            let own = mesh.members.own();
            let revocations = mesh.members.revocations();
            let Some(issuer) = mesh.issuer.filter(|issuer| issuer.check(&revocations, now).is_ok()) else {
                return Ok(Shown::of(&own, Vec::new()));
            };
            let Some(terms) = issuer.terms() else {
                let mut shown = Shown::of_holder(&own);
                let named = issuer.delegations(&revocations, now)?.into_iter();
                shown.issuers.extend(named.map(|row| IssuerInfo {
                    peer: row.terms.issuer.to_string(),
                    name: row.name,
                    authority: Authority::Delegation,
                    bounds: Some(Bounds::of(&row.terms)),
                }));
                return Ok(shown);
            };
            Ok(Shown::of(&own, vec![IssuerInfo::of(&own, Authority::Delegation, Some(Bounds::of(terms)))]))
        }
        Err(error) => Err(error.into()),
    }
}

impl Shown {
    /// A machine with the mesh key.
    fn of_holder(own: &Membership) -> Self {
        Self::of(own, vec![IssuerInfo::of(own, Authority::MeshKey, None)])
    }

    fn of(own: &Membership, issuers: Vec<IssuerInfo>) -> Self {
        let issuer = issuers.iter().any(|issuer| issuer.peer == own.peer.to_string());
        Self {
            mesh: own.mesh.to_string(),
            peer: own.peer.to_string(),
            name: own.name.clone(),
            roles: own.roles.iter().collect(),
            issuer,
            not_after: own.not_after,
            issuers,
        }
    }
}

fn show(output: Output, shown: &Shown) -> Result<()> {
    output::show(output, shown, |shown| {
        let roles: Vec<_> = shown.roles.iter().map(|role| role.as_str()).collect();
        let left = output::more(until(shown.not_after));
        let mut text = format!("mesh   {}\npeer   {}\n", shown.mesh, shown.peer);
        if let Some(name) = &shown.name {
            text.push_str(&format!("name   {name}\n"));
        }
        let issuer = if shown.issuer { ", and issues invitations" } else { "" };
        text.push_str(&format!("roles  {}{issuer}\nvalid  {left}, renewed by itself\n", roles.join(", ")));
        for issuer in &shown.issuers {
            let name = issuer.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let why = match (issuer.authority, &issuer.bounds) {
                (Authority::MeshKey, _) => "mesh key".to_owned(),
                (Authority::Delegation, Some(given)) => bounds(given),
                (Authority::Delegation, None) => "delegated".to_owned(),
            };
            text.push_str(&format!("issuer {}{name}: {why}\n", issuer.peer));
        }
        text
    })
}

/// Seconds until then.
fn until(unix_s: u64) -> u64 {
    unix_s.saturating_sub(clock::unix_s())
}

/// The most that a delegate may give, in words.
pub(super) fn bounds(given: &Bounds) -> String {
    let roles: Vec<_> = given.roles.iter().map(|role| role.as_str()).collect();
    let models = match &given.models {
        None => "all models".to_owned(),
        Some(patterns) => patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    let life = match given.life_s {
        days if days >= 86_400 => output::counted(usize::try_from(days / 86_400).unwrap_or(usize::MAX), "day"),
        seconds => format!("{seconds} s"),
    };
    let left = output::more(until(given.not_after));
    format!("roles {}; {models}; certificates of at most {life}; for {left}", roles.join(", "))
}

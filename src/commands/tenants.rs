//! `dunlin tenants`: whom keys belong to.

use super::keys::{Place, ask, get, path_segment, spread, told_models};
use crate::{
    args::{Output, TenantsArgs, TenantsCommand},
    output,
};
use anyhow::{Result, bail};
use dunlin_node::{clock, control::Client};
use dunlin_protocol::pattern::Pattern;
use dunlin_proxy::{
    control::Changed,
    keys::{Keys, NewTenant, Tenant, TenantChange},
};
use http::Method;
use std::path::Path;

pub(crate) async fn run(args: TenantsArgs, home: &Path) -> Result<()> {
    let command = args.command.unwrap_or(TenantsCommand::List(args.listing));
    match Place::open(home, matches!(command, TenantsCommand::Create { .. })).await? {
        Place::Node(mut client) => with_node(&mut client, command).await,
        Place::File { keys, .. } => with_file(command, &keys),
        Place::Nothing => match command {
            TenantsCommand::List(listing) => show(listing.output, &Vec::new()),
            _ => bail!("no tenant was made in {} yet: `dunlin tenants create` makes one", home.display()),
        },
    }
}

/// What a command does to a tenant that is there.
fn change(command: &TenantsCommand) -> Option<(&str, TenantChange, &'static str)> {
    let suspended = |suspended| TenantChange { suspended: Some(suspended), ..TenantChange::default() };
    Some(match command {
        TenantsCommand::Set { name, note, models } => {
            let models = told_models(models.clone());
            (name, TenantChange { note: note.clone(), models, suspended: None }, "changed")
        }
        TenantsCommand::Suspend { name } => (name, suspended(true), "suspended"),
        TenantsCommand::Resume { name } => (name, suspended(false), "resumed"),
        _ => return None,
    })
}

fn new(name: String, note: String, models: Vec<Pattern>) -> NewTenant {
    NewTenant { name, note, models: (!models.is_empty()).then_some(models) }
}

async fn with_node(client: &mut Client, command: TenantsCommand) -> Result<()> {
    let path = |name: &str| format!("/tenants/{}", path_segment(name));
    if let Some((name, change, word)) = change(&command) {
        return done(word, ask(client, Method::PATCH, &path(name), &change).await?);
    }
    match command {
        TenantsCommand::Create { name, note, models } => {
            done("created", ask(client, Method::POST, "/tenants", &new(name, note, models)).await?)
        }
        TenantsCommand::Remove { name, keys } => {
            let with_keys = if keys { "?keys=true" } else { "" };
            done("removed", ask(client, Method::DELETE, &(path(&name) + with_keys), &()).await?)
        }
        TenantsCommand::List(listing) => show(listing.output, &get(client, "/tenants").await?),
        TenantsCommand::Set { .. } | TenantsCommand::Suspend { .. } | TenantsCommand::Resume { .. } => Ok(()),
    }
}

fn with_file(command: TenantsCommand, keys: &Keys) -> Result<()> {
    let here = |now: Tenant| Changed { now, spread: Default::default() };
    if let Some((name, change, word)) = change(&command) {
        return done(word, here(keys.edit_tenant(name, change)?.0));
    }
    match command {
        TenantsCommand::Create { name, note, models } => {
            done("created", here(keys.make_tenant(new(name, note, models))?.0))
        }
        TenantsCommand::Remove { name, keys: with_keys } => {
            done("removed", here(keys.remove_tenant(&name, with_keys)?.0))
        }
        TenantsCommand::List(listing) => show(listing.output, &keys.tenants()),
        TenantsCommand::Set { .. } | TenantsCommand::Suspend { .. } | TenantsCommand::Resume { .. } => Ok(()),
    }
}

fn done(word: &str, changed: Changed<Tenant>) -> Result<()> {
    spread(&changed.spread);
    Ok(output::line(&format!("{word} {}", changed.now.name))?)
}

fn show(output: Output, tenants: &Vec<Tenant>) -> Result<()> {
    let now = clock::unix_s();
    output::show(output, tenants, |tenants| {
        let rows = tenants.iter().map(|tenant| {
            let made =
                if tenant.created == 0 { String::new() } else { output::ago(now.saturating_sub(tenant.created)) };
            let patterns = tenant.models.iter().flatten().map(Pattern::as_str).collect::<Vec<_>>().join(" ");
            let models = if tenant.models.is_none() { "all".to_owned() } else { patterns };
            let state = tenant.suspended.map(|at| format!("suspended {}", output::ago(now.saturating_sub(at))));
            let keys = tenant.keys.to_string();
            [tenant.name.clone(), keys, models, made, state.unwrap_or_default(), tenant.note.clone()]
        });
        output::table(["NAME", "KEYS", "MODELS", "MADE", "STATE", "NOTE"], rows)
    })
}

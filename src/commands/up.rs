//! `dunlin up`: everything on one machine.

use super::{mesh::first_roles, service, service::Plan, service::Service};
use crate::{
    args::UpArgs,
    output,
    settings::{self, EndpointSettings, File, NodeSettings},
};
use anyhow::{Result, bail};
use dunlin_agent::{EngineConfig, Source, demo, discover};
use dunlin_node::{clock, issuer::InvitationOptions, mesh, state::StateDir};
use dunlin_protocol::{
    id::{Role, Roles},
    runtime::Catalogue,
};
use dunlin_proxy::keys::Keys;
use std::path::Path;

pub(crate) async fn run(args: UpArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let endpoint = EndpointSettings::resolve(&args.endpoint, &file)?;
    let asked = settings::engines(&args.engines, file)?;
    let state = StateDir::open(home)?;
    let roles = membership(&state, &node)?;
    let engines = match roles.contains(Role::Agent) {
        false if asked.is_empty() => Vec::new(),
        false => bail!(
            "this machine's certificate lacks the role agent, so it can't offer engines; join again with an invitation for that role"
        ),
        true if asked.is_empty() => found_or_demo().await?,
        true => service::engine_configs(asked)?,
    };
    let endpoint = roles.contains(Role::Proxy).then_some(endpoint);
    let service = Service::start(Plan { state, roles, node, engines, endpoint }).await?;
    greet(&service).await;
    service.run().await
}

/// The roles of this machine's certificate; a machine without one makes a mesh.
fn membership(state: &StateDir, node: &NodeSettings) -> Result<Roles> {
    let now = clock::unix_s();
    match mesh::load(state, now) {
        Ok(mesh) => Ok(mesh.members.own().roles),
        Err(mesh::Error::NotAMember) => {
            let own = mesh::create(state, first_roles(), node.name.clone(), now)?;
            output::line(&format!("made a new mesh; its key lies in {}", state.path().display()));
            Ok(own.roles)
        }
        Err(error) => Err(error.into()),
    }
}

/// Engines on the usual local ports, or the demo engine.
async fn found_or_demo() -> Result<Vec<EngineConfig>> {
    let found = discover(&Catalogue::built_in()?).await;
    if found.is_empty() {
        output::line(
            "engine    no engine was found on the usual ports: the built-in demo engine answers (model `demo`)",
        );
        output::line("          for a real one: dunlin up --engine URL, or --launch RUNTIME -- ARGS");
        return Ok(vec![EngineConfig::new(Source::Demo(demo::Config::default()))]);
    }
    for engine in &found {
        let models = output::counted(engine.models.len(), "model");
        output::line(&format!("engine    {} ({}, {models})", engine.url, engine.runtime));
    }
    Ok(found.into_iter().map(EngineConfig::from).collect())
}

/// What a person needs next: where to ask, with which key, and how another machine gets in.
async fn greet(service: &Service) {
    service::print_addresses(service);
    if let (Some(keys), false) = (&service.keys, service.process.no_auth) {
        print_key(keys);
    }
    if let Ok(token) = service.handle.invite(InvitationOptions::default()).await
        && let Ok(token) = token.to_text()
    {
        output::line(&format!("join      dunlin join {token}"));
        output::line("          (one other machine, within a day; then `dunlin up` there)");
    }
    output::line("try       dunlin chat");
}

/// The first start makes a key; later ones can't show it again.
fn print_key(keys: &Keys) {
    if keys.any() {
        return output::line("key       one you have already; `dunlin keys create` makes another");
    }
    match keys.create("first") {
        Ok(created) => output::line(&format!("key       {} (not shown again)", created.key)),
        Err(error) => output::note(&format!("warning: could not make a key: {error}")),
    }
}

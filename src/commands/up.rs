//! `dunlin up`: everything on one machine.

use super::{
    mesh::first_roles,
    service::{self, Engines, Plan, Service},
};
use crate::{
    args::{EngineArgs, UpArgs},
    output,
    settings::{self, EndpointSettings, File, NodeSettings},
};
use anyhow::{Result, bail};
use dunlin_agent::{EngineConfig, Source, demo};
use dunlin_node::{clock, mesh, state::StateDir};
use dunlin_protocol::id::{Role, Roles};
use dunlin_proxy::keys::Keys;
use std::path::Path;

pub(crate) async fn run(args: UpArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let endpoint = EndpointSettings::resolve(&args.endpoint, &file)?;
    let metrics_http = settings::metrics_http(&args.engines, &file);
    let state = StateDir::open(home)?;
    let (roles, issuer) = membership(&state, &node)?;
    let engines = match roles.contains(Role::Agent) {
        true => offered(&args.engines, file, issuer).await?,
        false if settings::engines(&args.engines, file)?.is_empty() => Engines::default(),
        false => bail!(
            "this machine's certificate lacks the role agent, so it can't offer engines; join again with an invitation for that role"
        ),
    };
    let endpoint = roles.contains(Role::Proxy).then_some(endpoint);
    if !roles.contains(Role::Agent) && endpoint.is_none() {
        bail!(
            "this machine's certificate has neither the role agent nor proxy; join again with an invitation for one of them"
        );
    }
    let service = Service::start(Plan { state, roles, node, engines, metrics_http, endpoint }).await?;
    greet(&service).await;
    service.run().await
}

/// The roles of this machine's certificate, and whether it holds the mesh key; a machine without one makes a mesh.
fn membership(state: &StateDir, node: &NodeSettings) -> Result<(Roles, bool)> {
    let now = clock::unix_s();
    match mesh::load(state, now) {
        Ok(mesh) => {
            let own = mesh.members.own();
            if node.name.is_some() && node.name != own.name {
                output::note(
                    "--name is ignored: a name stands in the certificate; give it to `dunlin join` or `mesh create`",
                );
            }
            Ok((own.roles, mesh.issuer.is_some_and(|issuer| issuer.holds_mesh_key())))
        }
        Err(mesh::Error::NotAMember) => {
            let own = mesh::create(state, first_roles(), node.name.clone(), now)?;
            output::line(&format!("made a new mesh; its key lies in {}", state.path().display()));
            Ok((own.roles, true))
        }
        Err(error) => Err(error.into()),
    }
}

/// Engines that were named, or else those on the usual local ports. Where there is none, the machine that made the mesh
/// shows it with the demo engine until there is; one that joined only asks, or clients would get invented text from it
/// beside real answers from others.
async fn offered(args: &EngineArgs, file: File, made_the_mesh: bool) -> Result<Engines> {
    let mut engines = Engines::resolve(args, file).await?;
    engines.print_found();
    if engines.list.is_empty() && !made_the_mesh {
        output::line("engine    none on the usual ports: this machine only asks until one comes up there;");
        output::line("          --engine URL or --launch RUNTIME offers another");
    } else if engines.list.is_empty() {
        output::line("engine    no engine was found on the usual ports: until one comes up there, the built-in demo");
        output::line("          engine answers (model `demo`)");
        output::line("          another real one: dunlin up --engine URL, or --launch RUNTIME -- ARGS");
        engines.list.push(EngineConfig { stand_in: true, ..EngineConfig::new(Source::Demo(demo::Config::default())) });
    }
    Ok(engines)
}

/// What a person needs next: where to ask, with which key, and how another machine gets in.
async fn greet(service: &Service) {
    service::print_addresses(service);
    if let (Some(keys), false) = (&service.keys, service.process.no_auth) {
        print_key(keys);
    }
    if let Ok(invitation) = service.handle.default_invitation()
        && let Ok(token) = service.handle.invite(invitation).await
        && let Ok(token) = token.to_text()
    {
        output::line(&format!("join      dunlin join {token}"));
        output::line("          (one other machine, within a day; then `dunlin up` there)");
    }
    match service.process.endpoint {
        Some(_) => output::line("try       dunlin chat"),
        None => output::line("endpoint  none: this machine's certificate lacks the role proxy"),
    }
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

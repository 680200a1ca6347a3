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
use dunlin_node::{
    clock, mesh,
    state::{FailedJoin, StateDir},
};
use dunlin_protocol::id::{Role, Roles};
use dunlin_proxy::keys::Keys;
use std::{
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

pub(crate) async fn run(args: UpArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let endpoint = EndpointSettings::resolve(&args.endpoint, &file)?;
    let metrics_http = settings::metrics_http(&args.engines, &file);
    let mut summary = Vec::new();
    let (state, roles, engines) = match member(home)? {
        Some(state) => {
            let (roles, issuer) = membership(&state, &node)?;
            let engines = match roles.contains(Role::Agent) {
                true => offered(&args.engines, file, issuer, &mut summary).await?,
                false if settings::engines(&args.engines, file)?.is_empty() => Engines::default(),
                false => bail!(
                    "this machine's certificate lacks the role agent, so it can't offer engines; join again with a token of `dunlin invite --role agent,proxy`"
                ),
            };
            (state, roles, engines)
        }
        // A mesh can't be unmade, so what may fail comes before it.
        None => {
            let engines = offered(&args.engines, file, true, &mut summary).await?;
            let (state, roles) = new_mesh(home, &node, &endpoint, metrics_http)?;
            summary.insert(0, format!("made a new mesh; its key lies in {}", home.display()));
            (state, roles, engines)
        }
    };
    let endpoint = roles.contains(Role::Proxy).then_some(endpoint);
    if !roles.contains(Role::Agent) && endpoint.is_none() {
        bail!(
            "this machine's certificate has neither the role agent nor proxy; join again with a token of `dunlin invite --role agent,proxy`"
        );
    }
    let service = Service::start(Plan { state, roles, node, engines, metrics_http, endpoint }).await?;
    summary.extend(service::address_lines(&service));
    summary.extend(next_steps(&service, is_journal()).await);
    output::block(&summary);
    service.run().await
}

/// The state directory of a machine that made or joined a mesh; `None` where there is no membership yet.
fn member(home: &Path) -> Result<Option<StateDir>> {
    if !home.exists() {
        return Ok(None);
    }
    let state = StateDir::open(home)?;
    if state.chain()?.is_some() {
        return Ok(Some(state));
    }
    match state.failed_join()? {
        Some(failed) => bail!(instead_of_joining(&failed, clock::unix_s())),
        None => Ok(None),
    }
}

/// Whoever failed to join would hardly want another mesh without having said so.
fn instead_of_joining(failed: &FailedJoin, now: u64) -> String {
    let mesh = failed.mesh.as_ref().map(|mesh| format!(" mesh {mesh}")).unwrap_or_default();
    let ago = output::ago(now.saturating_sub(failed.at));
    let cause = failed.cause.lines().next().unwrap_or_default();
    format!(
        "this machine is in no mesh: `dunlin join`{mesh} failed {ago} ({cause}), and `dunlin up` would make another mesh\n  \
         to join after all:   dunlin join TOKEN && dunlin up\n  \
         for a mesh of its own: dunlin mesh create && dunlin up"
    )
}

fn new_mesh(
    home: &Path,
    node: &NodeSettings,
    endpoint: &EndpointSettings,
    metrics_http: Option<SocketAddr>,
) -> Result<(StateDir, Roles)> {
    service::check_addresses(home, node, endpoint, metrics_http)?;
    let state = StateDir::open(home)?;
    let own = mesh::create(&state, first_roles(), node.name.clone(), clock::unix_s())?;
    Ok((state, own.roles))
}

/// The roles of this machine's certificate, and whether it holds the mesh key.
fn membership(state: &StateDir, node: &NodeSettings) -> Result<(Roles, bool)> {
    let mesh = mesh::load(state, clock::unix_s())?;
    let own = mesh.members.own();
    if node.name.is_some() && node.name != own.name {
        output::note("--name is ignored: a name stands in the certificate; give it to `dunlin join` or `mesh create`");
    }
    Ok((own.roles, mesh.issuer.is_some_and(|issuer| issuer.holds_mesh_key())))
}

/// Engines that were named, or else those on the usual local ports. Where there is none, the machine that made the mesh
/// shows it with the demo engine until there is; one that joined only asks, or clients would get invented text from it
/// beside real answers from others.
async fn offered(args: &EngineArgs, file: File, made_the_mesh: bool, summary: &mut Vec<String>) -> Result<Engines> {
    let mut engines = Engines::resolve(args, file).await?;
    summary.extend(engines.found_lines());
    if engines.list.is_empty() {
        let meanwhile = match made_the_mesh {
            true => "the built-in demo engine answers (model `demo`) until one comes up",
            false => "this machine only asks until one comes up",
        };
        summary.push(format!("engine    none on the usual ports: {meanwhile}"));
        summary.push("          elsewhere: dunlin up --engine URL, or --launch RUNTIME -- ARGS".to_owned());
    }
    if engines.list.is_empty() && made_the_mesh {
        engines.list.push(EngineConfig { stand_in: true, ..EngineConfig::new(Source::Demo(demo::Config::default())) });
    }
    Ok(engines)
}

/// What a person needs next: where to ask, with which key, and how another machine gets in. A `journal` keeps what it is
/// told, and many may read it: no key and no token there.
async fn next_steps(service: &Service, journal: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(keys), false) = (&service.keys, service.process.no_auth) {
        lines.push(key_line(keys, journal));
    }
    if service.handle.issues() && journal {
        lines.push("join      `dunlin invite` makes a token for another machine".to_owned());
    } else if let Ok(invitation) = service.handle.default_invitation()
        && let Ok(token) = service.handle.invite(invitation).await
        && let Ok(token) = token.to_text()
    {
        lines.push(format!("join      dunlin join {token}"));
        lines.push("          (one other machine, within a day; then `dunlin up` there)".to_owned());
    }
    lines.push(match service.process.endpoint {
        Some(_) => "try       dunlin chat".to_owned(),
        None => "endpoint  none: this machine's certificate lacks the role proxy; join again with a token of `dunlin invite --role \
                 agent,proxy`"
            .to_owned(),
    });
    lines
}

/// The first start makes a key; later ones can't show it again.
fn key_line(keys: &Keys, journal: bool) -> String {
    if keys.any() {
        return "key       one you have already; `dunlin keys create` makes another".to_owned();
    }
    if journal {
        return "key       none yet; `dunlin keys create` makes one".to_owned();
    }
    match keys.create("first") {
        Ok(created) => format!("key       {} (not shown again)", created.key),
        Err(error) => format!("key       none: {error}"),
    }
}

/// Whether standard output goes to systemd's journal: it says so by device and inode (systemd.exec(5), `JOURNAL_STREAM`).
fn is_journal() -> bool {
    let output = PathBuf::from("/proc/self/fd/1");
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    std::fs::metadata(output).is_ok_and(|file| told == format!("{}:{}", file.dev(), file.ino()))
}

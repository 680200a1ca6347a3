//! `dunlin orchestrator`: keeps the replicas of every Playground of a Kubernetes cluster running. With a membership it is a
//! part of the mesh while it leads: it admits the pods, sees which replicas serve, and takes jobs from operators.

mod page;
mod part;

use super::service;
use crate::{
    args::OrchestratorArgs,
    output,
    settings::{File, NodeSettings},
    signals,
};
use anyhow::{Context, Result};
use dunlin_k8s::{
    controller::{self, Config, Metrics, Terms},
    jobs::{Jobs, logs::Agents, routes::routes},
    mesh::Readiness,
    pods::Accounts,
    settings::{Patience, Settings},
};
use dunlin_node::{clock, mesh, state::StateDir};
use dunlin_protocol::id::{MeshId, PeerId, Role};
use part::{Part, Setup};
use std::{path::Path, sync::Arc};

/// Name of the lease.
const LEASE: &str = "dunlin-orchestrator";

pub(crate) async fn run(args: OrchestratorArgs, home: &Path) -> Result<()> {
    let settings = args.settings.as_deref().map_or_else(|| Ok(Settings::default()), read)?;
    let cluster = kube::Config::infer()
        .await
        .context("no cluster is known: run this in a pod, or set KUBECONFIG to a file with one")?;
    let mut config = Config {
        settings,
        patience: Patience::default(),
        namespace: args.namespace,
        identity: args.identity.map_or_else(host, Ok)?,
        lease_namespace: args.lease_namespace.unwrap_or_else(|| cluster.default_namespace.clone()),
        lease: LEASE.to_owned(),
        terms: Terms::default(),
        metrics: Metrics::default(),
    };
    let stop = signals::shutdown(|| async {})?;
    if let Some(address) = args.metrics_http {
        let listener = page::bind(address).await?;
        tokio::spawn(page::serve(listener, config.metrics.clone(), stop.clone()));
    }
    let client = dunlin_k8s::connect(cluster).context("the cluster can't be spoken to")?;
    tracing::info!(identity = config.identity, namespace = config.namespace, "orchestrator; waits for the lease");
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    if let Some(from) = &args.membership
        && StateDir::open(home)?.adopt(from)?
    {
        tracing::info!(from = %from.display(), "took its membership over");
    }
    let Some((mesh, peer)) = membership(home, &node)? else {
        output::note(
            "no membership: replicas are judged by their readiness alone, and nobody is admitted; see docs/kubernetes.md",
        );
        controller::run(client, config, Arc::new(Readiness), stop).await;
        return Ok(());
    };
    config.settings.mesh.get_or_insert(mesh.to_string());
    if config.settings.orchestrators.is_empty() {
        let reached = args.address.into_iter().map(|address| address.with_p2p(peer).unwrap_or_else(|address| address));
        config.settings.orchestrators = reached.map(|address| address.to_string()).collect();
    }
    let accounts =
        Accounts { namespace: config.lease_namespace.clone(), proxy: args.proxy_account, relay: args.relay_account };
    let (namespace, auto) = (config.namespace.clone(), config.settings.auto_models.clone());
    let (jobs, agents) = (Jobs::new(client.clone(), args.cluster, namespace, auto), Agents::default());
    let routes = routes(jobs, agents.clone());
    let setup = Setup { home: home.to_owned(), client: client.clone(), accounts, node, routes, agents };
    let part = Arc::new(Part::default());
    let leading = controller::run(client, config, part.clone(), stop.clone());
    tokio::join!(leading, part.take(setup, stop));
    Ok(())
}

/// The mesh and this peer, if it is a member.
///
/// # Errors
/// It is one and may not be an orchestrator.
fn membership(home: &Path, node: &NodeSettings) -> Result<Option<(MeshId, PeerId)>> {
    let state = StateDir::open(home)?;
    if state.chain()?.is_none() {
        return Ok(None);
    }
    service::require(&state, node, Role::Orchestrator)?;
    let own = mesh::load(&state, clock::unix_s())?.members.own();
    Ok(Some((own.mesh, own.peer)))
}

fn read(path: &Path) -> Result<Settings> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} can't be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}: these are no settings of an orchestrator", path.display()))
}

fn host() -> Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    anyhow::ensure!(!name.is_empty(), "this host has no name: say who this orchestrator is with --identity");
    Ok(name)
}

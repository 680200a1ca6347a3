//! `dunlin orchestrator`: keeps the replicas of every Playground of a Kubernetes cluster running.

use crate::{args::OrchestratorArgs, signals};
use anyhow::{Context, Result};
use dunlin_k8s::{
    controller::{self, Config, Terms},
    mesh::Readiness,
    settings::{Patience, Settings},
};
use std::{path::Path, sync::Arc};

/// Name of the lease.
const LEASE: &str = "dunlin-orchestrator";

pub(crate) async fn run(args: OrchestratorArgs) -> Result<()> {
    let settings = args.settings.as_deref().map_or_else(|| Ok(Settings::default()), read)?;
    let cluster = kube::Config::infer()
        .await
        .context("no cluster is known: run this in a pod, or set KUBECONFIG to a file with one")?;
    let config = Config {
        settings,
        patience: Patience::default(),
        namespace: args.namespace,
        identity: args.identity.map_or_else(host, Ok)?,
        lease_namespace: args.lease_namespace.unwrap_or_else(|| cluster.default_namespace.clone()),
        lease: LEASE.to_owned(),
        terms: Terms::default(),
    };
    let stop = signals::shutdown(|| async {})?;
    let client = dunlin_k8s::connect(cluster).context("the cluster can't be spoken to")?;
    tracing::info!(identity = config.identity, namespace = config.namespace, "orchestrator; waits for the lease");
    controller::run(client, config, Arc::new(Readiness), stop).await;
    Ok(())
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

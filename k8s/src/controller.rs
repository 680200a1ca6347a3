//! The controller: watches in, decisions in one place, calls out.
//!
//! One task decides. It follows the watches, and when something about a Playground has changed it looks at all that
//! have, plans them together, and gives each its work: a list of calls, made by a task of its own, one at a time for
//! each Playground. What came of it is a fact like any other. At rest there is no call but for the lease and the watches.

mod facts;
mod lead;
mod lease;
mod metrics;
mod outcome;
mod pass;
mod prepare;
mod schedule;
mod tables;
mod wanted;
mod work;

pub use lease::{Leadership, Terms};
pub use metrics::Metrics;

use crate::{
    mesh::Mesh,
    settings::{Patience, Settings},
};
use kube::Client;
use std::{fmt, sync::Arc};
use tokio_util::sync::CancellationToken;

/// What an orchestrator is made from.
#[derive(Clone)]
pub struct Config {
    /// What is the same for all replicas.
    pub settings: Settings,
    /// How patient it is.
    pub patience: Patience,
    /// The only namespace that it looks after; all of them if not set.
    pub namespace: Option<String>,
    /// Who it is, for the lease and in Events.
    pub identity: String,
    /// Where its lease lies.
    pub lease_namespace: String,
    /// Name of the lease.
    pub lease: String,
    /// How the lease is held.
    pub terms: Terms,
    /// What is counted.
    pub metrics: Metrics,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("identity", &self.identity).field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// Runs until `stop`: waits for the lease, and leads while it holds it.
pub async fn run(client: Client, config: Config, mesh: Arc<dyn Mesh>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let Some(mut leadership) = Leadership::acquire(client.clone(), &config, &stop).await else { break };
        tracing::info!(lease = config.lease, "leads");
        mesh.leads(true);
        config.metrics.leads(true);
        let leader = lead::lead(client.clone(), config.clone(), mesh.clone(), stop.clone());
        tokio::select! {
            () = leadership.lost() => tracing::warn!("the lease is lost: another orchestrator leads"),
            () = leader => {}
        }
        mesh.leads(false);
        config.metrics.leads(false);
        if stop.is_cancelled() {
            leadership.release().await;
        }
    }
}

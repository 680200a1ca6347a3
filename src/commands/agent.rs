//! `dunlin agent`: engines without an endpoint.

use super::service::{self, Engines, Plan, Service};
use crate::{
    args::AgentArgs,
    output,
    settings::{self, File, NodeSettings},
};
use anyhow::Result;
use dunlin_node::state::StateDir;
use dunlin_protocol::id::{Role, Roles};
use std::path::Path;

pub(crate) async fn run(args: AgentArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let metrics_http = settings::metrics_http(&args.engines, &file);
    let state = StateDir::open(home)?;
    super::pod_join::ensure(&state, &args.pod, &node.peers).await?;
    service::require(&state, &node, Role::Agent)?;
    let engines = Engines::resolve(&args.engines, file).await?;
    let mut lines = engines.found_lines();
    if engines.list.is_empty() {
        lines.push("engine    none at the usual local ports yet; one that comes up there is taken in".to_owned());
        lines.push("          elsewhere: --engine URL, --discover PORT, or --launch RUNTIME -- ARGS".to_owned());
    }
    let roles = Roles::from_iter([Role::Agent]);
    let service = Service::start(Plan { state, roles, node, engines, metrics_http, endpoint: None }).await?;
    lines.extend(service::address_lines(&service));
    output::block(&lines);
    service.run().await
}

//! `dunlin agent`: engines without an endpoint.

use super::{service, service::Plan, service::Service};
use crate::{
    args::AgentArgs,
    exit::Failure,
    settings::{self, File, NodeSettings},
};
use anyhow::{Result, bail};
use dunlin_agent::{EngineConfig, discover};
use dunlin_node::state::StateDir;
use dunlin_protocol::{
    id::{Role, Roles},
    runtime::Catalogue,
};
use std::path::Path;

pub(crate) async fn run(args: AgentArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let metrics_http = settings::metrics_http(&args.engines, &file);
    let asked = settings::engines(&args.engines, file)?;
    let state = StateDir::open(home)?;
    service::require(&state, &node, Role::Agent)?;
    let engines = if asked.is_empty() { found().await? } else { service::engine_configs(asked)? };
    let roles = Roles::from_iter([Role::Agent]);
    let service = Service::start(Plan { state, roles, node, engines, metrics_http, endpoint: None }).await?;
    service::print_addresses(&service);
    service.run().await
}

async fn found() -> Result<Vec<EngineConfig>> {
    let found = discover(&Catalogue::built_in()?).await;
    if found.is_empty() {
        bail!(Failure::Usage(
            "no engine was found on the usual local ports; name one with --engine URL, or start one with \
             --launch RUNTIME -- ARGS"
                .into()
        ));
    }
    Ok(found.into_iter().map(EngineConfig::from).collect())
}

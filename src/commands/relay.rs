//! `dunlin relay`: carry connections between members that cannot reach each other.

use super::{service, service::Plan, service::Service};
use crate::{
    args::RelayArgs,
    output,
    settings::{File, NodeSettings},
};
use anyhow::Result;
use dunlin_node::state::StateDir;
use dunlin_protocol::id::{Role, Roles};
use std::path::Path;

pub(crate) async fn run(args: RelayArgs, home: &Path) -> Result<()> {
    let node = NodeSettings::resolve(&args.node, &File::read(args.node.config.as_deref())?)?;
    let state = StateDir::open(home)?;
    super::pod_join::ensure(&state, &args.pod, &node.peers).await?;
    service::require(&state, &node, Role::Relay)?;
    let roles = Roles::from_iter([Role::Relay]);
    let engines = service::Engines::default();
    let service = Service::start(Plan { state, roles, node, engines, metrics_http: None, endpoint: None }).await?;
    output::block(&service::address_lines(&service));
    service.run().await
}

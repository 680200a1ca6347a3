//! `dunlin proxy`: an endpoint without engines.

use super::{service, service::Plan, service::Service};
use crate::{
    args::ProxyArgs,
    output,
    settings::{EndpointSettings, File, NodeSettings},
};
use anyhow::Result;
use dunlin_node::state::StateDir;
use dunlin_protocol::id::{Role, Roles};
use std::path::Path;

pub(crate) async fn run(args: ProxyArgs, home: &Path) -> Result<()> {
    let file = File::read(args.node.config.as_deref())?;
    let node = NodeSettings::resolve(&args.node, &file)?;
    let endpoint = Some(EndpointSettings::resolve(&args.endpoint, &file)?);
    let state = StateDir::open(home)?;
    super::pod_join::ensure(&state, &args.pod, &node.peers).await?;
    service::require(&state, &node, Role::Proxy)?;
    let roles = Roles::from_iter([Role::Proxy]);
    let engines = service::Engines::default();
    let service = Service::start(Plan { state, roles, node, engines, metrics_http: None, endpoint }).await?;
    output::block(&service::address_lines(&service));
    if service.keys.as_ref().is_some_and(|keys| !keys.any()) && !service.process.no_auth {
        output::note("there is no key yet: `dunlin keys create` makes one");
    }
    service.run().await
}

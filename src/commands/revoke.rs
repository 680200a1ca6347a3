//! `dunlin revoke PEER`: end a membership everywhere.

use super::connect;
use crate::output;
use anyhow::Result;
use dunlin_node::control::Revoke;
use dunlin_protocol::id::PeerId;
use std::path::Path;

pub(crate) async fn run(peer: PeerId, home: &Path) -> Result<()> {
    let asked = Revoke { peer: peer.to_string() };
    connect(home).await?.post::<serde_json::Value>("/revoke", &asked).await?;
    output::line(&format!("revoked {peer}"));
    Ok(())
}

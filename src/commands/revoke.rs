//! `dunlin revoke PEER`: end a membership everywhere.

use super::{connect, who};
use crate::{exit::Failure, output};
use anyhow::{Result, bail};
use dunlin_node::{
    PeerInfo,
    control::{IssuerInfo, Revoke, Status},
};
use std::path::Path;

pub(crate) async fn run(peer: &str, home: &Path) -> Result<()> {
    let mut client = connect(home).await?;
    let peer = who::expect(&mut client, peer).await?;
    let own: Status = client.get("/status").await?;
    if own.peer == peer.to_string() {
        bail!(Failure::Usage("this is this machine itself; revoke it on another one that may issue".into()));
    }
    let known: Vec<PeerInfo> = client.get("/peers").await?;
    let is_known = known.iter().any(|other| other.peer == peer.to_string());
    let issuers: Vec<IssuerInfo> = client.get("/issuers").await?;
    let was_issuer = issuers.iter().any(|issuer| issuer.peer == peer.to_string());
    let done: serde_json::Value = client.post("/revoke", &Revoke { peer: peer.to_string() }).await?;
    output::line(&format!("revoked {peer}"))?;
    if done["already"] == true {
        output::note("it was revoked already");
        return Ok(());
    }
    // The mesh key's word reaches whoever it is; a delegate that has not met the peer answers with an error.
    if !is_known && own.delegation.is_none() {
        output::note("no such member is known here; it is revoked all the same");
    }
    if was_issuer {
        output::note("its right to issue ended as well, and so did the memberships that it gave");
    }
    Ok(())
}

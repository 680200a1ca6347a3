//! `dunlin peers`: the members that this node knows.

use super::connect;
use crate::{args::Output, output};
use anyhow::Result;
use dunlin_node::PeerInfo;
use dunlin_protocol::{announcement::ReplicaState, id::ModelId};
use std::path::Path;

pub(crate) async fn run(home: &Path, output: Output) -> Result<()> {
    let peers: Vec<PeerInfo> = connect(home).await?.get("/peers").await?;
    output::show(output, &peers, |peers| {
        let rows = peers.iter().map(row);
        output::table(["PEER", "NAME", "ROLES", "STATE", "RTT", "SERVES"], rows)
    })?;
    for peer in peers.iter().filter(|peer| peer.duplicate) {
        output::note(&format!(
            "warning: two processes run as {}; stop one, or give it a state directory of its own",
            peer.peer
        ));
    }
    Ok(())
}

fn row(peer: &PeerInfo) -> [String; 6] {
    let roles: Vec<_> = peer.roles.iter().map(|role| role.as_str()).collect();
    let models: Vec<_> = peer
        .replicas
        .iter()
        .flat_map(|replica| replica.models.iter().map(|model| served(model, replica.state)))
        .collect();
    let serves = match models.as_slice() {
        [] => String::new(),
        [first] => first.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    };
    let rtt = peer.rtt_us.map_or(String::new(), |us| format!("{}.{} ms", us / 1000, us % 1000 / 100));
    let name = peer.name.as_ref().map(ToString::to_string).unwrap_or_default();
    [peer.peer.clone(), name, roles.join(","), peer.reachability.clone(), rtt, serves]
}

/// A model, and where its replica stands unless it serves.
fn served(model: &ModelId, state: ReplicaState) -> String {
    match state {
        ReplicaState::Ready => model.to_string(),
        ReplicaState::Starting => format!("{model} (starting)"),
        ReplicaState::Unhealthy => format!("{model} (unhealthy)"),
        ReplicaState::Draining | ReplicaState::Gone => format!("{model} (ending)"),
    }
}

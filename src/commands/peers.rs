//! `dunlin peers`: the members that this node knows.

use super::connect;
use crate::{args::Output, output};
use anyhow::Result;
use dunlin_node::PeerInfo;
use dunlin_protocol::{announcement::ReplicaState, id::ModelId};
use std::path::Path;

/// Models of a peer that its row names.
const NAMED: usize = 3;

pub(crate) async fn run(home: &Path, output: Output) -> Result<()> {
    let peers: Vec<PeerInfo> = connect(home).await?.get("/peers").await?;
    output::show(output, &peers, |peers| table(peers))?;
    for peer in peers.iter().filter(|peer| peer.duplicate) {
        output::note(&format!(
            "warning: two processes run as {}; stop one, or give it a state directory of its own",
            peer.peer
        ));
    }
    Ok(())
}

fn table(peers: &[PeerInfo]) -> String {
    output::table(["NAME", "ROLES", "STATE", "RTT", "PEER", "SERVES"], peers.iter().map(row))
}

fn row(peer: &PeerInfo) -> [String; 6] {
    let roles: Vec<_> = peer.roles.iter().map(|role| role.as_str()).collect();
    let models: Vec<_> = peer
        .replicas
        .iter()
        .flat_map(|replica| replica.models.iter().map(|model| served(model, replica.state)))
        .collect();
    let mut serves = models[..models.len().min(NAMED)].join(", ");
    if models.len() > NAMED {
        serves.push_str(&format!(" and {} more", models.len() - NAMED));
    }
    let rtt = peer.rtt_us.map(|us| format!("{}.{} ms", us / 1000, us % 1000 / 100));
    let name = peer.name.as_ref().map(ToString::to_string);
    [
        output::or_none(name),
        output::or_none(Some(roles.join(","))),
        peer.reachability.clone(),
        output::or_none(rtt),
        peer.peer.clone(),
        output::or_none(Some(serves)),
    ]
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

/// Members for tests.
#[cfg(test)]
pub(super) mod examples {
    use dunlin_node::{PeerInfo, ReplicaInfo};
    use dunlin_protocol::announcement::ReplicaState;

    pub(crate) fn replica(models: &[&str], state: ReplicaState) -> ReplicaInfo {
        ReplicaInfo {
            index: 0,
            state,
            runtime: None,
            slots: 1,
            in_flight: None,
            report_age_ms: None,
            queued: None,
            measured: None,
            engine: None,
            models: models.iter().map(|model| model.parse().unwrap()).collect(),
        }
    }

    pub(crate) fn peer(name: Option<&str>, reachability: &str, replicas: Vec<ReplicaInfo>) -> PeerInfo {
        PeerInfo {
            peer: "12D3KooWabc".to_owned(),
            name: name.map(|name| name.parse().unwrap()),
            roles: Vec::new(),
            reachability: reachability.to_owned(),
            rtt_us: None,
            addresses: Vec::new(),
            not_after: None,
            duplicate: false,
            replicas,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        examples::{peer, replica},
        *,
    };

    #[test]
    fn every_row_has_every_column() {
        let peers = [
            peer(None, "unknown", Vec::new()),
            peer(
                Some("rack"),
                "unknown",
                vec![replica(&["a", "b"], ReplicaState::Ready), replica(&["c", "d", "e"], ReplicaState::Starting)],
            ),
        ];
        let text = table(&peers);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["NAME", "ROLES", "STATE", "RTT", "PEER", "SERVES"]
        );
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["-", "-", "unknown", "-", "12D3KooWabc", "-"]);
        assert!(lines[2].ends_with("a, b, c (starting) and 2 more"), "{text}");
    }
}

//! The models' part of `dunlin doctor`: those with replicas that don't serve, and on which nodes.

use super::Findings;
use crate::output;
use dunlin_node::{PeerInfo, ReplicaInfo, control::ModelInfo};
use dunlin_protocol::{announcement::ReplicaState, id::ModelId};

/// Models that are named.
const MODELS: usize = 8;
/// Nodes of a model that are named.
const NODES: usize = 4;

/// Warns of each model that has replicas which are not ready.
pub(super) fn short(models: &[ModelInfo], peers: &[PeerInfo], findings: &mut Findings) {
    let mut short = Vec::new();
    for model in models {
        let obstacles = obstacles(&model.model, peers);
        // One whose every replica is leaving lacks nothing.
        if model.ready < model.replicas && !obstacles.is_empty() {
            short.push((model, obstacles));
        }
    }
    for (model, obstacles) in short.iter().take(MODELS) {
        let mut named = obstacles[..obstacles.len().min(NODES)].join(", ");
        if obstacles.len() > NODES {
            named.push_str(&format!(" and {} more", obstacles.len() - NODES));
        }
        findings.warn(
            "model",
            format!("{}: {} of {} replicas ready; {named}", model.model, model.ready, model.replicas),
            "`dunlin doctor` there says what the engine lacks",
        );
    }
    if short.len() > MODELS {
        let more = output::counted(short.len() - MODELS, "more model");
        findings.warn("model", format!("{more} with replicas that are not ready"), "dunlin models");
    }
}

/// Where the replicas of `model` stand that should serve it and don't.
fn obstacles(model: &ModelId, peers: &[PeerInfo]) -> Vec<String> {
    let of_peer = |peer: &PeerInfo| -> Vec<String> {
        let serving = peer.replicas.iter().filter(|replica| replica.models.contains(model));
        serving.filter_map(|replica| obstacle(peer, replica)).collect()
    };
    peers.iter().flat_map(of_peer).collect()
}

fn obstacle(peer: &PeerInfo, replica: &ReplicaInfo) -> Option<String> {
    let name = peer.name.as_ref().map_or_else(|| peer.peer.clone(), ToString::to_string);
    let reached = matches!(peer.reachability.as_str(), "self" | "connected" | "relayed");
    match replica.state {
        ReplicaState::Draining | ReplicaState::Gone => None,
        _ if !reached => Some(format!("{name} is {}", peer.reachability)),
        ReplicaState::Starting => Some(format!("starting on {name}")),
        ReplicaState::Unhealthy => Some(format!("unhealthy on {name}")),
        ReplicaState::Ready => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::examples;

    fn model(name: &str, ready: usize, replicas: usize) -> ModelInfo {
        let model = name.parse().unwrap();
        let (parent, runtimes) = (None, Vec::new());
        let (unhealthy, starting, lost, exact) = (0, 0, 0, 0);
        ModelInfo { model, parent, runtimes, replicas, ready, unhealthy, starting, lost, exact, slots: 1, in_flight: 0 }
    }

    fn peer(name: &str, reachability: &str, serves: &str, state: ReplicaState) -> PeerInfo {
        examples::peer(Some(name), reachability, vec![examples::replica(&[serves], state)])
    }

    #[test]
    fn the_nodes_that_do_not_serve_are_named() {
        let peers = [
            peer("rack", "connected", "bird", ReplicaState::Starting),
            peer("shed", "disconnected", "fish", ReplicaState::Ready),
            peer("attic", "self", "fish", ReplicaState::Ready),
            peer("cellar", "connected", "fish", ReplicaState::Unhealthy),
            peer("barn", "connected", "toad", ReplicaState::Draining),
        ];
        let mut findings = Findings::default();
        short(&[model("bird", 0, 1), model("fish", 1, 3), model("toad", 0, 1)], &peers, &mut findings);
        let found: Vec<&str> = findings.0.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            found,
            [
                "bird: 0 of 1 replicas ready; starting on rack",
                "fish: 1 of 3 replicas ready; shed is disconnected, unhealthy on cellar",
            ]
        );
    }

    #[test]
    fn many_models_and_nodes_make_few_lines() {
        let peers = vec![peer("rack", "connected", "m0", ReplicaState::Starting); NODES + 2];
        let mut models = vec![model("m0", 0, NODES + 2); MODELS + 1];
        models.push(model("m1", 1, 1));
        let mut findings = Findings::default();
        short(&models, &peers, &mut findings);
        assert_eq!(findings.0.len(), MODELS + 1);
        assert!(findings.0[0].found.ends_with("starting on rack and 2 more"), "{}", findings.0[0].found);
        assert_eq!(findings.0[MODELS].found, "1 more model with replicas that are not ready");
    }
}

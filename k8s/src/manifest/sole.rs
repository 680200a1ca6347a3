//! What there is one of for a Playground, or for one of its revisions.

use super::{Error, MESH_PORT, Making, Owner, READY_PORT};
use crate::{engine, names};
use k8s_openapi::api::{
    apps::v1::ControllerRevision, core::v1::ConfigMap, networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget,
};
use serde_json::{Value, json};

/// The resolved runtime, which agents read.
///
/// # Errors
/// The BackendRuntime makes no sense.
pub fn config_map(making: Making<'_>) -> Result<ConfigMap, Error> {
    let snapshot = &making.revision.snapshot;
    let runtime = engine::entry(&snapshot.runtime_name, &snapshot.runtime)?;
    let text = toml::to_string(&runtime)?;
    let metadata = making.owner.metadata(&making.revision.name);
    let object = json!({ "metadata": metadata, "immutable": true, "data": { "runtime.toml": text } });
    Ok(serde_json::from_value(object)?)
}

/// What the replicas of a revision are made from.
///
/// # Errors
/// A fault of this program.
pub fn controller_revision(making: Making<'_>) -> Result<ControllerRevision, Error> {
    let metadata = making.owner.metadata(&making.revision.name);
    let data = serde_json::to_value(&making.revision.snapshot)?;
    Ok(serde_json::from_value(json!({ "metadata": metadata, "data": data, "revision": making.revision.number }))?)
}

/// What may reach the pods of a Playground, and what they may reach: the mesh's port and the kubelet's look at
/// `/ready` in; anything out, but for the service that gives machines of a cloud their credentials.
///
/// # Errors
/// A fault of this program.
pub fn network_policy(owner: &Owner) -> Result<NetworkPolicy, Error> {
    let ports = [("TCP", MESH_PORT), ("UDP", MESH_PORT), ("TCP", READY_PORT)];
    let ports: Vec<Value> =
        ports.iter().map(|(protocol, port)| json!({ "protocol": protocol, "port": port })).collect();
    let anywhere = [("0.0.0.0/0", "169.254.169.254/32"), ("::/0", "fd00:ec2::254/128")];
    let anywhere: Vec<Value> =
        anywhere.iter().map(|(cidr, but)| json!({ "ipBlock": { "cidr": cidr, "except": [but] } })).collect();
    let spec = json!({
        "podSelector": { "matchLabels": { names::PLAYGROUND: owner.name } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "ports": ports }],
        "egress": [{ "to": anywhere }],
    });
    Ok(serde_json::from_value(marked(owner, "networking.k8s.io/v1", "NetworkPolicy", &spec))?)
}

/// One replica at a time may be evicted.
///
/// # Errors
/// A fault of this program.
pub fn disruption_budget(owner: &Owner) -> Result<PodDisruptionBudget, Error> {
    let spec = json!({
        "maxUnavailable": 1,
        "selector": { "matchLabels": { names::PLAYGROUND: owner.name } },
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    Ok(serde_json::from_value(marked(owner, "policy/v1", "PodDisruptionBudget", &spec))?)
}

/// With a hash of what is wanted, so that it is applied again only when that changes.
fn marked(owner: &Owner, api_version: &str, kind: &str, spec: &Value) -> Value {
    let mut metadata = owner.metadata(&names::sole(&owner.name));
    metadata["annotations"] = json!({ names::APPLIED: names::hash(spec) });
    json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec })
}

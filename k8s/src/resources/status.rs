//! What the orchestrator says about a Playground, and what it must remember to be safe when it is killed.

use super::parts::by_name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a replica stands.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
pub enum Phase {
    /// There is no plan for it yet, or no room.
    #[default]
    Pending,
    /// It has a pod, which no node has taken yet.
    Placing,
    /// Its image or its weights are on the way.
    Pulling,
    /// The engine loads the model.
    Loading,
    /// It is registered in the mesh, and serves.
    Ready,
    /// It answers its last requests.
    Draining,
    /// It ended, or could not start.
    Failed,
}

/// One replica: what is known of it, and the uid of the pod that alone may speak for it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaState {
    /// Name of its pod: `<playground>-<ordinal>-<attempt>`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its place among the replicas, from 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub ordinal: i32,
    /// Counts the pods of this Playground: no name is used twice.
    #[serde(default)]
    #[schemars(range(min = 0, max = 999_999_999))]
    pub attempt: i64,
    /// Its revision.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub revision: String,
    /// The pod that was created for it; none before that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub pod_uid: Option<String>,
    /// Where it stands.
    #[serde(default)]
    pub phase: Phase,
    /// Its hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub flavor: Option<String>,
    /// The node it was planned for, then the node that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Its name in the mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub peer_id: Option<String>,
    /// How far loading has come, per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress: Option<i32>,
    /// One word for why it stands where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Since when it stands there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub since: Option<String>,
}

/// A statement about the whole.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about: `Available`, `Progressing`, `Outdated`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 64))]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[schemars(length(max = 8), regex(pattern = r"^(True|False|Unknown)$"))]
    pub status: String,
    /// One word.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// For people: what is wrong, and what to do.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// When `status` last changed.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub last_transition_time: String,
    /// The generation that this was said about.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,
}

/// What the orchestrator says about a Playground.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlaygroundStatus {
    /// The generation that the rest is about.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,
    /// Replicas that are there, but for those that drain.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub replicas: i32,
    /// Of these, the ones that serve.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub ready_replicas: i32,
    /// Of all, the ones of the wanted revision.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub updated_replicas: i32,
    /// How many there shall be.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000))]
    pub desired_replicas: i32,
    /// Selects its pods, for autoscalers and for `kubectl scale`.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub selector: String,
    /// Name of the wanted revision.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub revision: String,
    /// The highest attempt ever given to a pod.
    #[serde(default)]
    #[schemars(range(min = 0, max = 999_999_999))]
    pub attempts: i64,
    /// When the present change last came a step further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub progressed_at: Option<String>,
    /// Statements about the whole.
    #[serde(default)]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Every replica.
    #[serde(default)]
    #[schemars(length(max = 200), transform = by_name)]
    pub replica_states: Vec<ReplicaState>,
}

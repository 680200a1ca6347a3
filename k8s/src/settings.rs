//! What whoever runs the platform decides for all replicas: the chart writes it into one file.

use crate::{
    jobs::AutoModels,
    resources::{EnvVar, Toleration},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The replicas' defaults and the orchestrator's own limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Image of dunlin: agent and loader of weights.
    pub image: String,
    /// The mesh's id: pods present tokens made out to it. Without one, replicas get no token.
    pub mesh: Option<String>,
    /// Orchestrators of this mesh and cluster, to which a replica shows its token, as multiaddresses with `/p2p/`. What
    /// `peers` says when empty.
    pub orchestrators: Vec<String>,
    /// Members that a replica connects to first, as multiaddresses with `/p2p/`.
    pub peers: Vec<String>,
    /// Models that are made when somebody deploys them over the mesh.
    pub auto_models: AutoModels,
    /// What is the same for all replicas.
    pub replica_defaults: ReplicaDefaults,
}

/// What is the same for all replicas.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReplicaDefaults {
    /// Secrets with which images are pulled, in the namespace of the Playground.
    pub image_pull_secrets: Vec<String>,
    /// `Always`, `IfNotPresent`, `Never`; the cluster's default if not set.
    pub image_pull_policy: Option<String>,
    /// Put before every engine's image, for example `mirror.example/`.
    pub registry_mirror: Option<String>,
    /// Environment of agent and loader: `HTTPS_PROXY`, `SSL_CERT_FILE`, `HF_ENDPOINT`, ...
    pub env: Vec<EnvVar>,
    /// Name of a PriorityClass.
    pub priority_class_name: Option<String>,
    /// Name of a RuntimeClass.
    pub runtime_class_name: Option<String>,
    /// Taints that don't matter to any replica.
    pub tolerations: Vec<Toleration>,
}

impl Default for Settings {
    fn default() -> Self {
        let image = format!("ghcr.io/dunlin/dunlin:{}", env!("CARGO_PKG_VERSION"));
        Self {
            image,
            mesh: None,
            orchestrators: Vec::new(),
            peers: Vec::new(),
            auto_models: AutoModels::default(),
            replica_defaults: ReplicaDefaults::default(),
        }
    }
}

/// How patient the orchestrator is, and how much it does at once.
#[derive(Debug, Clone)]
pub struct Patience {
    /// Playgrounds that change soon after one another are planned together.
    pub debounce: Duration,
    /// For room of a flavor, where the flavor does not say.
    pub flavor: Duration,
    /// For room for one more replica while an update goes on.
    pub surge: Duration,
    /// Between writes of a status, but for those that a new pod has to wait for.
    pub status: Duration,
    /// The same where they only tell how loading goes on.
    pub news: Duration,
    /// Before the second try of what was refused or failed; doubled with each.
    pub retry: Duration,
    /// The longest that it grows to.
    pub retry_most: Duration,
    /// Playgrounds that are worked on at once.
    pub playgrounds: usize,
    /// Pods of one Playground that are created or deleted at once.
    pub pods: usize,
    /// Until an answer of the API server.
    pub call: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(100),
            flavor: Duration::from_secs(300),
            surge: Duration::from_secs(120),
            status: Duration::from_millis(500),
            news: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            retry_most: Duration::from_secs(300),
            playgrounds: 16,
            pods: 8,
            call: Duration::from_secs(30),
        }
    }
}

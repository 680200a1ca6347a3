//! `BackendRuntime`: how a kind of engine is run in this cluster. Written by whoever runs the platform.

use super::parts::{EnvVar, Resources, arguments, as_set, by_name};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How a kind of engine is run in this cluster: an entry of the built-in catalogue, and what is put over it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "dunlin.dev",
    version = "v1alpha1",
    kind = "BackendRuntime",
    plural = "backendruntimes",
    shortname = "dlr",
    category = "dunlin",
    derive = "PartialEq",
    doc = "How a kind of engine is run in this cluster: an entry of the built-in catalogue, and what is put over it.",
    printcolumn = r#"{"name": "Runtime", "type": "string", "jsonPath": ".spec.runtime"}"#,
    printcolumn = r#"{"name": "Image", "type": "string", "jsonPath": ".spec.image"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.version"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    { "rule": "!has(self.vm)", "message": "virtual machines don't work yet: leave out vm" },
])))]
pub struct BackendRuntimeSpec {
    /// Entry of the catalogue that the rest is put over: `vllm`, `sglang`, `llamacpp`, `ollama`, `tgi`, `tensorrt-llm`,
    /// `parakeet`, `whisper`, `demo`. Metric names, probes and the way to end come from it.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-z0-9-]+$"))]
    pub runtime: String,
    /// The engine's image without its tag; by default the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 384))]
    pub image: Option<String>,
    /// Tag of the image, or a digest (`sha256:...`); by default the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^(sha256:[0-9a-f]{64}|[A-Za-z0-9_][-A-Za-z0-9_.]*)$"))]
    pub version: Option<String>,
    /// The program and its first arguments; by default the catalogue's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub command: Vec<String>,
    /// Its arguments, as templates: `{model}`, `{served_name}`, `{host}`, `{port}`, `{tensor_parallel}`,
    /// `{pipeline_parallel}`, `{args}`. By default the catalogue's.
    #[serde(default, skip_serializing_if = "RoleArgs::is_empty")]
    pub args: RoleArgs,
    /// Environment of the engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), transform = by_name)]
    pub env: Vec<EnvVar>,
    /// The port that the engine is told to listen on; by default the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// Whether the engine listens on localhost only when told so. Default: yes. The ports of one that doesn't are closed
    /// by the NetworkPolicy alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binds_loopback: Option<bool>,
    /// Path that answers 2xx when the engine is well; by default the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^/.*$"))]
    pub health: Option<String>,
    /// Path of its metrics; by default the catalogue's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^/.*$"))]
    pub metrics: Option<String>,
    /// How long its last requests may take when a replica ends, seconds. 300 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub drain_seconds: Option<i64>,
    /// Size of `/dev/shm`, through which ranks talk, for example `8Gi`. 8Gi if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+([KMGT]i?)?$"))]
    pub shared_memory: Option<String>,
    /// What the engine's container asks for beside its devices.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// What the engine's container may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<Security>,
    /// Secrets with which its image is pulled, in the namespace of the Playground.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)), transform = as_set)]
    pub image_pull_secrets: Vec<String>,
    /// Named sets of arguments that a Playground can choose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = by_name)]
    pub recommended_configs: Vec<RecommendedConfig>,
    /// Image of a virtual machine. Does not work yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmImage>,
}

/// Arguments by the part that a container plays in a replica.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([
    { "rule": "!has(self.leader) && !has(self.worker)", "message": "groups of several nodes don't work yet: leave out leader and worker" },
    { "rule": "!has(self.draft)", "message": "draft models don't work yet: leave out draft" },
])))]
pub struct RoleArgs {
    /// Of a replica on one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub single: Vec<String>,
    /// Of the first node of a group. Does not work yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub leader: Vec<String>,
    /// Of the other nodes of a group. Does not work yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub worker: Vec<String>,
    /// Added when there is a draft model. Does not work yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub draft: Vec<String>,
}

impl RoleArgs {
    /// Whether all of it is left to the catalogue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.leader.is_empty() && self.worker.is_empty() && self.draft.is_empty()
    }
}

/// What the engine's container may do.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Security {
    /// Its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub run_as_user: Option<i64>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub run_as_group: Option<i64>,
    /// Refuse to start it as root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// Capabilities that it gets; all others are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)), transform = as_set)]
    pub capabilities: Vec<String>,
}

/// A named set of arguments.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecommendedConfig {
    /// Its name. The one called `default` is taken when a Playground names none.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Arguments that are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub args: Vec<String>,
    /// Environment that is added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), transform = by_name)]
    pub env: Vec<EnvVar>,
    /// What the engine asks for instead.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
}

/// Image of a virtual machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VmImage {
    /// The image.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub image: String,
}

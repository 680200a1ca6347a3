//! `Model`: what can be run, and on which hardware. Written by whoever runs the platform.

use super::parts::{Device, EnvVar, Resources, Toleration, arguments, as_set, by_name, node_labels};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// A model: its name for clients, where its weights come from, and the hardware that it may run on.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "dunlin.dev",
    version = "v1alpha1",
    kind = "Model",
    plural = "models",
    shortname = "dlm",
    category = "dunlin",
    status = "ModelStatus",
    derive = "PartialEq",
    doc = "A model: its name for clients, where its weights come from, and the hardware that it may run on.",
    printcolumn = r#"{"name": "Served name", "type": "string", "jsonPath": ".spec.servedName"}"#,
    printcolumn = r#"{"name": "Family", "type": "string", "jsonPath": ".spec.family"}"#,
    printcolumn = r#"{"name": "Flavors", "type": "string", "jsonPath": ".spec.flavors[*].name"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    { "rule": "self.preheat == false", "message": "preheat does not work yet: leave it out" },
])))]
pub struct ModelSpec {
    /// The name that clients use, for example `Qwen/Qwen3-8B`. It can't be changed.
    #[schemars(length(min = 1, max = 256), extend("x-kubernetes-validations" = json!([
        { "rule": "self == oldSelf", "message": "servedName can't be changed: make another Model" },
    ])))]
    pub served_name: String,
    /// A word for the kind of model, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub family: Option<String>,
    /// Where the weights come from.
    pub source: Source,
    /// A Secret in the namespace of the Playground, whose keys are given to the loader of weights only: `HF_TOKEN`,
    /// `AWS_ACCESS_KEY_ID`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub secret_name: Option<String>,
    /// Whether nodes fetch the weights before a replica is wanted. Does not work yet.
    #[serde(default)]
    pub preheat: bool,
    /// Hardware that one replica may run on, best first.
    #[schemars(length(min = 1, max = 8), transform = by_name)]
    pub flavors: Vec<Flavor>,
}

/// Where weights come from: exactly one of these.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([{
    "rule": "[has(self.huggingface), has(self.modelscope), has(self.uri), has(self.pvc), has(self.hostPath), has(self.image)].filter(set, set).size() == 1",
    "message": "set exactly one of huggingface, modelscope, uri, pvc, hostPath, image",
}])))]
pub struct Source {
    /// A repository on Hugging Face.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huggingface: Option<Repository>,
    /// A repository on ModelScope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelscope: Option<Repository>,
    /// `s3://`, `gs://`, `oss://`, `https://`, or `ollama://NAME`, which the engine pulls by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^(s3|gs|oss|https|ollama|ngc)://.+$"))]
    pub uri: Option<String>,
    /// A volume that holds the weights, in the namespace of the Playground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<Claim>,
    /// A folder of the node that holds the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^/[^:]*$"))]
    pub host_path: Option<String>,
    /// An image that holds the weights. Needs Kubernetes 1.35.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
}

/// A repository of a hub.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([{
    "rule": "!has(self.file) || (!has(self.allow) && !has(self.ignore))",
    "message": "file names one file: leave out allow and ignore",
}])))]
pub struct Repository {
    /// Its id, for example `Qwen/Qwen3-8B`.
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^[A-Za-z0-9][-A-Za-z0-9_.]*(/[A-Za-z0-9][-A-Za-z0-9_.]*)?$")
    )]
    pub repo: String,
    /// Branch, tag or commit; none is the hub's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub revision: Option<String>,
    /// A single file of it, for example a GGUF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub file: Option<String>,
    /// Patterns (`*.safetensors`) of the files that are fetched; none is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 256)), transform = as_set)]
    pub allow: Vec<String>,
    /// Patterns of the files that are not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 256)), transform = as_set)]
    pub ignore: Vec<String>,
}

/// A folder in a volume.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claim {
    /// Name of the PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Folder or file inside it; none is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
}

/// One kind of hardware that a replica may run on.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Flavor {
    /// Its name, for example `h100`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "node_labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that don't matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// The GPUs of one replica; none runs on the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Device>,
    /// Network devices for RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Device>,
    /// What the engine asks for beside devices.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Nodes of one replica. Only 1 works so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-kubernetes-validations" = json!([
        { "rule": "self == 1", "message": "groups of several nodes don't work yet: use 1, or leave it out" },
    ])))]
    pub nodes: Option<i64>,
    /// GPUs that share each layer; by default the flavor's GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub tensor_parallel: Option<u16>,
    /// Stages that the layers are divided into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub pipeline_parallel: Option<u16>,
    /// Arguments for the engine on this hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub args: Vec<String>,
    /// Environment for the engine on this hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), transform = by_name)]
    pub env: Vec<EnvVar>,
    /// Whether machines that may be taken away will do. Only `Never` works so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^(Never|Prefer|Require)$"), extend("x-kubernetes-validations" = json!([
        { "rule": "self == 'Never'", "message": "spot machines don't work yet: use Never, or leave it out; nodeSelector and tolerations can name them" },
    ])))]
    pub spot: Option<String>,
    /// How long a replica waits for room of this flavor before it tries the next, seconds. 300 if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub wait_seconds: Option<i64>,
    /// A node label over whose values replicas are spread, for example `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub topology_key: Option<String>,
    /// Devices of a virtual machine. Does not work yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = json!([
        { "rule": "false", "message": "virtual machines don't work yet: leave out vm" },
    ])))]
    pub vm: Option<Vm>,
}

/// Devices of a virtual machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Vm {
    /// Name of the GPU as the virtualisation layer permits it.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub device_name: String,
    /// Other devices of the host.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 128)), transform = as_set)]
    pub host_devices: Vec<String>,
    /// How its network is attached.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub network: String,
}

/// What is known about a model in this cluster.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// Nodes on which its weights lie already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)), transform = as_set)]
    pub cached_nodes: Vec<String>,
}

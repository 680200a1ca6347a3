//! `Playground`: "keep N replicas of this model running". The user's object.

use super::{
    parts::{EnvVar, Resources, arguments, as_set, by_name},
    status::PlaygroundStatus,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Keeps a number of replicas of a model running. A model's name is enough.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "dunlin.dev",
    version = "v1alpha1",
    kind = "Playground",
    plural = "playgrounds",
    shortname = "dlp",
    category = "dunlin",
    namespaced,
    status = "PlaygroundStatus",
    derive = "PartialEq",
    doc = "Keeps a number of replicas of a model running. A model's name is enough.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Model", "type": "string", "jsonPath": ".spec.model"}"#,
    printcolumn = r#"{"name": "Wanted", "type": "integer", "jsonPath": ".status.desiredReplicas"}"#,
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas"}"#,
    printcolumn = r#"{"name": "Updated", "type": "integer", "jsonPath": ".status.updatedReplicas"}"#,
    printcolumn = r#"{"name": "Available", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Available')].status"}"#,
    printcolumn = r#"{"name": "Why", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Progressing')].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[kube(validation = kube::core::Rule::new("self.metadata.name.size() <= 40").message("the name of a Playground has at most 40 characters: its pods' names add to it"))]
#[kube(validation = kube::core::Rule::new("!self.metadata.name.contains('.')").message("the name of a Playground has no dots: it is part of labels"))]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    { "rule": "has(self.model) != has(self.models)", "message": "set exactly one of model and models" },
    { "rule": "!has(self.models) || (self.models.size() == 1 && self.models[0].role == 'main')", "message": "draft models don't work yet: name one model with role main" },
    { "rule": "!has(self.autoscaling)", "message": "autoscaling by Dunlin does not work yet: leave it out; a HorizontalPodAutoscaler can scale a Playground" },
    { "rule": "!has(self.isolation) || self.isolation == 'Pod'", "message": "virtual machines don't work yet: use isolation Pod, or leave it out" },
])))]
pub struct PlaygroundSpec {
    /// Name of the Model, or the name that it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub model: Option<String>,
    /// Models with their parts, instead of `model`. Only one works so far.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 2), transform = by_name)]
    pub models: Vec<ModelClaim>,
    /// How many replicas to keep.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 160))]
    pub replicas: i32,
    /// The engine; by default the BackendRuntime called `vllm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeChoice>,
    /// Names of the model's flavors that will do, best first; by default all of them in the model's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub flavors: Vec<String>,
    /// Scaling by load. Does not work yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// `Pod`, the default, or `VM`, which does not work yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), regex(pattern = r"^(Pod|VM)$"))]
    pub isolation: Option<String>,
    /// Whose requests it serves: by default those of the namespace's tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)), transform = as_set)]
    pub tenants: Vec<String>,
    /// How replicas are replaced when something changes.
    #[serde(default)]
    pub strategy: Strategy,
    /// Leave replicas of older revisions as they are.
    #[serde(default)]
    pub paused: bool,
}

fn one() -> i32 {
    1
}

/// A model and its part.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelClaim {
    /// Name of the Model, or the name that it serves.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// `main`, or `draft`, which does not work yet.
    #[serde(default = "main_role")]
    #[schemars(length(max = 8), regex(pattern = r"^(main|draft)$"))]
    pub role: String,
}

fn main_role() -> String {
    "main".to_owned()
}

/// The engine, and what is special about it here.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([{
    "rule": "!has(self.args) || !self.args.exists(arg, ['--host', '--hostname', '--port', '--served-model-name', '--alias', '--uds'].exists(flag, arg == flag || arg.startsWith(flag + '=')))",
    "message": "--host, --hostname, --port, --served-model-name, --alias and --uds are set by the orchestrator: leave them out",
}])))]
pub struct RuntimeChoice {
    /// Name of the BackendRuntime.
    #[serde(default = "vllm")]
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Tag of the engine's image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^(sha256:[0-9a-f]{64}|[A-Za-z0-9_][-A-Za-z0-9_.]*)$"))]
    pub version: Option<String>,
    /// Name of one of its recommended configurations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub config: Option<String>,
    /// Arguments that are added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "arguments")]
    pub args: Vec<String>,
    /// Environment that is added. What the runtime itself sets comes after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), transform = by_name)]
    pub env: Vec<EnvVar>,
    /// What the engine asks for instead of the flavor's resources.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
}

fn vllm() -> String {
    "vllm".to_owned()
}

/// How replicas are replaced.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = json!([
    { "rule": "self.maxSurge > 0 || self.maxUnavailable > 0", "message": "with maxSurge 0, maxUnavailable must be at least 1, or nothing could ever be replaced" },
])))]
pub struct Strategy {
    /// Replicas that may be there beyond `replicas`.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 16))]
    pub max_surge: i32,
    /// Ready replicas that may be missing.
    #[serde(default)]
    #[schemars(range(min = 0, max = 160))]
    pub max_unavailable: i32,
    /// After so long without a replica becoming ready a change is called stuck, seconds.
    #[serde(default = "half_an_hour")]
    #[schemars(range(min = 1, max = 86_400))]
    pub progress_deadline_seconds: i64,
}

fn half_an_hour() -> i64 {
    1800
}

impl Default for Strategy {
    fn default() -> Self {
        Self { max_surge: one(), max_unavailable: 0, progress_deadline_seconds: half_an_hour() }
    }
}

/// Scaling by load.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Autoscaling {
    /// Fewest replicas.
    #[schemars(range(min = 0, max = 160))]
    pub min: i32,
    /// Most replicas.
    #[schemars(range(min = 1, max = 160))]
    pub max: i32,
    /// What is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub metric: Option<String>,
    /// Its value at which there are enough replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub target: Option<i64>,
    /// After so long without a request replicas go, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub idle_seconds: Option<i64>,
}

impl PlaygroundSpec {
    /// One that asks for nothing: stands for one that can't be read.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            model: None,
            models: Vec::new(),
            replicas: 0,
            runtime: None,
            flavors: Vec::new(),
            autoscaling: None,
            isolation: None,
            tenants: Vec::new(),
            strategy: Strategy::default(),
            paused: false,
        }
    }

    /// The model that is served, by whichever field names it.
    #[must_use]
    pub fn main_model(&self) -> Option<&str> {
        let claimed = || self.models.iter().find(|claim| claim.role == "main").map(|claim| claim.name.as_str());
        self.model.as_deref().or_else(claimed)
    }

    /// Name of its BackendRuntime.
    #[must_use]
    pub fn runtime_name(&self) -> &str {
        self.runtime.as_ref().map_or("vllm", |choice| choice.name.as_str())
    }
}

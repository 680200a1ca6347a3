//! Small shapes that several resources share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A variable of the engine's environment.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Its value.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// A taint that pods of this flavor may be scheduled in spite of.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// Key of the taint; none with operator `Exists` is every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    pub key: Option<String>,
    /// `Equal` (the default) or `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^(Equal|Exists)$"))]
    pub operator: Option<String>,
    /// Value of the taint, with `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; none is every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^(NoSchedule|PreferNoSchedule|NoExecute)$"))]
    pub effect: Option<String>,
    /// How long a taint `NoExecute` is tolerated, seconds; none is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub toleration_seconds: Option<i64>,
}

/// So many of one extended resource.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// The extended resource's name, as the device plugin calls it.
    #[serde(default = "nvidia")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9][-A-Za-z0-9_./]*$"))]
    pub resource: String,
    /// How many for one replica.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub count: i64,
}

fn nvidia() -> String {
    "nvidia.com/gpu".to_owned()
}

fn one() -> i64 {
    1
}

/// What the engine's container asks for beside its devices, as in a pod.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// What a node must have free, for example `cpu: "4"`, `memory: 32Gi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, String>,
    /// What may not be exceeded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, String>,
}

impl Resources {
    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// How one replica is split over its GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parallel {
    /// GPUs that share each layer.
    pub tensor: Option<u16>,
    /// Stages that the layers are divided into.
    pub pipeline: Option<u16>,
}

/// A map of quantities.
pub(super) fn quantities(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 32, "pattern": r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$" },
    })
}

/// A map of node labels.
pub(super) fn node_labels(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

/// Entries are told apart by their names, so that several managers can each own some of them.
pub(super) fn by_name(list: &mut schemars::Schema) {
    list.insert("x-kubernetes-list-type".to_owned(), "map".into());
    list.insert("x-kubernetes-list-map-keys".to_owned(), vec!["name"].into());
}

/// The same for texts, whose order does not count.
pub(super) fn as_set(list: &mut schemars::Schema) {
    list.insert("x-kubernetes-list-type".to_owned(), "set".into());
}

/// A list of arguments: order counts, so it has one owner.
pub(super) fn arguments(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": { "type": "string", "maxLength": 1024 },
        "x-kubernetes-list-type": "atomic",
    })
}

//! The kinds of objects that the server knows.

use kube_cel::{CompiledSchema, Validator, compile_schema};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// One kind.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub has_status: bool,
    /// Whether a change of anything but metadata and status counts as a generation.
    pub has_generation: bool,
    /// JSON paths of spec and status replicas and of the selector, when it can be scaled.
    pub scale: Option<Scale>,
    /// Of custom kinds.
    pub schema: Option<Value>,
    /// Its rules, ready to be asked.
    pub rules: Option<Arc<CompiledSchema>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Scale {
    pub spec: Vec<String>,
    pub status: Vec<String>,
    pub selector: Option<Vec<String>>,
}

impl Kind {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `Kind.group`, as in messages about bad objects.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }

    /// `plural.group`, as in messages about missing objects.
    pub(crate) fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Built in: group, version, plural, kind, namespaced, status, generation.
const BUILT_IN: [(&str, &str, &str, &str, bool, bool, bool); 17] = [
    ("", "v1", "namespaces", "Namespace", false, true, false),
    ("", "v1", "nodes", "Node", false, true, false),
    ("", "v1", "pods", "Pod", true, true, true),
    ("", "v1", "configmaps", "ConfigMap", true, false, false),
    ("", "v1", "secrets", "Secret", true, false, false),
    ("", "v1", "services", "Service", true, true, false),
    ("", "v1", "serviceaccounts", "ServiceAccount", true, false, false),
    ("", "v1", "events", "Event", true, false, false),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, true, false),
    ("", "v1", "resourcequotas", "ResourceQuota", true, true, false),
    ("events.k8s.io", "v1", "events", "Event", true, false, false),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", true, false, false),
    ("coordination.k8s.io", "v1", "leases", "Lease", true, false, false),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true, false, true),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true, true, true),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false, false, false),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false, true, true),
];

/// All kinds.
pub(crate) struct Kinds {
    by_path: BTreeMap<(String, String), Kind>,
    pub rules: Validator,
}

impl Default for Kinds {
    fn default() -> Self {
        let kind = |&(group, version, plural, kind, namespaced, has_status, has_generation): &(_, _, _, _, _, _, _)| {
            let [group, version, plural, kind]: [&str; 4] = [group, version, plural, kind];
            let key = (group.to_owned(), plural.to_owned());
            let kind = Kind {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                kind: kind.to_owned(),
                namespaced,
                has_status,
                has_generation,
                scale: None,
                schema: None,
                rules: None,
            };
            (key, kind)
        };
        Self { by_path: BUILT_IN.iter().map(kind).collect(), rules: Validator::new() }
    }
}

impl Kinds {
    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Kind> {
        self.by_path.get(&(group.to_owned(), plural.to_owned()))
    }

    /// By plural alone, for assertions of tests: events of the newer group come first.
    pub(crate) fn by_plural(&self, plural: &str) -> Option<&Kind> {
        self.by_path.values().rfind(|kind| kind.plural == plural)
    }

    pub(crate) fn add_crd(&mut self, crd: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = &crd["spec"]["versions"][0];
        let path = |pointer: &str| {
            let path = version.pointer(pointer)?.as_str()?;
            Some(path.trim_start_matches('.').split('.').map(str::to_owned).collect::<Vec<_>>())
        };
        let scale = path("/subresources/scale/specReplicasPath").zip(path("/subresources/scale/statusReplicasPath"));
        let kind = Kind {
            group: text(&crd["spec"]["group"]),
            version: text(&version["name"]),
            plural: text(&crd["spec"]["names"]["plural"]),
            kind: text(&crd["spec"]["names"]["kind"]),
            namespaced: crd["spec"]["scope"] == json!("Namespaced"),
            has_status: version.pointer("/subresources/status").is_some(),
            has_generation: true,
            scale: scale.map(|(spec, status)| Scale {
                spec,
                status,
                selector: path("/subresources/scale/labelSelectorPath"),
            }),
            rules: Some(Arc::new(compile_schema(&version["schema"]["openAPIV3Schema"]))),
            schema: Some(version["schema"]["openAPIV3Schema"].clone()),
        };
        self.by_path.insert((kind.group.clone(), kind.plural.clone()), kind);
    }
}

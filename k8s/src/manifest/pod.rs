//! The pod of a replica.

use super::{Error, MESH_PORT, Making, READY_PORT, USER, weights};
use crate::{
    engine::{EXECUTABLE, Engine},
    names,
    resources::{EnvVar, Flavor, ReplicaState, Resources, Toleration},
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

/// Size of `/dev/shm` where the BackendRuntime does not say.
const SHARED_MEMORY: &str = "8Gi";
/// Beyond draining and the engine's own grace, until the kubelet kills, seconds.
const GRACE: i64 = 15;
/// How long a replica stays on a node that does not answer, seconds: its successor starts then.
const LOST_NODE: i64 = 60;

/// The pod of a replica whose flavor is known.
///
/// # Errors
/// Its revision can't be run so: says what to change.
pub fn pod(making: Making<'_>, replica: &ReplicaState) -> Result<Pod, Error> {
    let (rank, flavor) = making.flavor(replica.flavor.as_deref().unwrap_or_default())?;
    let engine = making.engine(flavor)?;
    let snapshot = &making.revision.snapshot;
    let grace = making.drain_seconds() + i64::try_from(engine.runtime.drain.grace_s).unwrap_or(0) + GRACE;
    let source = weights::Source::of(snapshot);
    let mut metadata = making.owner.metadata(&replica.name);
    metadata["labels"][names::REVISION] = making.revision.hash().into();
    metadata["labels"][names::FLAVOR] = flavor.name.clone().into();
    let mut before: Vec<Value> = vec![agent(making, &engine, rank)];
    before.extend(source.loader(making));
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": grace,
        "securityContext": { "fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": { "type": "RuntimeDefault" } },
        "affinity": affinity(flavor, replica.node.as_deref()),
        "tolerations": tolerations(making, flavor),
        "initContainers": before,
        "containers": [engine_container(making, &engine, flavor, &source)],
        "volumes": volumes(making, &source),
    });
    let defaults = &making.settings.replica_defaults;
    let set = |spec: &mut Value, field: &str, value: Option<Value>| {
        value.into_iter().for_each(|value| spec[field] = value);
    };
    set(&mut spec, "priorityClassName", defaults.priority_class_name.clone().map(Value::from));
    set(&mut spec, "runtimeClassName", defaults.runtime_class_name.clone().map(Value::from));
    let secrets: Vec<Value> = defaults
        .image_pull_secrets
        .iter()
        .chain(&snapshot.runtime.image_pull_secrets)
        .map(|name| json!({ "name": name }))
        .collect();
    set(&mut spec, "imagePullSecrets", (!secrets.is_empty()).then_some(Value::Array(secrets)));
    Ok(serde_json::from_value(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))?)
}

fn affinity(flavor: &Flavor, node: Option<&str>) -> Value {
    let mut affinity = Map::new();
    if !flavor.node_selector.is_empty() {
        let term = |(key, value): (&String, &String)| json!({ "key": key, "operator": "In", "values": [value] });
        let terms: Vec<Value> = flavor.node_selector.iter().map(term).collect();
        affinity.insert(
            "requiredDuringSchedulingIgnoredDuringExecution".to_owned(),
            json!({ "nodeSelectorTerms": [{ "matchExpressions": terms }] }),
        );
    }
    if let Some(node) = node {
        let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        affinity.insert(
            "preferredDuringSchedulingIgnoredDuringExecution".to_owned(),
            json!([{ "weight": 100, "preference": { "matchFields": [field] } }]),
        );
    }
    json!({ "nodeAffinity": affinity })
}

fn tolerations(making: Making<'_>, flavor: &Flavor) -> Value {
    let exists = |key: &str, effect: &str, seconds: Option<i64>| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        toleration_seconds: seconds,
        ..Toleration::default()
    };
    let mut all: Vec<Toleration> =
        flavor.tolerations.iter().chain(&making.settings.replica_defaults.tolerations).cloned().collect();
    all.extend(implied(flavor));
    all.push(exists("node.kubernetes.io/not-ready", "NoExecute", Some(LOST_NODE)));
    all.push(exists("node.kubernetes.io/unreachable", "NoExecute", Some(LOST_NODE)));
    json!(all)
}

/// The taint that keeps other pods from nodes with GPUs, by custom.
pub(crate) fn implied(flavor: &Flavor) -> Option<Toleration> {
    let gpu = flavor.gpu.as_ref()?;
    Some(Toleration {
        key: Some(gpu.resource.clone()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    })
}

/// What one replica takes beside its devices, the Playground's word before the flavor's before the runtime's.
pub(crate) fn resources<'s>(making: Making<'s>, flavor: &'s Flavor) -> &'s Resources {
    let snapshot = &making.revision.snapshot;
    let chosen = snapshot.playground.runtime.as_ref().map(|choice| &choice.resources);
    let mut all = chosen.into_iter().chain([&flavor.resources, &snapshot.runtime.resources]);
    all.find(|resources| !resources.is_empty()).unwrap_or(&snapshot.runtime.resources)
}

fn requests(making: Making<'_>, flavor: &Flavor) -> Value {
    let Resources { mut requests, mut limits } = resources(making, flavor).clone();
    for device in flavor.gpu.iter().chain(&flavor.rdma) {
        // Extended resources can't be overcommitted: both are the same.
        requests.insert(device.resource.clone(), device.count.to_string());
        limits.insert(device.resource.clone(), device.count.to_string());
    }
    json!({ "requests": requests, "limits": limits })
}

fn small() -> Value {
    json!({ "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "512Mi" } })
}

pub(super) fn locked_down() -> Value {
    json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": USER,
        "runAsGroup": USER, "capabilities": { "drop": ["ALL"] },
    })
}

pub(super) fn env(list: &[EnvVar]) -> Vec<Value> {
    list.iter().map(|variable| json!({ "name": variable.name, "value": variable.value })).collect()
}

fn agent(making: Making<'_>, engine: &Engine, rank: usize) -> Value {
    let snapshot = &making.revision.snapshot;
    let set = |name: &str, value: String| json!({ "name": name, "value": value });
    let from = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let mut variables = env(&making.settings.replica_defaults.env);
    variables.extend([
        set("DUNLIN_HOME", "/state".to_owned()),
        set("DUNLIN_SIDECAR", "/dunlin".to_owned()),
        set("DUNLIN_ENGINE", format!("http://127.0.0.1:{}", engine.port)),
        set("DUNLIN_RUNTIME", engine.runtime.name.to_string()),
        set("DUNLIN_RUNTIME_FILE", "/etc/dunlin/runtime.toml".to_owned()),
        set("DUNLIN_MODEL", snapshot.model.served_name.clone()),
        set("DUNLIN_FLAVOR_RANK", rank.to_string()),
        set("DUNLIN_READY_HTTP", format!("0.0.0.0:{READY_PORT}")),
        set("DUNLIN_DRAIN_TIMEOUT", making.drain_seconds().to_string()),
        set("DUNLIN_LISTEN", format!("/ip4/0.0.0.0/tcp/{MESH_PORT},/ip4/0.0.0.0/udp/{MESH_PORT}/quic-v1")),
        set("DUNLIN_NO_MDNS", "true".to_owned()),
        from("DUNLIN_NAME", "metadata.name"),
    ]);
    if !making.settings.peers.is_empty() {
        variables.push(set("DUNLIN_PEER", making.settings.peers.join(",")));
    }
    let mut mounts = vec![
        json!({ "name": "dunlin", "mountPath": "/dunlin" }),
        json!({ "name": "state", "mountPath": "/state" }),
        json!({ "name": "runtime", "mountPath": "/etc/dunlin", "readOnly": true }),
    ];
    if let Some(mesh) = &making.settings.mesh {
        variables.push(set("DUNLIN_MESH", mesh.clone()));
        if !making.settings.orchestrators.is_empty() {
            variables.push(set("DUNLIN_ORCHESTRATOR", making.settings.orchestrators.join(",")));
        }
        variables.push(set("DUNLIN_TOKEN_FILE", "/var/run/secrets/dunlin/token".to_owned()));
        mounts.push(json!({ "name": "token", "mountPath": "/var/run/secrets/dunlin", "readOnly": true }));
    }
    let ready = json!({ "path": "/ready", "port": READY_PORT });
    let mut container = json!({
        "name": "agent", "image": making.settings.image, "args": ["agent"], "restartPolicy": "Always",
        "env": variables, "volumeMounts": mounts, "resources": small(), "securityContext": locked_down(),
        "ports": [
            { "name": "mesh", "containerPort": MESH_PORT, "protocol": "TCP" },
            { "name": "mesh-udp", "containerPort": MESH_PORT, "protocol": "UDP" },
            { "name": "ready", "containerPort": READY_PORT, "protocol": "TCP" },
        ],
        // Its port opens once the executable lies in the shared folder: the other containers wait for that.
        "startupProbe": { "tcpSocket": { "port": READY_PORT }, "periodSeconds": 1, "failureThreshold": 120 },
        "readinessProbe": { "httpGet": ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3 },
    });
    pull_policy(making, &mut container);
    container
}

pub(super) fn pull_policy(making: Making<'_>, container: &mut Value) {
    if let Some(policy) = &making.settings.replica_defaults.image_pull_policy {
        container["imagePullPolicy"] = policy.clone().into();
    }
}

fn engine_container(making: Making<'_>, engine: &Engine, flavor: &Flavor, source: &weights::Source<'_>) -> Value {
    let mirror = making.settings.replica_defaults.registry_mirror.as_deref().unwrap_or_default();
    let image = engine.image.as_ref().map_or_else(|| making.settings.image.clone(), |image| format!("{mirror}{image}"));
    let security = making.revision.snapshot.runtime.security_context.clone().unwrap_or_default();
    let mut capabilities = security.capabilities.clone();
    if flavor.rdma.is_some() && !capabilities.iter().any(|name| name == "IPC_LOCK") {
        capabilities.push("IPC_LOCK".to_owned());
    }
    let mut context = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    if !capabilities.is_empty() {
        context["capabilities"]["add"] = json!(capabilities);
    }
    let user = [("runAsUser", security.run_as_user), ("runAsGroup", security.run_as_group)];
    for (field, value) in user {
        value.into_iter().for_each(|value| context[field] = value.into());
    }
    security.run_as_non_root.into_iter().for_each(|value| context["runAsNonRoot"] = value.into());
    let mut mounts =
        vec![json!({ "name": "dunlin", "mountPath": "/dunlin" }), json!({ "name": "shm", "mountPath": "/dev/shm" })];
    mounts.extend(source.mount(true));
    let mut container = json!({
        "name": "engine", "image": image, "env": env(&engine.env), "resources": requests(making, flavor),
        "securityContext": context, "volumeMounts": mounts,
    });
    // With no command known, the image's own entry point runs without the shim: the kubelet restarts it.
    if let Some(command) = &engine.command {
        container["command"] = json!([EXECUTABLE, "engine", "--"]);
        container["args"] = json!(command);
    }
    pull_policy(making, &mut container);
    container
}

fn volumes(making: Making<'_>, source: &weights::Source<'_>) -> Vec<Value> {
    let shared = making.revision.snapshot.runtime.shared_memory.as_deref().unwrap_or(SHARED_MEMORY);
    let mut volumes = vec![
        json!({ "name": "dunlin", "emptyDir": {} }),
        json!({ "name": "state", "emptyDir": {} }),
        json!({ "name": "runtime", "configMap": { "name": making.revision.name } }),
        json!({ "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": shared } }),
    ];
    if let Some(mesh) = &making.settings.mesh {
        let token = json!({ "path": "token", "audience": format!("dunlin.dev/{mesh}"), "expirationSeconds": 3600 });
        volumes.push(json!({ "name": "token", "projected": { "sources": [{ "serviceAccountToken": token }] } }));
    }
    volumes.extend(source.volume());
    volumes
}

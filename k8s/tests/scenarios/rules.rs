//! What the API server refuses, and what it fills in: the schemas and rules of the custom resources.

use crate::harness::Cluster;
use dunlin_k8s::resources::{BackendRuntime, Model, Playground};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

async fn try_create<K>(api: &Api<K>, kind: &str, name: &str, spec: Value) -> Result<K, String>
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    // Sent as it is written, so that the server sees what a person wrote.
    let object = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let params = PatchParams::apply("test");
    api.patch(name, &params, &Patch::Apply(object)).await.map_err(|error| error.to_string())
}

fn model() -> Value {
    json!({"servedName": "org/model", "source": {"huggingface": {"repo": "org/model"}}, "flavors": [{"name": "h100", "gpu": {"count": 8}}]})
}

/// `base` with one field, given as a pointer, put in the place of what was there.
fn with(mut base: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    base.pointer_mut(parent).unwrap()[field] = value;
    base
}

#[tokio::test]
async fn models_are_checked() {
    let cluster = Cluster::new().await;
    let models: Api<Model> = Api::all(cluster.client.clone());
    let name = format!("{}-rules", cluster.namespace);
    let refused = [
        ("/source", json!({}), "exactly one of huggingface"),
        ("/source", json!({"uri": "s3://b/m", "hostPath": "/m"}), "exactly one of huggingface"),
        ("/source", json!({"uri": "ftp://b/m"}), "should match"),
        (
            "/source",
            json!({"huggingface": {"repo": "org/model", "file": "a", "allow": ["*"]}}),
            "leave out allow and ignore",
        ),
        ("/flavors", json!([]), "at least 1 items"),
        ("/flavors", json!([{"name": "a"}, {"name": "a"}]), "uplicate"),
        ("/flavors", json!((0..9).map(|n| json!({"name": format!("f{n}")})).collect::<Vec<_>>()), "at most 8 items"),
        ("/flavors/0/nodes", json!(2), "groups of several nodes don't work yet"),
        ("/flavors/0/spot", json!("Prefer"), "spot machines don't work yet"),
        ("/flavors/0/vm", json!({"deviceName": "x"}), "virtual machines don't work yet"),
        ("/flavors/0/gpu", json!({"count": 0}), "greater than or equal to 1"),
        ("/flavors/0/resources", json!({"requests": {"memory": "lots"}}), "should match"),
        ("/servedName", json!(""), "at least 1 chars"),
        ("/servedName", json!("x".repeat(257)), "at most 256 chars"),
        ("/preheat", json!(true), "preheat does not work yet"),
    ];
    for (pointer, value, why) in refused {
        let error = try_create(&models, "Model", &name, with(model(), pointer, value.clone()))
            .await
            .err()
            .unwrap_or_else(|| panic!("{pointer}: {value} was taken"));
        // A real server words bounds of its own a little differently; the rules are ours.
        let ours =
            !why.contains("at least") && !why.contains("at most") && !why.contains("greater") && !why.contains("match");
        assert!(error.contains(why) || (cluster.fake.is_none() && !ours), "{pointer}: {error}");
    }
    let made = try_create(&models, "Model", &name, model()).await.unwrap();
    assert_eq!(made.spec.flavors[0].gpu.as_ref().unwrap().resource, "nvidia.com/gpu", "what is left out is filled in");
    let renamed = try_create(&models, "Model", &name, with(model(), "/servedName", json!("other"))).await.unwrap_err();
    assert!(renamed.contains("servedName can't be changed"), "{renamed}");
    cluster.clean().await;
}

#[tokio::test]
async fn playgrounds_are_checked() {
    let cluster = Cluster::new().await;
    let playgrounds = cluster.api::<Playground>();
    let base = || json!({"model": "m", "runtime": {"args": []}, "strategy": {}});
    let refused = [
        ("/model", Value::Null, "exactly one of model and models"),
        ("/models", json!([{"name": "a"}]), "exactly one of model and models"),
        ("/replicas", json!(161), "less than or equal to 160"),
        ("/replicas", json!(-1), "greater than or equal to 0"),
        ("/autoscaling", json!({"min": 0, "max": 3}), "autoscaling by Dunlin does not work yet"),
        ("/isolation", json!("VM"), "virtual machines don't work yet"),
        ("/runtime/args", json!(["--host=0.0.0.0"]), "set by the orchestrator"),
        ("/runtime/args", json!(["--served-model-name", "x"]), "set by the orchestrator"),
        ("/strategy", json!({"maxSurge": 0}), "nothing could ever be replaced"),
        ("/runtime/env", json!([{"name": "A B"}]), "should match"),
    ];
    for (pointer, value, why) in refused {
        let error = try_create(&playgrounds, "Playground", "chat", with(base(), pointer, value.clone()))
            .await
            .err()
            .unwrap_or_else(|| panic!("{pointer}: {value} was taken"));
        let ours = !why.contains("than or equal") && !why.contains("match");
        assert!(error.contains(why) || (cluster.fake.is_none() && !ours), "{pointer}: {error}");
    }
    let draft = json!({"models": [{"name": "a"}, {"name": "b", "role": "draft"}]});
    let error = try_create(&playgrounds, "Playground", "chat", draft).await.unwrap_err();
    assert!(error.contains("draft models don't work yet"), "{error}");
    let long = "x".repeat(41);
    let error = try_create(&playgrounds, "Playground", &long, json!({"model": "m"})).await.unwrap_err();
    assert!(error.contains("at most 40 characters"), "{error}");
    let error = try_create(&playgrounds, "Playground", "a.b", json!({"model": "m"})).await.unwrap_err();
    assert!(error.contains("has no dots"), "{error}");

    let made = try_create(&playgrounds, "Playground", "chat", json!({"model": "m"})).await.unwrap();
    let strategy = &made.spec.strategy;
    assert_eq!(
        (made.spec.replicas, strategy.max_surge, strategy.max_unavailable, strategy.progress_deadline_seconds),
        (1, 1, 0, 1800)
    );
    // What users may not ask for is not even a field.
    let sly = json!({"model": "m", "image": "evil", "hostPath": "/", "serviceAccountName": "admin", "securityContext": {"privileged": true}});
    let object =
        json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "metadata": {"name": "sly"}, "spec": sly});
    let patch = Patch::Merge(object);
    try_create(&playgrounds, "Playground", "sly", json!({"model": "m"})).await.unwrap();
    let taken = playgrounds.patch("sly", &PatchParams::default(), &patch).await.unwrap();
    let text = serde_json::to_string(&taken.spec).unwrap();
    assert!(!text.contains("evil") && !text.contains("admin"), "{text}");
    cluster.clean().await;
}

#[tokio::test]
async fn runtimes_are_checked_and_the_shipped_ones_are_taken() {
    let cluster = Cluster::new().await;
    let runtimes: Api<BackendRuntime> = Api::all(cluster.client.clone());
    let name = format!("{}-rules", cluster.namespace);
    for (field, value, why) in [
        ("vm", json!({"image": "x"}), "virtual machines don't work yet"),
        ("args", json!({"leader": ["x"]}), "groups of several nodes don't work yet"),
        ("args", json!({"draft": ["x"]}), "draft models don't work yet"),
    ] {
        let error =
            try_create(&runtimes, "BackendRuntime", &name, json!({"runtime": "vllm", field: value})).await.unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    for mut shipped in dunlin_k8s::engine::built_in().unwrap() {
        shipped.metadata.name = Some(format!("{name}-{}", shipped.spec.runtime));
        let made = runtimes.create(&PostParams::default(), &shipped).await.unwrap();
        assert_eq!(made.spec, shipped.spec);
    }
    cluster.clean().await;
}

/// Two managers of one list: each owns its entries, and neither takes the other's.
#[tokio::test]
async fn two_managers_share_lists_and_a_scaled_playground_is_not_scaled_back_in_silence() {
    let cluster = Cluster::new().await;
    let playgrounds = cluster.api::<Playground>();
    let apply = async |manager: &str, spec: Value| {
        let object = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "metadata": {"name": "chat"}, "spec": spec});
        playgrounds.patch("chat", &PatchParams::apply(manager), &Patch::Apply(object)).await
    };
    apply("one", json!({"model": "m", "replicas": 1, "runtime": {"env": [{"name": "A", "value": "1"}]}}))
        .await
        .unwrap();
    let both = apply("two", json!({"runtime": {"env": [{"name": "B", "value": "2"}]}})).await.unwrap();
    let names: Vec<String> = both.spec.runtime.unwrap().env.into_iter().map(|variable| variable.name).collect();
    assert_eq!(names, ["A", "B"]);
    let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
    playgrounds.patch_scale("chat", &PatchParams::default(), &scale).await.unwrap();
    let error = apply("one", json!({"model": "m", "replicas": 1, "runtime": {"env": [{"name": "A", "value": "1"}]}}))
        .await
        .unwrap_err();
    assert!(error.to_string().contains(".spec.replicas"), "{error}");
    cluster.clean().await;
}

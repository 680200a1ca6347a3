//! What goes wrong in clusters.

use crate::harness::{Cluster, condition, needs_fake, until};
use dunlin_k8s::resources::{BackendRuntime, Model, Phase, Playground, PlaygroundStatus};
use dunlin_k8s_fake::{Verb, simulate::Life};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Node, Pod, ResourceQuota},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

fn quota(hard: &str) -> Value {
    json!({"hard": {"pods": hard}})
}

async fn set_quota(cluster: &Cluster, hard: &str) {
    let object = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": quota(hard)});
    let quotas = cluster.api::<ResourceQuota>();
    let _ = quotas.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
    quotas.patch("few", &PatchParams::default(), &Patch::Merge(json!({"spec": quota(hard)}))).await.unwrap();
    // Where a controller manager runs, it writes the same.
    let status = json!({"status": {"hard": {"pods": hard}, "used": {"pods": "0"}}});
    quotas.patch_status("few", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test]
async fn what_a_quota_refuses_is_told_and_tried_again() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    set_quota(&cluster, "1").await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 3, json!({})).await;
    let status = cluster
        .settles("chat", "the refusal", |status| {
            condition(status, "Progressing").1 == "QuotaExceeded" && status.ready_replicas == 1
        })
        .await;
    let (going, _, message) = condition(&status, "Progressing");
    assert!(
        going == "False" && message.contains("exceeded quota: few") && message.contains("Raise the ResourceQuota"),
        "{message}"
    );
    assert_eq!(condition(&status, "Available").0, "False");
    set_quota(&cluster, "10").await;
    cluster.serves("chat", 3).await;
    cluster.is_tidy("chat", 3).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn without_room_every_flavor_is_named_and_a_node_that_comes_later_is_taken() {
    let mut cluster = Cluster::new().await;
    let full = cluster.node("h100", 1).await;
    cluster.model(&["h100", "a100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("first", 1, json!({})).await;
    cluster.serves("first", 1).await;
    cluster.playground("second", 1, json!({})).await;
    let no_room = |status: &PlaygroundStatus| condition(status, "Progressing").1 == "NoRoom";
    let status = cluster.settles("second", "the reason", no_room).await;
    let (_, _, message) = condition(&status, "Progressing");
    assert!(message.contains("h100: needs 1 nvidia.com/gpu, and 1 nodes have at most 0 free"), "{message}");
    assert!(message.contains("a100: no node has the labels gpu="), "{message}");
    // Its pod waits all the same, else no autoscaler would add a node; first as the better flavor, then as the next.
    let tried = |flavor: &'static str| {
        move |status: &PlaygroundStatus| {
            status.replica_states.iter().any(|state| state.pod_uid.is_some() && state.flavor.as_deref() == Some(flavor))
        }
    };
    cluster.settles("second", "a pod for the first flavor", tried("h100")).await;
    cluster.settles("second", "a pod for the second flavor", tried("a100")).await;
    cluster.settles("second", "a pod for the first flavor again", tried("h100")).await;
    let added = cluster.node("a100", 1).await;
    let status = cluster.serves("second", 1).await;
    let state = status.replica_states.iter().find(|state| state.phase == Phase::Ready).unwrap();
    assert_eq!((state.node.as_deref(), state.flavor.as_deref()), (Some(added.as_str()), Some("a100")));
    assert_ne!(full, added);
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_pod_that_was_planted_under_the_expected_name_is_not_adopted() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    cluster.playground("chat", 1, json!({})).await;
    let uid = cluster.api::<Playground>().get("chat").await.unwrap().uid().unwrap();
    let owner = json!([{"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "name": "chat", "uid": uid, "controller": true}]);
    let pod = |name: &str, owners: Value| {
        let labels = json!({"dunlin.dev/playground": "chat", "app.kubernetes.io/managed-by": "dunlin-orchestrator"});
        let metadata = json!({"name": name, "labels": labels, "ownerReferences": owners});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeSelector": {"gpu": cluster.namespace}, "containers": [{"name": "engine", "image": "evil"}]}})
    };
    let pods = cluster.api::<Pod>();
    let mut planted = Vec::new();
    // The first looks like ours in every way; the second is somebody's own, which happens to be called so.
    for object in [pod("chat-0-1", owner), pod("chat-0-2", json!([]))] {
        let created = pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        planted.push(created.uid().unwrap());
    }
    let orchestrator = cluster.orchestrator();
    let status = cluster.serves("chat", 1).await;
    assert_ne!(status.replica_states[0].name, "chat-0-2");
    assert!(!planted.contains(status.replica_states[0].pod_uid.as_ref().unwrap()));
    until("the impostor goes", async || pods.get_opt("chat-0-1").await.unwrap().is_none()).await;
    assert!(pods.get_opt("chat-0-2").await.unwrap().is_some(), "what is somebody else's stays");

    // Later ones too: they are no replicas, and go.
    let late = pod(
        "chat-9-9",
        json!([{"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "name": "chat", "uid": uid, "controller": true}]),
    );
    pods.create(&PostParams::default(), &serde_json::from_value(late).unwrap()).await.unwrap();
    until("the late impostor goes", async || pods.get_opt("chat-9-9").await.unwrap().is_none()).await;
    assert_eq!(cluster.status("chat").await.replica_states.len(), 1);
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_name_that_somebody_else_has_is_told_and_taken_once_it_is_free() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    names_that_are_taken(&cluster).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

/// A Playground `chat` with one replica, which comes upon objects of others under the names of its own. They go one by one,
/// but for the pod: a replica takes another name.
pub(crate) async fn names_that_are_taken(cluster: &Cluster) {
    cluster.playground("chat", 1, json!({})).await;
    let revision = cluster.serves("chat", 1).await.revision;
    cluster.delete("chat").await;
    until("its pods have gone", async || cluster.pods("chat").await.is_empty()).await;
    // Where nobody collects what has no owner any more, the test does.
    let (revisions, maps) = (cluster.api::<ControllerRevision>(), cluster.api::<ConfigMap>());
    let now = DeleteParams::background();
    let _ = revisions.delete(&revision, &now).await;
    let _ = maps.delete(&revision, &now).await;
    let named = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": revision}, "revision": 1});
    revisions
        .create(&PostParams::default(), &serde_json::from_value(named("ControllerRevision", "apps/v1")).unwrap())
        .await
        .unwrap();
    maps.create(&PostParams::default(), &serde_json::from_value(named("ConfigMap", "v1")).unwrap()).await.unwrap();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-0-1"}, "spec": {"nodeSelector": {"gpu": cluster.namespace}, "containers": [{"name": "c", "image": "theirs"}]}});
    cluster.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();

    cluster.playground("chat", 1, json!({})).await;
    for kind in ["ControllerRevision", "ConfigMap"] {
        let told = |status: &PlaygroundStatus| {
            let (going, reason, message) = condition(status, "Progressing");
            (going.as_str(), reason.as_str()) == ("False", "NameTaken")
                && message.contains(&format!("a {kind} \"{revision}\""))
        };
        cluster.settles("chat", &format!("that the name of the {kind} is taken"), told).await;
        if kind == "ConfigMap" {
            maps.delete(&revision, &DeleteParams::default()).await.unwrap();
        } else {
            revisions.delete(&revision, &DeleteParams::default()).await.unwrap();
        }
    }
    let status = cluster.serves("chat", 1).await;
    assert_ne!(status.replica_states[0].name, "chat-0-1");
    assert_eq!(condition(&status, "Progressing").1, "Complete");
}

#[tokio::test]
async fn a_pod_that_can_not_end_on_a_lost_node_does_not_hold_up_its_successor() {
    let mut cluster = Cluster::new().await;
    let lost = cluster.node("h100", 1).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let before = cluster.serves("chat", 1).await;
    cluster.node("h100", 1).await;
    let gone = lost.clone();
    let on_lost = move |pod: &Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(&gone);
    cluster.lives.set(move |pod| if on_lost(pod) { Life::Lost } else { Life::Ready });
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let taint = json!({"spec": {"unschedulable": true}});
    nodes.patch(&lost, &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "", "lastHeartbeatTime": null, "lastTransitionTime": null}]}});
    nodes.patch_status(&lost, &PatchParams::default(), &Patch::Merge(silent)).await.unwrap();
    // What the cluster does after the toleration is over.
    cluster.api::<Pod>().delete(&before.replica_states[0].name, &DeleteParams::default()).await.unwrap();
    let replaced = |status: &PlaygroundStatus| {
        let phases: Vec<Phase> = status.replica_states.iter().map(|state| state.phase).collect();
        phases.contains(&Phase::Ready) && phases.contains(&Phase::Draining) && status.replicas == 1
    };
    cluster.settles("chat", "a successor beside the one that can't end", replaced).await;
    // Nor does it hold up the end of the whole.
    cluster.delete("chat").await;
    let force = DeleteParams::default().grace_period(0);
    let _ = cluster.api::<Pod>().delete(&before.replica_states[0].name, &force).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_pod_that_takes_long_to_end_is_told_once() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 2, json!({})).await;
    cluster.serves("chat", 2).await;
    cluster.lives.set(|pod| if pod.metadata.deletion_timestamp.is_some() { Life::Lost } else { Life::Ready });
    cluster.fake_server().forget_calls();
    cluster.change("chat", json!({"replicas": 1})).await;
    let drains = |status: &PlaygroundStatus| status.replica_states.iter().any(|state| state.phase == Phase::Draining);
    cluster.settles("chat", "a replica that drains", drains).await;
    // Each gives it a reason to look again.
    for number in 0..20 {
        let patch = json!({"metadata": {"annotations": {"look": number.to_string()}}});
        cluster.api::<Playground>().patch("chat", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let calls = cluster.fake_server().calls();
    let told = calls.iter().filter(|call| call.client == "orchestrator" && call.verb == Verb::Delete);
    assert_eq!(told.map(|call| call.plural.as_str()).collect::<Vec<_>>(), ["pods"]);
    cluster.lives.set(|_| Life::Ready);
    cluster.serves("chat", 1).await;
    cluster.is_tidy("chat", 1).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn what_a_container_waits_for_is_told_with_the_next_step() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    cluster.lives.set(|_| Life::MissingSecret);
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let status =
        cluster.settles("chat", "the reason", |status| condition(status, "Progressing").1 == "MissingConfig").await;
    let message = condition(&status, "Progressing").2;
    assert!(message.contains("secret \"hub\" not found") && message.contains("spec.secretName"), "{message}");
    // A pod that ended is replaced, later each time.
    cluster.lives.set(|pod| if pod.name_any().ends_with("-4") { Life::Ready } else { Life::Fails });
    let status = cluster.serves("chat", 1).await;
    assert_eq!(status.replica_states[0].attempt, 4);
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn bad_objects_are_told_and_the_good_ones_go_on() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    let why = async |name: &str, reason: &str| {
        let status = cluster.settles(name, reason, |status| condition(status, "Progressing").1 == reason).await;
        condition(&status, "Progressing").2
    };
    cluster.playground("no-model", 1, json!({"model": "nothing"})).await;
    let message = why("no-model", "ModelNotFound").await;
    assert!(message.contains("There are: ") && message.contains("spec.model"), "{message}");
    cluster.playground("no-runtime", 1, json!({"runtime": {"name": "nothing"}})).await;
    assert!(why("no-runtime", "RuntimeNotFound").await.contains("spec.runtime.name"));
    cluster.playground("no-flavor", 1, json!({"flavors": ["b200"]})).await;
    assert!(why("no-flavor", "FlavorNotFound").await.contains("it has: h100"));
    cluster.playground("no-config", 1, json!({"runtime": {"name": cluster.namespace, "config": "fast"}})).await;
    assert!(why("no-config", "BadRuntime").await.contains("recommended configuration"));
    cluster.playground("good", 1, json!({})).await;
    cluster.serves("good", 1).await;

    // What was wrong is put right, and it goes on by itself.
    cluster.change("no-flavor", json!({"flavors": ["h100"]})).await;
    cluster.serves("no-flavor", 1).await;
    // Found by the name that clients use.
    cluster.change("no-model", json!({"model": format!("org/{}", cluster.namespace)})).await;
    cluster.serves("no-model", 1).await;

    // Without its Model a Playground goes on as it is, and scales.
    Api::<Model>::all(cluster.client.clone()).delete(&cluster.namespace, &DeleteParams::default()).await.unwrap();
    Api::<BackendRuntime>::all(cluster.client.clone())
        .delete(&cluster.namespace, &DeleteParams::default())
        .await
        .unwrap();
    cluster.change("good", json!({"replicas": 2})).await;
    cluster.serves("good", 2).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn two_playgrounds_share_what_there_is_and_nobody_is_moved() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 2).await;
    cluster.node("h100", 2).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("one", 2, json!({})).await;
    cluster.playground("two", 2, json!({})).await;
    let one = cluster.serves("one", 2).await;
    cluster.serves("two", 2).await;
    let uids = |status: &PlaygroundStatus| {
        status.replica_states.iter().map(|state| state.pod_uid.clone()).collect::<BTreeSet<_>>()
    };
    cluster.change("two", json!({"replicas": 1})).await;
    cluster.serves("two", 1).await;
    assert_eq!(uids(&cluster.status("one").await), uids(&one));
    let nodes: BTreeSet<String> =
        cluster.pods("one").await.iter().filter_map(|pod| pod.spec.clone()?.node_name).collect();
    // A real scheduler weighs the preference against its own.
    assert!(nodes.len() == 1 || cluster.fake.is_none(), "packed, so that large holes stay");
    let all = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    assert!(all.len() <= 4);
    orchestrator.stop().await;
    cluster.clean().await;
}

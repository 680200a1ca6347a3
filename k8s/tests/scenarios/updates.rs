//! Update, undo, restart, pause.

use crate::harness::{Cluster, condition, until};
use dunlin_k8s::{
    resources::{BackendRuntime, Phase, PlaygroundStatus},
    rollout,
};
use dunlin_k8s_fake::simulate::Life;
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

fn args(pod: &Pod) -> String {
    let engine = pod.spec.as_ref().unwrap().containers.iter().find(|container| container.name == "engine").unwrap();
    engine.args.clone().unwrap().join(" ")
}

#[tokio::test]
async fn an_update_replaces_one_after_the_other_and_undo_goes_back() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 3, json!({})).await;
    let first = cluster.serves("chat", 3).await;
    cluster.change("chat", json!({"runtime": {"args": ["--dtype=half"]}})).await;
    let updated = |status: &PlaygroundStatus| {
        status.revision != first.revision && [status.updated_replicas, status.ready_replicas, status.replicas] == [3; 3]
    };
    cluster.settles("chat", "the update", updated).await;
    cluster.is_tidy("chat", 3).await;
    assert!(cluster.pods("chat").await.iter().all(|pod| args(pod).contains("--dtype=half")));

    let undone = rollout::undo(&cluster.client, &cluster.namespace, "chat", None).await.unwrap();
    assert_eq!(undone, first.revision);
    let third = cluster
        .settles("chat", "the undo", |status| {
            status.revision == first.revision && status.updated_replicas == 3 && status.ready_replicas == 3
        })
        .await;
    assert_eq!(third.revision, first.revision, "the old revision itself, not a new one like it");
    cluster.is_tidy("chat", 3).await;
    assert!(cluster.pods("chat").await.iter().all(|pod| !args(pod).contains("--dtype=half")));
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn never_fewer_serve_than_promised_while_an_update_goes_on() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 3, json!({})).await;
    cluster.serves("chat", 3).await;
    // Whatever the status says: counted in pods.
    let count = async || {
        let pods = cluster.pods("chat").await;
        let ready = |pod: &&Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            pod.metadata.deletion_timestamp.is_none()
                && conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        };
        let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        (pods.iter().filter(ready).count(), live)
    };
    cluster.change("chat", json!({"runtime": {"args": ["--seed=1"]}})).await;
    let mut updated = false;
    while !updated {
        let (ready, live) = count().await;
        assert!(ready >= 3, "{ready} of 3 serve");
        assert!(live <= 4, "{live} replicas with a surge of 1");
        updated = cluster.pods("chat").await.iter().all(|pod| args(pod).contains("--seed=1"));
    }
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_broken_update_stops_with_the_old_ones_serving_and_says_why() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 2, json!({"strategy": {"progressDeadlineSeconds": 1}})).await;
    let first = cluster.serves("chat", 2).await;
    cluster.lives.set(|pod| if args(pod).contains("--broken") { Life::Loads } else { Life::Ready });
    cluster.change("chat", json!({"runtime": {"args": ["--broken"]}})).await;
    let stuck = cluster
        .settles("chat", "the deadline", |status| condition(status, "Progressing").1 == "ProgressDeadlineExceeded")
        .await;
    assert_eq!((stuck.ready_replicas, stuck.replicas, condition(&stuck, "Available").0.as_str()), (2, 3, "True"));
    cluster.lives.set(|pod| if args(pod).contains("--broken") { Life::CannotPull } else { Life::Ready });
    let stuck = cluster.settles("chat", "the reason", |status| condition(status, "Progressing").1 == "ImagePull").await;
    assert!(condition(&stuck, "Progressing").2.contains("imagePullSecrets"), "the next step is named");
    rollout::undo(&cluster.client, &cluster.namespace, "chat", None).await.unwrap();
    let back = cluster
        .settles("chat", "the undo", |status| {
            status.revision == first.revision && condition(status, "Progressing").1 == "Complete"
        })
        .await;
    let survivors =
        first.replica_states.iter().all(|old| back.replica_states.iter().any(|new| new.pod_uid == old.pod_uid));
    assert!(survivors, "those that served were left alone");
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_change_of_the_runtime_waits_for_a_restart() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let first = cluster.serves("chat", 1).await;
    let runtimes: Api<BackendRuntime> = Api::all(cluster.client.clone());
    let newer = Patch::Merge(json!({"spec": {"version": "v2"}}));
    runtimes.patch(&cluster.namespace, &PatchParams::default(), &newer).await.unwrap();
    let outdated = cluster.settles("chat", "the mark", |status| condition(status, "Outdated").0 == "True").await;
    assert_eq!(outdated.replica_states[0].pod_uid, first.replica_states[0].pod_uid);
    rollout::restart(&cluster.client, &cluster.namespace, "chat", "2026-01-01T00:00:00Z").await.unwrap();
    let rolled = |status: &PlaygroundStatus| {
        status.revision != first.revision
            && condition(status, "Progressing").1 == "Complete"
            && condition(status, "Outdated").0 == "False"
    };
    cluster.settles("chat", "the restart", rolled).await;
    let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    until("the new image", async || {
        let pods = cluster.pods("chat").await;
        pods.len() == 1 && image(&pods[0]) == "vllm/vllm-openai:v2"
    })
    .await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_paused_playground_scales_and_does_not_update() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let first = cluster.serves("chat", 1).await;
    rollout::pause(&cluster.client, &cluster.namespace, "chat", true).await.unwrap();
    cluster.change("chat", json!({"runtime": {"args": ["--seed=2"]}, "replicas": 2})).await;
    let paused = cluster.serves("chat", 2).await;
    assert_eq!(paused.revision, first.revision);
    assert!(cluster.pods("chat").await.iter().all(|pod| !args(pod).contains("--seed=2")));
    rollout::pause(&cluster.client, &cluster.namespace, "chat", false).await.unwrap();
    cluster
        .settles("chat", "the update", |status| {
            status.revision != first.revision && condition(status, "Progressing").1 == "Complete"
        })
        .await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn without_room_for_a_second_one_an_update_says_so_or_takes_one_down() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 2).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("pair", 2, json!({})).await;
    let first = cluster.serves("pair", 2).await;
    cluster.change("pair", json!({"runtime": {"args": ["--seed=3"]}})).await;
    cluster
        .settles("pair", "the update in place", |status| {
            status.revision != first.revision && condition(status, "Progressing").1 == "Complete"
        })
        .await;
    cluster.delete("pair").await;
    until("its pods have gone", async || cluster.pods("pair").await.is_empty()).await;

    cluster.change_node_to_one_gpu().await;
    cluster.playground("single", 1, json!({})).await;
    cluster.serves("single", 1).await;
    cluster.change("single", json!({"runtime": {"args": ["--seed=4"]}})).await;
    let cramped = cluster
        .settles("single", "the condition", |status| condition(status, "Progressing").1 == "NoRoomForSurge")
        .await;
    assert!(condition(&cramped, "Progressing").2.contains("maxUnavailable"));
    assert_eq!(cramped.replica_states.iter().filter(|state| state.phase == Phase::Ready).count(), 1);
    cluster.change("single", json!({"strategy": {"maxUnavailable": 1}})).await;
    cluster
        .settles("single", "the update", |status| {
            status.ready_replicas == 1 && condition(status, "Progressing").1 == "Complete"
        })
        .await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn five_revisions_are_kept() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    cluster.serves("chat", 1).await;
    for seed in 0..7 {
        let before = cluster.status("chat").await.revision;
        cluster.change("chat", json!({"runtime": {"args": [format!("--seed={seed}")]}})).await;
        cluster
            .settles("chat", "the update", |status| {
                status.revision != before && condition(status, "Progressing").1 == "Complete"
            })
            .await;
    }
    let count = async || cluster.api::<ControllerRevision>().list(&ListParams::default()).await.unwrap().items.len();
    until("five are left", async || count().await == 5).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

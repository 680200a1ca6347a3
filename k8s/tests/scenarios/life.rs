//! Create, scale, delete.

use crate::harness::{Cluster, condition, until};
use dunlin_k8s::{
    names,
    resources::{Phase, Playground},
};
use dunlin_k8s_fake::simulate::Life;
use k8s_openapi::api::{
    apps::v1::ControllerRevision, core::v1::ConfigMap, networking::v1::NetworkPolicy, policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

#[tokio::test]
async fn a_playground_becomes_replicas_that_serve_and_goes_without_a_trace() {
    let mut cluster = Cluster::new().await;
    let node = cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 2, json!({})).await;
    let status = cluster.serves("chat", 2).await;
    cluster.is_tidy("chat", 2).await;
    for state in &status.replica_states {
        assert_eq!(
            (state.phase, state.flavor.as_deref(), state.node.as_deref()),
            (Phase::Ready, Some("h100"), Some(node.as_str()))
        );
        assert_eq!(state.name, names::pod("chat", state.ordinal, state.attempt));
    }
    assert_eq!(condition(&status, "Available").0, "True");
    let (going, reason, _) = condition(&status, "Progressing");
    assert_eq!((going.as_str(), reason.as_str()), ("True", "Complete"));
    let playground = cluster.api::<Playground>().get("chat").await.unwrap();
    assert_eq!(playground.finalizers(), [names::FINALIZER]);
    for pod in cluster.pods("chat").await {
        let owner = &pod.owner_references()[0];
        assert_eq!((owner.uid.as_str(), owner.controller), (playground.uid().unwrap().as_str(), Some(true)));
    }
    let sole = names::sole("chat");
    assert!(
        cluster.api::<NetworkPolicy>().get(&sole).await.is_ok()
            && cluster.api::<PodDisruptionBudget>().get(&sole).await.is_ok()
    );
    assert!(
        cluster.api::<ConfigMap>().get(&status.revision).await.unwrap().data.unwrap()["runtime.toml"]
            .contains("name = \"vllm\"")
    );

    // As `kubectl scale` and an autoscaler do.
    let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
    cluster.api::<Playground>().patch_scale("chat", &PatchParams::default(), &scale).await.unwrap();
    cluster.serves("chat", 4).await;
    let scale = cluster.api::<Playground>().get_scale("chat").await.unwrap();
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("dunlin.dev/playground=chat"));
    cluster.change("chat", json!({"replicas": 1})).await;
    cluster.serves("chat", 1).await;
    cluster.is_tidy("chat", 1).await;
    cluster.change("chat", json!({"replicas": 0})).await;
    let status = cluster.serves("chat", 0).await;
    assert_eq!(condition(&status, "Available").1, "NotNeeded");
    cluster.is_tidy("chat", 0).await;
    cluster.change("chat", json!({"replicas": 2})).await;
    let status = cluster.serves("chat", 2).await;
    assert_eq!(status.attempts, 6, "no name is used twice");

    cluster.delete("chat").await;
    until("the pods have gone", async || cluster.pods("chat").await.is_empty()).await;
    if cluster.fake.is_some() {
        let revisions = cluster.api::<ControllerRevision>().list(&ListParams::default()).await.unwrap();
        assert!(revisions.items.is_empty(), "what it owned has gone with it");
    }
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_replica_whose_pod_is_deleted_gets_a_successor() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 2, json!({})).await;
    let before = cluster.serves("chat", 2).await;
    let lost = before.replica_states[0].clone();
    cluster
        .api::<k8s_openapi::api::core::v1::Pod>()
        .delete(&lost.name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let replaced = |status: &dunlin_k8s::resources::PlaygroundStatus| {
        status.ready_replicas == 2 && status.replica_states.iter().all(|state| state.name != lost.name)
    };
    let after = cluster.settles("chat", "a successor", replaced).await;
    let successor = after.replica_states.iter().find(|state| state.ordinal == lost.ordinal).unwrap();
    assert!(successor.attempt > lost.attempt && successor.pod_uid != lost.pod_uid);
    orchestrator.stop().await;
    cluster.clean().await;
}

/// What they still answer is not cut off by the end of what they belong to.
#[tokio::test]
async fn a_deleted_playground_stays_until_its_replicas_have_ended() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    cluster.serves("chat", 1).await;
    // It has been told, and takes its time.
    cluster.lives.set(|_| Life::Lost);
    let playgrounds = cluster.api::<Playground>();
    playgrounds.delete("chat", &kube::api::DeleteParams::default()).await.unwrap();
    let is_told = async || cluster.pods("chat").await.iter().all(|pod| pod.metadata.deletion_timestamp.is_some());
    until("its replica is told to end", is_told).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(cluster.pods("chat").await.len(), 1);
    assert_eq!(playgrounds.get("chat").await.unwrap().finalizers(), [names::FINALIZER]);
    cluster.lives.set(|_| Life::Ready);
    until("it has gone", async || playgrounds.get_opt("chat").await.is_ok_and(|found| found.is_none())).await;
    assert!(cluster.pods("chat").await.is_empty());
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn what_belongs_to_a_playground_is_mended() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let status = cluster.serves("chat", 1).await;
    let policies = cluster.api::<NetworkPolicy>();
    let sole = names::sole("chat");
    let opened = Patch::Merge(json!({"spec": {"ingress": [{}]}}));
    policies.patch(&sole, &PatchParams::default(), &opened).await.unwrap();
    until("the policy is closed again", async || {
        policies.get(&sole).await.unwrap().spec.unwrap().ingress.unwrap()[0].ports.is_some()
    })
    .await;
    let gone = kube::api::DeleteParams::default();
    cluster.api::<PodDisruptionBudget>().delete(&sole, &gone).await.unwrap();
    cluster.api::<ConfigMap>().delete(&status.revision, &gone).await.unwrap();
    until("both are back", async || {
        cluster.api::<PodDisruptionBudget>().get(&sole).await.is_ok()
            && cluster.api::<ConfigMap>().get(&status.revision).await.is_ok()
    })
    .await;
    orchestrator.stop().await;
    cluster.clean().await;
}

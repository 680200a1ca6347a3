//! What goes wrong with the API server, and between it and the orchestrator.

use crate::harness::{Cluster, condition, needs_fake, until};
use dunlin_k8s::resources::{Playground, ReplicaState};
use dunlin_k8s_fake::{Fate, Verb};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

#[tokio::test]
async fn an_object_that_can_not_be_read_hides_no_other() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 4).await;
    cluster.model(&["h100"]).await;
    // As a definition of another version may have let it in.
    let odd = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "metadata": {"name": "odd", "namespace": cluster.namespace}, "spec": {"model": "m", "replicas": "many"}});
    let model = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Model", "metadata": {"name": "odd"}, "spec": {"flavors": 1}});
    cluster.fake_server().load("playgrounds", [odd]);
    cluster.fake_server().load("models", [model]);
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    cluster.serves("chat", 1).await;
    cluster.playground("of-odd", 1, json!({"model": "odd"})).await;
    cluster.settles("of-odd", "the reason", |status| condition(status, "Progressing").1 == "BadModel").await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_server_that_is_away_for_a_while_is_waited_for() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    let before = cluster.serves("chat", 1).await;
    let fake = cluster.fake_server().clone();
    fake.set_down(true);
    tokio::time::sleep(Duration::from_millis(300)).await;
    fake.set_down(false);
    cluster.change("chat", json!({"replicas": 3})).await;
    let after = cluster.serves("chat", 3).await;
    assert!(
        after.replica_states.iter().any(|state| state.pod_uid == before.replica_states[0].pod_uid),
        "who served was left alone"
    );
    cluster.is_tidy("chat", 3).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn answers_that_are_lost_create_nothing_twice() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let mut number = 0;
    cluster.fake_server().on_call(move |call| {
        if call.client != "orchestrator" || call.plural == "leases" || !call.verb.writes() {
            return Fate::Works;
        }
        number += 1;
        match number % 3 {
            0 => Fate::AnswerLost,
            1 => Fate::Works,
            _ => Fate::Refused(500, "InternalError", "etcdserver: request timed out".to_owned()),
        }
    });
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 3, json!({})).await;
    cluster.serves("chat", 3).await;
    cluster.fake_server().all_well();
    cluster.is_tidy("chat", 3).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn somebody_who_writes_at_the_same_time_is_not_overwritten() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    // An annotation with every breath, as some tools do.
    for number in 0..60 {
        let patch =
            json!({"metadata": {"annotations": {"noise": number.to_string()}}, "spec": {"replicas": 1 + number % 3}});
        cluster.api::<Playground>().patch("chat", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    cluster.serves("chat", 3).await;
    cluster.is_tidy("chat", 3).await;
    let playground = cluster.api::<Playground>().get("chat").await.unwrap();
    assert_eq!(playground.annotations()["noise"], "59");
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_watch_that_has_expired_starts_anew_and_misses_nothing() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 2, json!({})).await;
    let before = cluster.serves("chat", 2).await;
    let fake = cluster.fake_server().clone();
    fake.set_down(true);
    fake.expire_watches();
    fake.set_down(false);
    // While nobody watches: one goes, one is added, one is planted.
    fake.on_call(|call| {
        if call.client == "orchestrator" && call.verb == Verb::Watch {
            Fate::Refused(503, "ServiceUnavailable", "no watches now".to_owned())
        } else {
            Fate::Works
        }
    });
    let gone = &before.replica_states[0].name;
    cluster.api::<Pod>().delete(gone, &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.change("chat", json!({"replicas": 3})).await;
    fake.expire_watches();
    fake.all_well();
    cluster.serves("chat", 3).await;
    cluster.is_tidy("chat", 3).await;
    fake.expire_watches();
    cluster.change("chat", json!({"replicas": 1})).await;
    cluster.serves("chat", 1).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn a_watch_whose_start_is_refused_as_too_old_lists_anew() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 1, json!({})).await;
    cluster.serves("chat", 1).await;
    // Some servers say it with the status of the answer instead of an event.
    let fake = cluster.fake_server().clone();
    let oldest = fake.version() + 1;
    fake.on_call(move |call| match call.verb {
        Verb::Watch if call.client == "orchestrator" && (1..oldest).contains(&call.starts_from()) => {
            Fate::Refused(410, "Expired", "too old resource version".to_owned())
        }
        _ => Fate::Works,
    });
    fake.set_down(true);
    fake.set_down(false);
    cluster.change("chat", json!({"replicas": 3})).await;
    cluster.serves("chat", 3).await;
    cluster.is_tidy("chat", 3).await;
    orchestrator.stop().await;
    cluster.clean().await;
}

/// An orchestrator that has died may have sent what arrives when its successor has long decided otherwise.
#[tokio::test]
async fn a_status_that_arrives_late_overwrites_no_newer_one() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let sent = Arc::new(AtomicBool::new(false));
    let (late, sends) = (Duration::from_secs(6), sent.clone());
    // The first of its statuses that names a pod: those before stand in for it with a name alone.
    let fake = cluster.fake_server().clone();
    let pods = fake.clone();
    fake.on_call(move |call| {
        let is_status = call.client == "one" && call.resource() == "playgrounds/status" && call.verb.writes();
        if is_status && pods.count("pods", |_| true) > 0 && !sends.swap(true, Ordering::Relaxed) {
            return Fate::Late(late);
        }
        Fate::Works
    });
    let one = cluster.orchestrator_with(cluster.config("one"), "one");
    cluster.playground("chat", 1, json!({})).await;
    until("the first has sent its status", async || sent.load(Ordering::Relaxed)).await;
    one.kill().await;
    let two = cluster.orchestrator_with(cluster.config("two"), "two");
    cluster.change("chat", json!({"replicas": 2})).await;
    let before = cluster.serves("chat", 2).await;
    let watched = tokio::time::Instant::now() + late;
    while tokio::time::Instant::now() < watched {
        let now = cluster.status("chat").await;
        let is_on_record = |state: &ReplicaState| now.replica_states.iter().any(|one| one.pod_uid == state.pod_uid);
        assert!(
            now.observed_generation >= before.observed_generation && before.replica_states.iter().all(is_on_record),
            "{now:#?} after {before:#?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    cluster.is_tidy("chat", 2).await;
    two.stop().await;
    cluster.clean().await;
}

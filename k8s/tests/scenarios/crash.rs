//! Killed between any two calls, and started again: nothing is lost, nothing is there twice.

use crate::harness::{Cluster, condition, needs_fake, until};
use dunlin_k8s_fake::{Call, Fate, Verb};
use futures::{FutureExt, StreamExt, stream};
use serde_json::json;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// Stories that are tried at once.
const AT_ONCE: usize = 6;

/// A part of a Playground's life, to be cut anywhere.
#[derive(Debug, Clone, Copy)]
enum Story {
    Create,
    Update,
    Scale,
    Delete,
}

impl Story {
    async fn prepare(self, cluster: &Cluster) {
        if !matches!(self, Self::Create) {
            cluster.playground("chat", 2, json!({})).await;
            let orchestrator = cluster.orchestrator();
            cluster.serves("chat", 2).await;
            cluster.is_tidy("chat", 2).await;
            orchestrator.stop().await;
        }
    }

    async fn begin(self, cluster: &Cluster) {
        match self {
            Self::Create => cluster.playground("chat", 2, json!({})).await,
            Self::Update => cluster.change("chat", json!({"runtime": {"args": ["--seed=1"]}})).await,
            Self::Scale => cluster.change("chat", json!({"replicas": 4})).await,
            Self::Delete => {
                let now = kube::api::DeleteParams::default();
                cluster.api::<dunlin_k8s::resources::Playground>().delete("chat", &now).await.unwrap();
            }
        }
    }

    async fn ends_well(self, cluster: &Cluster) {
        match self {
            Self::Create => drop(cluster.serves("chat", 2).await),
            Self::Scale => drop(cluster.serves("chat", 4).await),
            Self::Update => {
                let updated = cluster.serves("chat", 2).await;
                assert!(updated.attempts > 2);
                cluster.settles("chat", "the update", |status| condition(status, "Progressing").1 == "Complete").await;
            }
            Self::Delete => {
                until("it has gone", async || cluster.fake_server().all("playgrounds").is_empty()).await;
                until("its pods have gone", async || cluster.pods("chat").await.is_empty()).await;
                return;
            }
        }
        cluster.is_tidy("chat", if matches!(self, Self::Scale) { 4 } else { 2 }).await;
    }
}

fn counts(call: &Call) -> bool {
    call.client == "orchestrator" && call.plural != "leases"
}

async fn cluster_for(story: Story) -> Cluster {
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    story.prepare(&cluster).await;
    cluster.fake_server().forget_calls();
    cluster
}

/// How many calls a story takes that nobody disturbs.
async fn calls_of(story: Story) -> usize {
    let cluster = cluster_for(story).await;
    let orchestrator = cluster.orchestrator();
    story.begin(&cluster).await;
    story.ends_well(&cluster).await;
    orchestrator.stop().await;
    let calls = cluster.fake_server().calls().iter().filter(|call| counts(call)).count();
    cluster.clean().await;
    calls
}

/// Kills the orchestrator at its call number `at`, before it works or before its answer comes, and starts another.
async fn cut(story: Story, at: usize, fate: Fate) {
    let cluster = cluster_for(story).await;
    let (seen, reached) = (AtomicUsize::new(0), Arc::new(Notify::new()));
    let there = reached.clone();
    let cut = fate.clone();
    cluster.fake_server().on_call(move |call| {
        if !counts(call) {
            return Fate::Works;
        }
        match seen.fetch_add(1, Ordering::Relaxed) {
            number if number < at => Fate::Works,
            number if number == at => {
                there.notify_one();
                cut.clone()
            }
            // Who is dead sends nothing more.
            _ => Fate::HangsBefore,
        }
    });
    let orchestrator = cluster.orchestrator();
    story.begin(&cluster).await;
    // A story that took a call less this time has no such prefix.
    let cut_off = tokio::time::timeout(std::time::Duration::from_secs(2), reached.notified()).await;
    orchestrator.kill().await;
    cluster.fake_server().all_well();
    let successor = cluster.orchestrator();
    let end = AssertUnwindSafe(story.ends_well(&cluster)).catch_unwind().await;
    assert!(end.is_ok(), "{story:?} cut at call {at} ({fate:?}, reached: {})", cut_off.is_ok());
    successor.stop().await;
    cluster.clean().await;
}

async fn every_prefix(story: Story) {
    if needs_fake() {
        return;
    }
    let calls = calls_of(story).await;
    assert!(calls >= 3, "{story:?} takes {calls} calls");
    let cuts = (0..calls).flat_map(|at| [(at, Fate::HangsBefore), (at, Fate::HangsAfter)]);
    let cuts = cuts.map(|(at, fate)| cut(story, at, fate));
    stream::iter(cuts).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// What makes all of that safe: there are never more pods than the stored status has given names to.
#[tokio::test]
async fn a_pod_is_created_only_once_its_name_is_stored() {
    if needs_fake() {
        return;
    }
    let cluster = cluster_for(Story::Create).await;
    let (fake, namespace) = (cluster.fake_server().clone(), cluster.namespace.clone());
    let (created, ahead) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = ahead.clone();
    cluster.fake_server().on_call(move |call| {
        if counts(call) && call.verb == Verb::Create && call.plural == "pods" {
            let pods = created.fetch_add(1, Ordering::Relaxed) + 1;
            let stored = fake.stored("playgrounds", &namespace, "chat").unwrap_or_default();
            let named =
                stored["status"]["attempts"].as_u64().and_then(|named| usize::try_from(named).ok()).unwrap_or(0);
            seen.fetch_max(pods.saturating_sub(named), Ordering::Relaxed);
        }
        Fate::Works
    });
    let orchestrator = cluster.orchestrator();
    for story in [Story::Create, Story::Scale, Story::Update] {
        story.begin(&cluster).await;
        let replicas = if matches!(story, Story::Create) { 2 } else { 4 };
        cluster.serves("chat", replicas).await;
    }
    assert_eq!(ahead.load(Ordering::Relaxed), 0, "pods whose names are stored nowhere");
    orchestrator.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn killed_while_it_creates() {
    every_prefix(Story::Create).await;
}

#[tokio::test]
async fn killed_while_it_updates() {
    every_prefix(Story::Update).await;
}

#[tokio::test]
async fn killed_while_it_scales() {
    every_prefix(Story::Scale).await;
}

#[tokio::test]
async fn killed_while_it_deletes() {
    every_prefix(Story::Delete).await;
}

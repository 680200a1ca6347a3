//! Two orchestrators and one lease.

use crate::harness::{Cluster, needs_fake, until};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use std::collections::BTreeSet;

async fn holder(cluster: &Cluster) -> String {
    let lease = cluster.api::<Lease>().get_opt("dunlin-orchestrator").await.ok().flatten();
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

#[tokio::test]
async fn the_second_takes_over_when_the_first_ends_and_when_it_dies() {
    let mut cluster = Cluster::new().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let one = cluster.orchestrator_with(cluster.config("one"), "one");
    until("the first leads", async || holder(&cluster).await == "one").await;
    let two = cluster.orchestrator_with(cluster.config("two"), "two");
    cluster.playground("chat", 1, json!({})).await;
    cluster.serves("chat", 1).await;
    one.stop().await;
    until("the second leads", async || holder(&cluster).await == "two").await;
    cluster.change("chat", json!({"replicas": 2})).await;
    cluster.serves("chat", 2).await;
    let three = cluster.orchestrator_with(cluster.config("three"), "three");
    two.kill().await;
    cluster.change("chat", json!({"replicas": 3})).await;
    cluster.serves("chat", 3).await;
    assert_eq!(holder(&cluster).await, "three");
    cluster.is_tidy("chat", 3).await;
    three.stop().await;
    cluster.clean().await;
}

#[tokio::test]
async fn the_stand_by_writes_nothing() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let one = cluster.orchestrator_with(cluster.config("one"), "one");
    until("the first leads", async || holder(&cluster).await == "one").await;
    let two = cluster.orchestrator_with(cluster.config("two"), "two");
    cluster.playground("chat", 3, json!({})).await;
    cluster.serves("chat", 3).await;
    let calls = cluster.fake_server().calls();
    let by_two: BTreeSet<&str> =
        calls.iter().filter(|call| call.client == "two").map(|call| call.plural.as_str()).collect();
    assert_eq!(by_two, BTreeSet::from(["leases"]));
    one.stop().await;
    two.stop().await;
    cluster.clean().await;
}

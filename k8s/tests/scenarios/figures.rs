//! What it costs: calls, time on the processor, memory. `docs/kubernetes.md` has what an optimised build takes:
//! `cargo test --profile bench --workspace --test scenarios -- --nocapture figures`.

use crate::harness::{Cluster, needs_fake};
use dunlin_k8s::{controller, mesh::Readiness, settings::Patience};
use dunlin_k8s_fake::Call;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Replicas of the small cluster, Playgrounds and pods of others in the large one. A build for tests, and what plays the
/// kubelets in it, take tens of times as long as optimised ones: they get a part.
const REPLICAS: i32 = if cfg!(debug_assertions) { 20 } else { 100 };
const PLAYGROUNDS: usize = if cfg!(debug_assertions) { 200 } else { 1_000 };
const FOREIGN: usize = if cfg!(debug_assertions) { 5_000 } else { 20_000 };
/// Time on the processor for all replicas, and for all Playgrounds, seconds.
const REPLICAS_TAKE: f64 = 5.0;
const PLAYGROUNDS_TAKE: f64 = 30.0;
/// Longest wait: a busy machine proves nothing.
const WAIT: Duration = Duration::from_secs(300);

fn by_controller(calls: &[Call]) -> Vec<&Call> {
    let by_it = |call: &&Call| ["orchestrator", "socket"].contains(&call.client) && call.plural != "leases";
    calls.iter().filter(by_it).collect()
}

fn summary(calls: &[&Call]) -> String {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for call in calls {
        let slash = if call.subresource.is_empty() { "" } else { "/" };
        *counts.entry(format!("{:?} {}{slash}{}", call.verb, call.plural, call.subresource)).or_default() += 1;
    }
    format!("{counts:?}")
}

#[tokio::test]
async fn one_replica_takes_four_writes() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    cluster.node("h100", 8).await;
    cluster.model(&["h100"]).await;
    let orchestrator = cluster.orchestrator();
    cluster.playground("chat", 0, json!({})).await;
    cluster.serves("chat", 0).await;
    cluster.fake_server().forget_calls();
    cluster.change("chat", json!({"replicas": 1})).await;
    cluster.serves("chat", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let calls = cluster.fake_server().calls();
    let calls = by_controller(&calls);
    let writes = calls.iter().filter(|call| call.verb.writes()).count();
    println!("1 replica: {}", summary(&calls));
    assert!(writes <= 4, "{}", summary(&calls));
    orchestrator.stop().await;
    cluster.clean().await;
}

/// The orchestrator of the tests below, in a process of its own so that its memory and its time can be told. As patient as
/// it is with people.
#[test]
#[ignore = "a process of the tests below"]
fn orchestrator_process() {
    let (Ok(url), Ok(namespace)) = (std::env::var("DUNLIN_TEST_FAKE_URL"), std::env::var("DUNLIN_TEST_FAKE_NAMESPACE"))
    else {
        return;
    };
    crate::harness::log();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = dunlin_k8s::connect(kube::Config::new(url.parse().unwrap())).unwrap();
        let config = controller::Config { patience: Patience::default(), ..crate::harness::config(&namespace, "one") };
        controller::run(client, config, Arc::new(Readiness), CancellationToken::new()).await;
    });
}

/// That process, and the socket of its API server. Both end with their owner.
struct Process {
    child: Child,
    server: JoinHandle<std::io::Result<()>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.server.abort();
    }
}

impl Process {
    async fn start(cluster: &Cluster) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(cluster.fake_server().clone().serve(listener));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "figures::orchestrator_process", "--ignored", "--nocapture"])
            .envs([("DUNLIN_TEST_FAKE_URL", &url), ("DUNLIN_TEST_FAKE_NAMESPACE", &cluster.namespace)])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, server }
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// The most memory that was resident, MiB.
    fn memory(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() / 1024
    }

    /// Time on the processor, seconds: user and system, in hundredths (proc_pid_stat(5)).
    fn busy(&self) -> f64 {
        let stat = self.proc("stat");
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
        (ticks(11) + ticks(12)) / 100.0
    }

    /// Waits for what it does, and then for a while in which it does nothing but hold its lease.
    async fn rests(&self, cluster: &Cluster) {
        // The last status may be held back for a moment.
        tokio::time::sleep(Patience::default().status * 2).await;
        cluster.fake_server().forget_calls();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let calls = cluster.fake_server().calls();
        let calls = by_controller(&calls);
        assert!(calls.is_empty(), "at rest: {}", summary(&calls));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_replicas_take_seconds_and_few_calls_and_then_none() {
    if needs_fake() {
        return;
    }
    let mut cluster = Cluster::fake().await;
    for _ in 0..13 {
        cluster.node("h100", 8).await;
    }
    cluster.model(&["h100"]).await;
    let orchestrator = Process::start(&cluster).await;
    cluster.playground("chat", 0, json!({})).await;
    cluster.serves("chat", 0).await;
    cluster.fake_server().forget_calls();
    let (start, before) = (Instant::now(), orchestrator.busy());
    cluster.change("chat", json!({ "replicas": REPLICAS })).await;
    while cluster.status("chat").await.ready_replicas < REPLICAS {
        assert!(start.elapsed() < WAIT, "{:?}", cluster.status("chat").await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (took, busy) = (start.elapsed(), orchestrator.busy() - before);
    cluster.is_tidy("chat", usize::try_from(REPLICAS).unwrap()).await;
    let calls = cluster.fake_server().calls();
    let calls = by_controller(&calls);
    println!(
        "{REPLICAS} replicas: {busy:.2} s of the controller, {took:.1?}, {} calls: {}",
        calls.len(),
        summary(&calls)
    );
    let writes = calls.iter().filter(|call| call.verb.writes()).count();
    assert!(writes <= 4 * usize::try_from(REPLICAS).unwrap(), "{writes} writes: {}", summary(&calls));
    assert!(busy < REPLICAS_TAKE, "{busy} s");
    orchestrator.rests(&cluster).await;
    drop(orchestrator);
    cluster.clean().await;
}

/// A thousand Playgrounds, a thousand nodes and twenty thousand pods of others; fewer in a build for tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_cluster_takes_little_memory_and_no_calls_at_rest() {
    if needs_fake() {
        return;
    }
    let cluster = Cluster::fake().await;
    cluster.model(&["h100"]).await;
    let fake = cluster.fake_server().clone();
    let label = format!("{}-h100", cluster.namespace);
    let amounts = json!({"nvidia.com/gpu": "8", "cpu": "64", "memory": "256Gi", "pods": "110"});
    let node = |number: usize| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("big-{number}"), "labels": {"gpu": label}}, "status": {"allocatable": amounts}});
    fake.load("nodes", (0..1_000).map(node));
    let requests = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    // A real pod has some thousand bytes of what nobody here looks at.
    let ballast = "x".repeat(4_000);
    let pod = |number: usize| -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("other-{number}"), "namespace": format!("team-{}", number % 50), "annotations": {"size": ballast}},
               "spec": {"nodeName": format!("big-{}", number % 1_000), "containers": [{"name": "c", "image": "i", "resources": requests}]}, "status": {"phase": "Running"}})
    };
    fake.load("pods", (0..FOREIGN).map(pod));
    let namespace = cluster.namespace.clone();
    let playground = |number: usize| {
        json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "metadata": {"name": format!("p{number}"), "namespace": namespace},
        "spec": {"model": namespace, "replicas": 0, "runtime": {"name": namespace}, "paused": false,
                 "strategy": {"maxSurge": 1, "maxUnavailable": 0, "progressDeadlineSeconds": 1800}}})
    };
    fake.load("playgrounds", (0..PLAYGROUNDS).map(playground));
    let start = Instant::now();
    let orchestrator = Process::start(&cluster).await;
    let is_settled = |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let settled = || fake.count("playgrounds", is_settled);
    while settled() < PLAYGROUNDS {
        assert!(start.elapsed() < WAIT, "{} of {PLAYGROUNDS} have their status", settled());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (took, busy, memory) = (start.elapsed(), orchestrator.busy(), orchestrator.memory());
    println!(
        "{PLAYGROUNDS} playgrounds, 1,000 nodes, {FOREIGN} pods of others: {memory} MiB at most, {busy:.1} s of the controller, {took:.1?}"
    );
    assert!(memory < 200, "{memory} MiB");
    assert!(busy < PLAYGROUNDS_TAKE, "{busy} s");
    orchestrator.rests(&cluster).await;
    drop(orchestrator);
    cluster.clean().await;
}

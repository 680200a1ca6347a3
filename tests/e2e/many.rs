//! A mesh as large as Dunlin is meant for: two hundred live nodes.

use crate::harness::{node::Mesh, sandbox::Sandbox, wait_for};
use dunlin_node::{Config, Handle, Node, Offer, join, state::StateDir};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::{ModelId, Role, Roles, RuntimeName},
    invitation::Token,
    load::{LoadReport, Measured},
    record::Continuation,
};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

const NODES: u64 = 200;
/// For all of them to start, join, and be known.
const LONGEST: Duration = Duration::from_secs(300);
/// How long the mesh is watched once it stands.
const WATCHED: Duration = Duration::from_secs(20);

/// What a process has used up to now.
#[derive(Debug, Clone, Copy)]
struct Used {
    cpu: Duration,
    resident_mib: u64,
}

fn used(process: i32) -> Used {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // utime and stime, fields 14 and 15 of proc(5), in ticks of a hundredth of a second.
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
    Used { cpu: Duration::from_millis(ticks * 10), resident_mib: kib / 1024 }
}

/// Joins with the token, serves a model, and reports its load ten times a second, as a busy agent does.
async fn agent(folder: &Path, token: Token, shutdown: CancellationToken) -> Handle {
    let state = StateDir::open(folder).unwrap();
    let (chain, _) = join::join(&token, &state.identity().unwrap(), None).await.unwrap();
    state.store_chain(&chain).unwrap();
    let mut config = Config::new(state, Roles::from_iter([Role::Agent]));
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    config.bootstrap = token.addresses().iter().take(1).cloned().collect();
    let (node, handle) = Node::start(config, axum::Router::new()).await.unwrap();
    tokio::spawn(async move { node.run(shutdown).await.unwrap() });
    let model = ServedModel { id: ModelId::new("m").unwrap(), parent: None, context: None, root: None };
    let offer = Offer {
        index: 0,
        state: ReplicaState::Ready,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: vec![model],
    };
    handle.offer(offer).await;
    let reporter = handle.clone();
    tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(100));
        for n in 0_u16.. {
            every.tick().await;
            reporter.report(LoadReport {
                replica: reporter.replica_id(0),
                version: reporter.next_load_version(),
                slots: 4,
                in_flight: n % 4,
                queued: 0,
                draining: false,
                flavor: 0,
                measured: Measured::default(),
                engine: None,
            });
        }
    });
    handle
}

/// Two hundred agents in this process, the proxy in one of its own.
#[test]
#[ignore = "minutes of both cores: cargo test --test e2e -- --ignored --nocapture two_hundred"]
fn two_hundred_nodes_are_one_mesh() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let token = mesh.proxy.home.ask(&["invite", "--role", "agent", "--uses", &NODES.to_string()]);
    let token = Token::parse(&token).unwrap();
    let process = mesh.proxy.process.id();
    let (alone, start) = (used(process), Instant::now());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let shutdown = CancellationToken::new();
    let _handles: Vec<Handle> = runtime.block_on(async {
        let mut handles = Vec::new();
        for n in 0..NODES {
            let folder = sandbox.folder().join(format!("n{n}"));
            handles.push(agent(&folder, token.clone(), shutdown.clone()).await);
        }
        handles
    });
    let started = start.elapsed();
    wait_for("all replicas at the proxy", LONGEST, || (mesh.proxy.replicas("m") == NODES).then_some(()));
    let known = start.elapsed();
    let stands = used(process);
    std::thread::sleep(WATCHED);
    assert_eq!(mesh.proxy.replicas("m"), NODES, "and they stay");
    let watched = used(process);
    let share = (watched.cpu - stands.cpu).as_secs_f64() / WATCHED.as_secs_f64() * 100.0;
    println!(
        "{NODES} nodes: joined and started after {started:.1?}, all known {:.1?} later; proxy: {} MiB alone, {} MiB with \
         them, {:.1?} of CPU time until then, {share:.1} % of a core while each reports its load",
        known - started,
        alone.resident_mib,
        watched.resident_mib,
        stands.cpu - alone.cpu,
    );
    shutdown.cancel();
    runtime.shutdown_timeout(Duration::from_secs(10));
}

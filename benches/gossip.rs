//! What load reports cost the proxy that gets them, and how old they are there.
//!
//! `cargo bench --bench gossip [-- --agents 20,200]` runs real nodes on loopback: the proxy's on a thread of its own, whose
//! processor time is measured, the agents' beside it in the same process. Each agent's load changes all the time, so that
//! it reports as often as it may. The age of a report counts from its making to the moment at which somebody looks at the
//! proxy's directory. What the same links take when nobody reports, which is what it costs to notice within seconds that
//! one is lost, is measured in the same run and taken off. Prints Markdown.
//!
//! The agents listen nowhere, as behind a firewall: each is connected with the proxy alone. Two hundred nodes that were
//! connected with each other would want more than a small machine has.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "hop/folder.rs"]
mod folder;

use anyhow::{Context as _, Result, bail, ensure};
use dunlin_agent::replica::due::INTERVAL;
use dunlin_node::{
    Config, Handle, Node, Offer, clock,
    issuer::{InvitationOptions, Issuer},
    mesh,
    state::StateDir,
};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::{ModelId, ReplicaId, Role, Roles, RuntimeName},
    load::{EngineLoad, LoadReport, Measured},
    record::Continuation,
    revocation::RevocationList,
};
use folder::Folder;
use libp2p::{Multiaddr, multiaddr::Protocol};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::sync_channel,
    },
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

/// Agents of each run, unless told otherwise.
const AGENTS: [usize; 2] = [20, 200];
/// For all agents to start and be known.
const KNOWN: Duration = Duration::from_secs(300);
/// From then on until all of them have lowered their rate.
const SETTLE: Duration = Duration::from_secs(5);
/// What is measured.
const WATCHED: Duration = Duration::from_secs(20);
/// Between two looks at the directory.
const LOOK: Duration = Duration::from_millis(10);
/// The one model.
const MODEL: &str = "m";
/// Longest wait for the proxy's thread.
const THREAD: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    println!("# Load reports of many agents to one proxy\n");
    println!(
        "| agents | reports/s of each | proxy's CPU, % of a core | with no reports | us per report | age p50 / p99 / worst, ms |"
    );
    println!("|---|---|---|---|---|---|");
    for agents in agents()? {
        let seen = measure(agents)?;
        let per_s = seen.reports as f64 / WATCHED.as_secs_f64();
        println!(
            "| {agents} | {:.1} | {:.2} | {:.2} | {:.0} | {:.0} / {:.0} / {:.0} |",
            per_s / agents as f64,
            seen.cpu_s / WATCHED.as_secs_f64() * 100.0,
            seen.rest_s / WATCHED.as_secs_f64() * 100.0,
            (seen.cpu_s - seen.rest_s) * 1e6 / seen.reports.max(1) as f64,
            seen.age_ms(0.5),
            seen.age_ms(0.99),
            seen.age_ms(1.0),
        );
    }
    Ok(())
}

fn agents() -> Result<Vec<usize>> {
    match std::env::args().skip_while(|arg| arg != "--agents").nth(1) {
        None => Ok(AGENTS.to_vec()),
        Some(list) => list.split(',').map(|n| Ok(n.parse::<usize>()?)).collect::<Result<_>>().context("--agents"),
    }
}

/// What was seen at the proxy.
#[derive(Default)]
struct Seen {
    /// Ages of all replicas' newest reports at all looks, milliseconds, in order.
    ages: Vec<u32>,
    /// Different reports.
    reports: u64,
    /// Processor time of the proxy's thread, seconds.
    cpu_s: f64,
    /// The same while nobody reports.
    rest_s: f64,
}

impl Seen {
    fn age_ms(&self, share: f64) -> f64 {
        let last = self.ages.len().saturating_sub(1);
        self.ages.get((last as f64 * share) as usize).map_or(f64::NAN, |age| f64::from(*age))
    }
}

fn measure(agents: usize) -> Result<Seen> {
    let folder = Folder::new()?;
    let state = StateDir::open(folder.0.join("proxy"))?;
    mesh::create(&state, Roles::from_iter([Role::Proxy, Role::Agent]), None, clock::unix_s())?;
    let issuer = Issuer::open(&state)?.context("the mesh was made here")?;
    let shutdown = CancellationToken::new();
    let proxy = Proxy::start(state, shutdown.clone())?;
    let base = Instant::now();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = Arc::new(AtomicBool::new(true));
    let mut nodes = Vec::new();
    for n in 0..agents {
        let state = StateDir::open(folder.0.join(format!("agent-{n}")))?;
        certify(&issuer, &state)?;
        nodes.push(runtime.block_on(agent(state, proxy.addresses(), base, report.clone(), shutdown.clone()))?);
    }
    proxy.knows(agents, &runtime)?;
    // The proxy tells them how many they are.
    pause(&runtime, SETTLE);
    let mut seen = proxy.watch(&runtime, base)?;
    report.store(false, Ordering::Relaxed);
    pause(&runtime, SETTLE);
    seen.rest_s = proxy.watch(&runtime, base)?.cpu_s;
    shutdown.cancel();
    // What nobody waits for ends with the runtime.
    runtime.shutdown_timeout(THREAD);
    ensure!(proxy.thread.join().is_ok_and(|ended| ended.is_ok()), "the proxy's node has failed");
    Ok(seen)
}

fn pause(runtime: &Runtime, time: Duration) {
    runtime.block_on(async { tokio::time::sleep(time).await });
}

/// Gives the machine of `state` a membership as an agent.
fn certify(issuer: &Issuer, state: &StateDir) -> Result<()> {
    let peer = state.identity()?.public().to_peer_id();
    let options = InvitationOptions { roles: Roles::from_iter([Role::Agent]), ..InvitationOptions::default() };
    let mut rng = rand::make_rng::<rand::rngs::StdRng>();
    let token = issuer.invite(&options, Vec::new(), clock::unix_s(), &mut rng)?;
    let chain = issuer.redeem(peer, &token.request(peer, None)?, None, &RevocationList::default(), clock::unix_s())?;
    Ok(state.store_chain(&chain)?)
}

fn config(state: StateDir, role: Role) -> Result<Config> {
    let mut config = Config::new(state, Roles::from_iter([role]));
    config.listen = match role {
        Role::Proxy => vec!["/ip4/127.0.0.1/tcp/0".parse()?],
        _ => Vec::new(),
    };
    Ok(config)
}

/// An agent's node, whose one replica reports a load that is never the same twice.
async fn agent(
    state: StateDir,
    bootstrap: Vec<Multiaddr>,
    base: Instant,
    reports: Arc<AtomicBool>,
    shutdown: CancellationToken,
) -> Result<Handle> {
    let mut config = config(state, Role::Agent)?;
    config.bootstrap = bootstrap;
    let (node, handle) = Node::start(config, axum::Router::new()).await?;
    tokio::spawn(node.run(shutdown));
    let model = ServedModel { id: ModelId::new(MODEL)?, parent: None, context: None, root: None };
    let offer = Offer {
        index: 0,
        state: ReplicaState::Ready,
        runtime: RuntimeName::new("demo")?,
        continuation: Continuation::None,
        slots: 8,
        models: vec![model],
    };
    handle.offer(offer).await;
    let reporter = handle.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            if !reports.load(Ordering::Relaxed) {
                continue;
            }
            reporter.report(report(&reporter, base));
        }
    });
    Ok(handle)
}

/// As large as those of busy agents. The rate of chunks says when it was made, milliseconds since `base`.
fn report(handle: &Handle, base: Instant) -> LoadReport {
    let made = base.elapsed().as_millis() as u32;
    let some = Some(made);
    LoadReport {
        replica: handle.replica_id(0),
        version: handle.next_load_version(),
        slots: 8,
        in_flight: (made % 8) as u16,
        queued: 0,
        draining: false,
        flavor: 0,
        measured: Measured {
            ttft_us: some,
            itl_us: some,
            service_us: some,
            chunks_per_s: made,
            first_token_us: some,
            prefill_us_per_kib: some,
            in_flight_kib: made % 64,
            unstarted_kib: made % 16,
            silent_ms: 0,
            recent: [made; 4],
        },
        engine: Some(EngineLoad {
            running: some,
            waiting: Some(0),
            kv_used_permille: Some((made % 1000) as u16),
            prompt_tokens: Some(made.into()),
            generated_tokens: Some(made.into()),
            prefix_hit_permille: Some(0),
        }),
    }
}

/// The proxy's node on its thread.
struct Proxy {
    handle: Handle,
    runtime: tokio::runtime::Handle,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl Proxy {
    fn start(state: StateDir, shutdown: CancellationToken) -> Result<Self> {
        let (tell, told) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (node, handle) = Node::start(config(state, Role::Proxy)?, axum::Router::new()).await?;
                tell.send((handle, tokio::runtime::Handle::current()))?;
                Ok(node.run(shutdown).await?)
            })
        });
        let (handle, runtime) = told.recv_timeout(THREAD).context("the proxy's node does not start")?;
        Ok(Self { handle, runtime, thread })
    }

    fn addresses(&self) -> Vec<Multiaddr> {
        let peer = Protocol::P2p(self.handle.peer_id());
        self.handle.listen_addresses().into_iter().map(|address| address.with(peer.clone())).collect()
    }

    /// Waits until so many replicas have reported.
    fn knows(&self, agents: usize, runtime: &Runtime) -> Result<()> {
        let start = Instant::now();
        let model = ModelId::new(MODEL)?;
        let reported = || {
            let known = |replica: &&dunlin_node::directory::Replica| replica.load.is_some();
            self.handle.directory().read(|directory| directory.replicas(&model).filter(known).count())
        };
        while reported() < agents {
            if start.elapsed() > KNOWN {
                bail!("{} of {agents} agents known after {KNOWN:?}", reported());
            }
            pause(runtime, LOOK);
        }
        Ok(())
    }

    /// Processor time of its thread so far, seconds.
    fn cpu_s(&self) -> Result<f64> {
        let (tell, told) = sync_channel(1);
        self.runtime.spawn(async move {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            tell.send(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
        });
        Ok(told.recv_timeout(THREAD)?)
    }

    fn watch(&self, runtime: &Runtime, base: Instant) -> Result<Seen> {
        let model = ModelId::new(MODEL)?;
        let mut newest: HashMap<ReplicaId, u64> = HashMap::new();
        let mut seen = Seen::default();
        let (start, before) = (Instant::now(), self.cpu_s()?);
        while start.elapsed() < WATCHED {
            pause(runtime, LOOK);
            self.handle.directory().read(|directory| {
                let now = base.elapsed().as_millis() as u32;
                for (report, _) in directory.replicas(&model).filter_map(|replica| replica.load.as_ref()) {
                    seen.ages.push(now.saturating_sub(report.measured.chunks_per_s));
                    let known = newest.insert(report.replica, report.version.seq);
                    seen.reports += u64::from(known.is_some_and(|known| known != report.version.seq));
                }
            });
        }
        seen.cpu_s = self.cpu_s()? - before;
        seen.ages.sort_unstable();
        Ok(seen)
    }
}

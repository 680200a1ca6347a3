//! Nodes to test with: temporary state directories, certificates from one issuer, loopback addresses.

use dunlin_node::{
    Config, Handle, Node, Offer, clock,
    issuer::{InvitationOptions, Issuer},
    members::Members,
    mesh,
    state::StateDir,
};
use dunlin_protocol::{
    announcement::{ReplicaState, ServedModel},
    id::{ModelId, PeerId, Role, Roles, RuntimeName},
    load::{LoadReport, Measured},
    pattern::Models,
    record::Continuation,
    revocation::RevocationList,
    topic::Topic,
};
use libp2p::{Multiaddr, identity::Keypair, multiaddr::Protocol};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub(crate) const TCP: &str = "/ip4/127.0.0.1/tcp/0";
pub(crate) const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// One mesh: its issuer's directory makes the certificates of all.
pub(crate) struct Mesh {
    pub(crate) issuer: Issuer,
    pub(crate) home: TempDir,
    pub(crate) first: Member,
}

/// A node that runs until it is stopped or dropped.
pub(crate) struct Member {
    pub(crate) handle: Handle,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
    pub(crate) home: Option<TempDir>,
}

pub(crate) fn roles(roles: &[Role]) -> Roles {
    roles.iter().copied().collect()
}

pub(crate) fn model(name: &str) -> ModelId {
    ModelId::new(name).unwrap()
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::Model(model(name))
}

pub(crate) fn offer(index: u16, state: ReplicaState, models: &[&str]) -> Offer {
    let served = |name: &&str| ServedModel { id: model(name), parent: None, context: None, root: None };
    Offer {
        index,
        state,
        runtime: RuntimeName::new("demo").unwrap(),
        continuation: Continuation::None,
        slots: 4,
        models: models.iter().map(served).collect(),
    }
}

pub(crate) fn load(handle: &Handle, index: u16, in_flight: u16) -> LoadReport {
    LoadReport {
        replica: handle.replica_id(index),
        version: handle.next_load_version(),
        slots: 4,
        in_flight,
        queued: 0,
        draining: false,
        flavor: 0,
        measured: Measured::default(),
        engine: None,
    }
}

impl Mesh {
    /// A mesh whose first member holds the key and plays the role proxy.
    pub(crate) async fn new(listen: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let all = roles(&[Role::Agent, Role::Proxy]);
        mesh::create(&state, all, None, clock::unix_s()).unwrap();
        let issuer = Issuer::open(&state).unwrap().unwrap();
        let first = Member::start(state, roles(&[Role::Proxy]), listen, &[], None).await;
        Self { issuer, home, first }
    }

    /// A state directory with a certificate for these roles and models.
    pub(crate) fn invite(&self, granted: Roles, models: Models) -> (TempDir, StateDir) {
        self.invite_at(granted, models, clock::unix_s())
    }

    /// The same, with a certificate issued at `now`, unix seconds.
    pub(crate) fn invite_at(&self, granted: Roles, models: Models, now: u64) -> (TempDir, StateDir) {
        let home = TempDir::new().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let peer = state.identity().unwrap().public().to_peer_id();
        let options = InvitationOptions { roles: granted, models, ..InvitationOptions::default() };
        let mut rng = rand::make_rng::<rand::rngs::StdRng>();
        let token = self.issuer.invite(&options, Vec::new(), now, &mut rng).unwrap();
        let request = token.request(peer, None).unwrap();
        let chain = self.issuer.redeem(peer, &request, None, &RevocationList::default(), now).unwrap();
        state.store_chain(&chain).unwrap();
        (home, state)
    }

    /// A certificate for a peer without a state directory.
    pub(crate) fn admit(&self, keypair: &Keypair, granted: Roles, models: Models) -> Members {
        let peer = keypair.public().to_peer_id();
        let options = InvitationOptions { roles: granted, models, ..InvitationOptions::default() };
        let mut rng = rand::make_rng::<rand::rngs::StdRng>();
        let token = self.issuer.invite(&options, Vec::new(), clock::unix_s(), &mut rng).unwrap();
        let request = token.request(peer, None).unwrap();
        let chain = self.issuer.redeem(peer, &request, None, &RevocationList::default(), clock::unix_s()).unwrap();
        Members::new(chain, self.issuer.mesh(), RevocationList::default(), clock::unix_s()).unwrap()
    }

    pub(crate) fn id(&self) -> dunlin_protocol::id::MeshId {
        self.issuer.mesh()
    }

    pub(crate) async fn member(&self, played: &[Role], bootstrap: &[&Member]) -> Member {
        self.member_on(played, &[TCP], bootstrap).await
    }

    pub(crate) async fn member_on(&self, played: &[Role], listen: &[&str], bootstrap: &[&Member]) -> Member {
        let played = roles(played);
        let (home, state) = self.invite(played, Models::Any);
        let addresses: Vec<Multiaddr> = bootstrap.iter().flat_map(|member| member.addresses()).collect();
        Member::start(state, played, listen, &addresses, Some(home)).await
    }
}

impl Member {
    pub(crate) async fn start(
        state: StateDir,
        roles: Roles,
        listen: &[&str],
        bootstrap: &[Multiaddr],
        home: Option<TempDir>,
    ) -> Self {
        let mut config = Config::new(state, roles);
        config.listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        config.bootstrap = bootstrap.to_vec();
        Self::run(config, home).await
    }

    pub(crate) async fn run(config: Config, home: Option<TempDir>) -> Self {
        Self::run_with(config, axum::Router::new(), home).await
    }

    pub(crate) async fn run_with(config: Config, routes: axum::Router, home: Option<TempDir>) -> Self {
        let (node, handle) = Node::start(config, routes).await.unwrap();
        let shutdown = CancellationToken::new();
        let running = shutdown.clone();
        let task = tokio::spawn(async move { node.run(running).await.unwrap() });
        Self { handle, shutdown, task, home }
    }

    pub(crate) fn peer(&self) -> PeerId {
        self.handle.peer_id()
    }

    pub(crate) fn addresses(&self) -> Vec<Multiaddr> {
        let peer = self.peer();
        self.handle.listen_addresses().into_iter().map(|address| address.with(Protocol::P2p(peer))).collect()
    }

    /// A graceful end. Gives back the state directory.
    pub(crate) async fn stop(mut self) -> Option<TempDir> {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(15), &mut self.task).await.expect("ends in time").unwrap();
        self.home.take()
    }

    /// An end without a word, as by kill -9.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }
}

/// Waits until `holds`, and says how long it took.
pub(crate) async fn until(what: &str, longest: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < longest, "not within {longest:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

pub(crate) fn knows_replica(at: &Member, name: &str, of: &Member) -> bool {
    let peer = of.peer();
    at.handle.directory().read(|directory| directory.replicas(&model(name)).any(|replica| replica.id.peer == peer))
}

/// Looks up until `count` live records are found.
pub(crate) async fn look_up_until(at: &Member, name: &str, count: usize, longest: Duration) {
    let start = Instant::now();
    loop {
        let found = at.handle.look_up(topic(name)).await.unwrap();
        if found == count {
            return;
        }
        assert!(start.elapsed() < longest, "found {found} records of {name}, not {count}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) fn is_connected(at: &Member, to: &Member) -> bool {
    let peer = to.peer();
    at.handle.directory().read(|directory| directory.peer(&peer).is_some_and(|view| view.reachability.is_connected()))
}

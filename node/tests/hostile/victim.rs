//! A member with a mesh of its own: the one that is attacked.

use dunlin_node::{
    admission::{self, Admission, pending},
    clock,
    issuer::{InvitationOptions, Issuer},
    members::Members,
    mesh,
    pods::PodAdmission,
    state::StateDir,
    transport,
};
use dunlin_protocol::{
    certificate::{Certificate, Chain},
    id::{PeerId, Role, Roles},
    invitation::Token,
    pattern::Models,
    revocation::RevocationList,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, StreamProtocol, Swarm, gossipsub, identify,
    identity::Keypair,
    kad::{
        self,
        store::{MemoryStore, RecordStore},
    },
    ping,
    swarm::{self, ListenError, NetworkBehaviour, SwarmEvent},
};
use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

pub(crate) const TCP: &str = "/ip4/127.0.0.1/tcp/0";
pub(crate) const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
/// For what must happen.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// Deadline of admission in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_millis(600);
/// Connections on their way to the victim, in all and from one address.
const PENDING: usize = 64;
pub(crate) const PENDING_PER_ADDRESS: usize = 30;
pub(crate) const TOPIC: &str = "gossip";
pub(crate) const KAD: StreamProtocol = StreamProtocol::new("/dunlin/kad/1");
pub(crate) const RECORD: &[u8] = b"record";

#[derive(NetworkBehaviour)]
pub(crate) struct Protocols {
    pending: pending::Behaviour,
    pub(crate) kad: kad::Behaviour<MemoryStore>,
    pub(crate) gossip: gossipsub::Behaviour,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
}

/// The same on both sides, so that a stranger knows every protocol name.
pub(crate) fn protocols(key: &Keypair) -> Protocols {
    let peer = key.public().to_peer_id();
    let mut kad = kad::Behaviour::with_config(peer, MemoryStore::new(peer), kad::Config::new(KAD));
    kad.set_mode(Some(kad::Mode::Server));
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Anonymous)
        .heartbeat_interval(Duration::from_millis(50))
        .build()
        .unwrap();
    let mut gossip = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, config).unwrap();
    gossip.subscribe(&gossipsub::IdentTopic::new(TOPIC)).unwrap();
    let identify = identify::Behaviour::new(identify::Config::new("/dunlin/test".into(), key.public()));
    Protocols {
        pending: pending::Behaviour::new(PENDING, PENDING_PER_ADDRESS),
        kad,
        gossip,
        identify,
        ping: ping::Behaviour::default(),
    }
}

/// What the victim's swarm said.
#[derive(Debug)]
pub(crate) enum Seen {
    Connected(PeerId),
    #[expect(dead_code, reason = "read by Debug in failures")]
    Closed(PeerId),
    /// What stopped an incoming connection, where admission did.
    Refused(String),
    /// Of a behaviour, about a peer.
    #[expect(dead_code, reason = "read by Debug in failures")]
    Event(String),
}

pub(crate) struct Victim {
    pub(crate) address: Multiaddr,
    pub(crate) peer: PeerId,
    pub(crate) members: Members,
    pub(crate) issuer: Issuer,
    pub(crate) mesh_key: Keypair,
    seen: mpsc::Receiver<Seen>,
    _running: JoinSet<()>,
    _home: tempfile::TempDir,
}

pub(crate) fn roles() -> Roles {
    Roles::from_iter([Role::Agent, Role::Proxy])
}

impl Victim {
    pub(crate) async fn start(listen: &str) -> Self {
        Self::start_with(listen, None).await
    }

    /// One that admits pods.
    pub(crate) async fn start_with(listen: &str, pods: Option<PodAdmission>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        mesh::create(&state, roles(), None, clock::unix_s()).unwrap();
        let mesh = mesh::load(&state, clock::unix_s()).unwrap();
        let settings = admission::Settings { deadline: DEADLINE };
        let admission = Admission::with_pods(mesh.members.clone(), mesh.issuer.clone(), pods, settings);
        let transport = transport::build_direct(&mesh.identity, admission).unwrap();
        let peer = mesh.identity.public().to_peer_id();
        let mut behaviour = protocols(&mesh.identity);
        behaviour.kad.store_mut().put(kad::Record::new(RECORD.to_vec(), b"secret".to_vec())).unwrap();
        let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        let mut swarm = Swarm::new(transport, behaviour, peer, config);
        swarm.listen_on(listen.parse().unwrap()).unwrap();
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        let (tell, seen) = mpsc::channel(1000);
        let mut running = JoinSet::new();
        running.spawn(run(swarm, tell));
        let issuer = mesh.issuer.unwrap();
        let mesh_key = state.mesh_key().unwrap().unwrap();
        Self { address, peer, members: mesh.members, issuer, mesh_key, seen, _running: running, _home: home }
    }

    /// The next thing that the victim's swarm says.
    pub(crate) async fn next(&mut self) -> Seen {
        timeout(SOON, self.seen.recv()).await.expect("the victim said nothing").unwrap()
    }

    /// Expects that the next thing is a refusal, and returns why.
    pub(crate) async fn refusal(&mut self) -> String {
        match self.next().await {
            Seen::Refused(why) => why,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// Expects that the swarm has said nothing.
    pub(crate) fn assert_unaware(&mut self) {
        if let Ok(seen) = self.seen.try_recv() {
            panic!("the swarm noticed: {seen:?}");
        }
    }

    /// A good certificate with changes.
    pub(crate) fn certificate(&self, subject: PeerId, change: impl FnOnce(&mut Certificate)) -> Chain {
        let now = clock::unix_s();
        let mut certificate = Certificate {
            mesh: self.members.mesh(),
            subject,
            issuer: self.mesh_key.public().to_peer_id(),
            roles: roles(),
            models: Models::Any,
            tenants: vec![],
            capabilities: vec![],
            name: None,
            issued_at: now,
            not_after: now + 3600,
        };
        change(&mut certificate);
        Chain::by_mesh_key(&certificate, &self.mesh_key).unwrap()
    }

    /// The next thing that it has said already.
    pub(crate) fn next_or_nothing(&mut self) -> Option<Seen> {
        self.seen.try_recv().ok()
    }

    /// A token for this victim.
    pub(crate) fn invite(&self, uses: u32) -> Token {
        self.invite_at(uses, self.address.clone())
    }

    /// A token for this victim that says it is somewhere else.
    pub(crate) fn invite_at(&self, uses: u32, address: Multiaddr) -> Token {
        static SEED: AtomicU8 = AtomicU8::new(1);
        let options = InvitationOptions { uses, ..InvitationOptions::default() };
        let mut rng: rand::rngs::StdRng = rand::SeedableRng::from_seed([SEED.fetch_add(1, Ordering::Relaxed); 32]);
        self.issuer.invite(&options, vec![address], clock::unix_s(), &mut rng).unwrap()
    }

    /// Another swarm behind the same transport, as the peer of `key` with `chain`, which holds at `now`.
    pub(crate) fn swarm_as(&self, key: &Keypair, chain: Chain, now: u64) -> (Swarm<Protocols>, Members) {
        let mesh = chain.certificate.peek().unwrap().mesh;
        let members = Members::new(chain, mesh, RevocationList::default(), now).unwrap();
        let admission = Admission::new(members.clone(), None, admission::Settings::default());
        let transport = transport::build_direct(key, admission).unwrap();
        let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        (Swarm::new(transport, protocols(key), key.public().to_peer_id(), config), members)
    }

    /// After so many refusals, a member still gets in.
    pub(crate) async fn assert_still_serves_after(&mut self, refusals: usize) {
        for _ in 0..refusals {
            self.refusal().await;
        }
        self.assert_still_serves().await;
    }

    /// Whatever happened before: a member still gets in, and each side knows the other.
    pub(crate) async fn assert_still_serves(&mut self) {
        let key = Keypair::generate_ed25519();
        let member = key.public().to_peer_id();
        let chain = self.certificate(member, |_| {});
        let (mut swarm, members) = self.swarm_as(&key, chain, clock::unix_s());
        swarm.dial(self.address.clone()).unwrap();
        let connected = async {
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { peer_id, .. } => break peer_id,
                    SwarmEvent::OutgoingConnectionError { error, .. } => panic!("a member was refused: {error:?}"),
                    _ => {}
                }
            }
        };
        assert_eq!(timeout(SOON, connected).await.unwrap(), self.peer);
        loop {
            match self.next().await {
                Seen::Connected(peer) if peer == member => break,
                // Others may still be running into their deadline.
                _ => {}
            }
        }
        assert!(members.check(&self.peer, clock::unix_s()).is_ok());
        assert_eq!(self.members.check(&member, clock::unix_s()).unwrap().roles, roles());
    }
}

async fn run(mut swarm: Swarm<Protocols>, tell: mpsc::Sender<Seen>) {
    loop {
        let seen = match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, .. } => Seen::Connected(peer_id),
            SwarmEvent::ConnectionClosed { peer_id, .. } => Seen::Closed(peer_id),
            SwarmEvent::IncomingConnectionError { error: ListenError::Transport(error), .. } => match error {
                libp2p::TransportError::Other(error) => Seen::Refused(
                    admission::Error::find(&error).map_or_else(|| format!("other: {error}"), ToString::to_string),
                ),
                other => Seen::Refused(format!("other: {other}")),
            },
            SwarmEvent::IncomingConnectionError { error: ListenError::Denied { cause }, .. } => {
                Seen::Refused(std::error::Error::source(&cause).map_or_else(|| cause.to_string(), ToString::to_string))
            }
            SwarmEvent::Behaviour(event) => Seen::Event(format!("{event:?}")),
            _ => continue,
        };
        // A test that has ended listens no more.
        let _ = tell.try_send(seen);
    }
}

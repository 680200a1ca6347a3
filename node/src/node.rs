//! A node: one libp2p peer, put together and run.

use crate::{
    addresses::Book,
    admission::{self, Admission},
    anti_entropy::AntiEntropy,
    behaviour::{self, Behaviour},
    bootstrap::Bootstrap,
    clock,
    config::Config,
    dial::{Dials, Lost, Pause},
    directory::{self, Rights, SharedDirectory},
    event_loop::{Due, EventLoop},
    gossip,
    handle::{COMMANDS, Handle, Outbox, Shared},
    hop::{self, Hop},
    issuer::Issuing,
    keeping, listen,
    liveness::Liveness,
    look_up::LookUps,
    mesh,
    pace::Told,
    registration::Registration,
    renew, routes, state, stream, transport,
};
use axum::Router;
use libp2p::{Multiaddr, Swarm, core::upgrade, relay, swarm};
use rand::rngs::StdRng;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Connections of a mesh stay: agents wait on them for work. Longer than any silence that liveness lets pass.
const IDLE_CONNECTION: Duration = Duration::from_secs(24 * 3600);
/// How long a start waits for its listeners to say their addresses.
const LISTENING: Duration = Duration::from_secs(2);
/// A listener on all interfaces says their addresses one by one. When none has come for so long, there is no more.
const LISTENERS_QUIET: Duration = Duration::from_millis(30);

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No membership, or it has ended.
    #[error(transparent)]
    Mesh(#[from] mesh::Error),
    /// The state directory.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A behaviour refused its settings.
    #[error(transparent)]
    Behaviour(#[from] behaviour::Error),
    /// The transports could not be made.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// A task of the start ended badly.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {cause}; choose another with --listen")]
    Listen {
        /// The address.
        address: Multiaddr,
        /// What the transport said.
        cause: String,
    },
}

/// A node that has started: listens, and is ready to be run.
pub struct Node {
    event_loop: Box<EventLoop>,
    handle: Handle,
    incoming: stream::Incoming,
    routes: Router,
    settings: hop::Settings,
}

impl Node {
    /// Takes up the membership in `config.state` and starts to listen. `routes` answers requests of members on the hop
    /// beside the node's own; it may be empty.
    ///
    /// # Errors
    /// Not a member, or not any more; a state directory that cannot be used; an address that cannot be listened on.
    pub async fn start(config: Config, routes: Router) -> Result<(Self, Handle), Error> {
        let state = config.state.clone();
        let (mesh, epoch, known) = tokio::task::spawn_blocking(move || {
            let mesh = mesh::load(&state, clock::unix_s())?;
            let epoch = state.next_epoch(clock::unix_s())?;
            Ok::<_, Error>((mesh, epoch, state.known_peers()?))
        })
        .await??;
        let own = mesh.members.own();
        let roles = config.roles.intersection(own.roles);
        if roles != config.roles {
            tracing::warn!(asked = %config.roles, certificate = %own.roles, "roles outside the certificate are left out");
        }
        let (streams, control, incoming) = stream::Behaviour::new(hop::PROTOCOL);
        let settings = hop::Settings::default();
        let hop = Hop::new(control.clone(), settings.clone());
        let (relay_transport, relay_client) = relay::client::new(own.peer);
        let reachable = config.reachable && !config.listen.is_empty();
        let settings_of =
            behaviour::Settings { keypair: &mesh.identity, mesh: own.mesh, roles, epoch, mdns: config.mdns, reachable };
        let behaviour = Behaviour::new(&settings_of, streams, relay_client)?;
        let issuing = Issuing::from(mesh.issuer);
        let settings_of_admission = admission::Settings::default();
        let admission =
            Admission::with_pods(mesh.members.clone(), issuing.clone(), config.pods.clone(), settings_of_admission);
        let transport = transport::build(&mesh.identity, admission, relay_transport)?;
        let swarm_config = swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(IDLE_CONNECTION)
            .with_substream_upgrade_protocol_override(upgrade::Version::V1Lazy)
            .with_smart_dial();
        let mut swarm = Swarm::new(transport, behaviour, own.peer, swarm_config);
        let places = listen::listen(&mut swarm, &config)?;
        for address in &config.external {
            swarm.add_external_address(address.clone());
        }

        let (commands, inbox) = mpsc::channel(COMMANDS);
        let handle = Handle(Arc::new(Shared {
            peer_id: own.peer,
            mesh: own.mesh,
            epoch,
            roles,
            members: mesh.members.clone(),
            identity: mesh.identity.clone(),
            hop: hop.clone(),
            state: config.state.clone(),
            issuing,
            external: config.external.clone(),
            directory: SharedDirectory::default(),
            commands,
            listen: watch::Sender::new(Vec::new()),
            outbox: Outbox::default(),
            load_seq: Default::default(),
            heard: Default::default(),
            key_statements: broadcast::Sender::new(keeping::HEARD),
            announced: Default::default(),
        }));
        let now = Instant::now();
        let mut bootstrap = Bootstrap::default();
        for address in &config.bootstrap {
            bootstrap.add(address, None, true, now);
        }
        let (mut book, mut lost) = (Book::default(), Lost::default());
        for known in known.into_iter().rev().filter(|known| known.peer != own.peer) {
            lost.add(known.peer);
            for address in known.addresses.iter().rev() {
                book.add(known.peer, address.clone());
            }
            for address in &known.addresses {
                bootstrap.add(address, Some(known.peer), false, now);
            }
        }
        let mut rng = rand::make_rng::<StdRng>();
        let mut event_loop = Box::new(EventLoop {
            swarm,
            shared: Arc::clone(&handle.0),
            commands: inbox,
            members: mesh.members,
            hop,
            streams: control,
            state: config.state,
            roles,
            external: config.external,
            places,
            registration: Registration::new(mesh.identity, epoch, roles),
            look_ups: LookUps::default(),
            dials: Dials::default(),
            lost,
            pause: Pause::default(),
            book,
            bootstrap,
            liveness: Liveness::default(),
            connections: Default::default(),
            anti_entropy: AntiEntropy::new(now, &mut rng),
            rng,
            strangers_dialled: Default::default(),
            reports: Default::default(),
            pulls: Default::default(),
            puts: Default::default(),
            waiting_puts: Default::default(),
            blocked: Default::default(),
            due: Due::new(now),
            report_interval: gossip::REPORT_INTERVAL,
            told: Told::default(),
            duplicates: Vec::new(),
            offered: None,
            vouched: None,
            issued_at: own.issued_at,
        });
        event_loop.await_listeners(config.listen.len(), LISTENING).await;
        event_loop.introduce_self(Rights { roles: own.roles, models: own.models.clone(), issued_at: own.issued_at });
        let routes = routes.merge(routes::routes(handle.clone(), roles));
        let node = Self { event_loop, handle: handle.clone(), incoming, routes, settings };
        Ok((node, handle))
    }

    /// Runs until `shutdown`, then withdraws what this process registered, says so, and ends within seconds. Requests
    /// in flight on the hop get [`hop::Settings::drain`] to finish: an agent that wants to drain first does so before.
    ///
    /// # Errors
    /// None now; a node that cannot go on would say so here.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let members = self.handle.members().clone();
        let hop = self.handle.hop().clone();
        hop.serve_own(self.handle.peer_id(), members.clone(), self.routes.clone());
        let ended = CancellationToken::new();
        let server = hop::server::serve(self.incoming, members, self.routes, self.settings, shutdown.clone());
        // Large, and rarely at work.
        let renewal = Box::pin(renew::run(self.handle.clone(), shutdown.clone()));
        // The swarm must be polled until the last answer on the hop is out.
        let serving = async {
            tokio::join!(server, renewal);
            ended.cancel();
        };
        tokio::join!(self.event_loop.run(shutdown, ended.clone()), serving);
        hop.forget_own();
        Ok(())
    }

    /// What other parts of the process hold of this node.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl EventLoop {
    /// Runs the swarm until each listener has said an address: port 0 is known then.
    async fn await_listeners(&mut self, listeners: usize, longest: Duration) {
        let deadline = tokio::time::Instant::now() + longest;
        while self.shared.listen.borrow().len() < listeners {
            if !self.step(deadline).await {
                tracing::warn!("a listener is slow to say its address");
                return;
            }
        }
        let mut known = 0;
        while known < self.shared.listen.borrow().len() {
            known = self.shared.listen.borrow().len();
            let quiet = (tokio::time::Instant::now() + LISTENERS_QUIET).min(deadline);
            while self.step(quiet).await {}
        }
    }

    /// Puts this process into its own directory, and registers its roles.
    fn introduce_self(&mut self, rights: Rights) {
        let peer = self.shared.peer_id;
        self.learn(directory::Event::Member { peer, rights });
        // A proxy and an agent in one process need no connection.
        self.learn(directory::Event::Connected { peer, relayed: false });
        let statements = self.registration.register_roles();
        self.say(statements);
    }
}

//! The one task that owns the swarm. It only translates: commands into calls of behaviours, their events into calls of
//! the pure parts. Each protocol's events have a file of their own under `events/`.

use crate::{
    addresses::{self, Book},
    anti_entropy::AntiEntropy,
    behaviour::Behaviour,
    bootstrap::Bootstrap,
    dial::{Dials, Lost, Pause},
    directory,
    handle::{Command, ConnectError, Shared},
    hop::Hop,
    info,
    listen::Places,
    liveness::{self, Liveness},
    look_up::{LookUps, Waiter},
    members::Members,
    pace::Told,
    pulls::Pulls,
    record_store,
    registration::Registration,
    reports::Reports,
    state::StateDir,
    stream,
};
use dunlin_protocol::{
    id::{PeerId, Role, Roles},
    topic::Topic,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm, kad,
    swarm::{
        ConnectionId, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use rand::rngs::StdRng;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

mod membership;
mod speech;
mod upkeep;

/// How often own records are put again under a new version.
const REFRESH: Duration = Duration::from_secs(180);
/// How long news of the neighbourhood is collected before anything is looked up or put again because of it.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);
/// How often the addresses of connected peers are stored for the next start.
const STORE_PEERS: Duration = Duration::from_secs(60);
/// The same when somebody new is there, so that a process which is killed soon finds its mesh again.
pub(crate) const STORE_NEW_PEERS: Duration = Duration::from_secs(2);
/// How often revocations that end nothing any more are dropped.
const EXPIRE_REVOCATIONS: Duration = Duration::from_secs(600);

/// Everything that the task owns.
pub(crate) struct EventLoop {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) members: Members,
    pub(crate) hop: Hop,
    pub(crate) streams: stream::Control,
    pub(crate) state: StateDir,
    pub(crate) roles: Roles,
    pub(crate) external: Vec<Multiaddr>,
    pub(crate) places: Places,
    pub(crate) registration: Registration,
    pub(crate) look_ups: LookUps,
    pub(crate) dials: Dials,
    pub(crate) lost: Lost,
    pub(crate) pause: Pause,
    pub(crate) book: Book,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) liveness: Liveness,
    pub(crate) connections: HashMap<PeerId, Vec<Connection>>,
    pub(crate) anti_entropy: AntiEntropy,
    pub(crate) rng: StdRng,
    /// Peers dialled that are not known to be members.
    pub(crate) strangers_dialled: HashSet<PeerId>,
    pub(crate) reports: Reports,
    pub(crate) pulls: Pulls,
    pub(crate) puts: HashSet<kad::QueryId>,
    /// Own records that wait until those are done.
    pub(crate) waiting_puts: BTreeMap<Topic, Vec<u8>>,
    pub(crate) blocked: HashSet<PeerId>,
    pub(crate) due: Due,
    pub(crate) report_interval: Duration,
    /// What this proxy has told its agents of their number.
    pub(crate) told: Told,
    pub(crate) duplicates: Vec<PeerId>,
    /// When anything was last offered that had changed.
    pub(crate) offered: Option<Instant>,
    /// When the own certificate was last gossiped together with an announcement.
    pub(crate) vouched: Option<Instant>,
    /// Of the certificate that this process started with.
    pub(crate) issued_at: u64,
}

/// One connection to a peer.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) relayed: bool,
    pub(crate) since: Instant,
    /// Of the process at the other end, once identify has told it.
    pub(crate) epoch: Option<u64>,
}

/// When recurring work is to be done next.
pub(crate) struct Due {
    discover: Instant,
    count_agents: Instant,
    pub(crate) refresh: Instant,
    pub(crate) put_again: Option<Instant>,
    pub(crate) announce_again: Option<Instant>,
    pub(crate) subscribe_again: Option<Instant>,
    discovered: Option<Instant>,
    put: Option<Instant>,
    housekeeping: Instant,
    pub(crate) store_peers: Instant,
    expire_revocations: Instant,
}

impl Due {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            discover: now + SETTLE,
            count_agents: now,
            refresh: now + REFRESH,
            put_again: None,
            announce_again: None,
            subscribe_again: None,
            discovered: None,
            put: None,
            housekeeping: now,
            store_peers: now + STORE_PEERS,
            expire_revocations: now + EXPIRE_REVOCATIONS,
        }
    }
}

impl EventLoop {
    /// Runs until `shutdown`, takes back what this process said, and goes on until `served`: answers of the hop are
    /// still going out.
    pub(crate) async fn run(mut self: Box<Self>, shutdown: CancellationToken, served: CancellationToken) {
        let mut tick = tokio::time::interval(liveness::TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut revocations = self.members.revocation_changes();
        let shared = Arc::clone(&self.shared);
        loop {
            let interval = self.report_interval;
            let report_at = self.reports.next(interval, Instant::now());
            tokio::select! {
                () = shutdown.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_event(event),
                Some(command) = self.commands.recv() => self.on_command(command),
                () = shared.outbox.filled.notified() => self.reports.add(shared.outbox.take()),
                () = sleep_until(report_at), if report_at.is_some() => self.send_reports(interval),
                Ok(()) = revocations.changed() => self.enforce_revocations(),
                Some(outcome) = self.pulls.finished() => self.on_pulled(outcome),
                () = tokio::time::sleep_until(self.anti_entropy.next().into()) => self.compare_lists(Instant::now()),
                _ = tick.tick() => self.on_tick(Instant::now()),
            }
        }
        self.say_farewell(served).await;
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Offer { offer, done } => {
                self.on_offer(offer);
                // An error means that the caller has gone.
                let _ = done.send(());
            }
            Command::LookUp { topic, answer } => self.look_up(topic, Some(answer)),
            Command::Connect { peer, answer } => self.connect(peer, answer),
            Command::Publish(message) => self.publish(&message),
            Command::TellKey(signed) => self.tell_key(&signed),
            Command::OtherList { peer, list } => self.anti_entropy.differs(peer, list, Instant::now()),
            Command::HangUp => self.hang_up(),
        }
    }

    /// Ends all connections, and has none of them come back: their other ends may dial at once.
    fn hang_up(&mut self) {
        let peers: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
        for peer in peers {
            self.swarm.behaviour_mut().blocked.block_peer(peer);
            // An error means that it is gone already.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    fn on_event(&mut self, event: SwarmEvent<crate::behaviour::BehaviourEvent>) {
        use crate::behaviour::BehaviourEvent as From;
        match event {
            SwarmEvent::Behaviour(From::Kad(event)) => self.on_kad(event),
            SwarmEvent::Behaviour(From::Gossip(event)) => self.on_gossip(event),
            SwarmEvent::Behaviour(From::Identify(event)) => self.on_identify(event),
            SwarmEvent::Behaviour(From::Ping(event)) => self.on_ping(&event),
            SwarmEvent::Behaviour(From::Mdns(event)) => self.on_mdns(event),
            SwarmEvent::Behaviour(From::RelayClient(event)) => tracing::debug!(?event, "relay client"),
            SwarmEvent::Behaviour(From::RelayServer(event)) => tracing::debug!(?event, "relay"),
            SwarmEvent::Behaviour(_) => {}
            event => self.on_connection_event(event),
        }
    }

    pub(crate) fn learn(&self, event: directory::Event) {
        if let Some(peer) = event.speaker() {
            self.vouch_for(&peer);
        }
        self.shared.directory.apply(event, Instant::now());
    }

    /// The same, of something that `source` handed over.
    pub(crate) fn learn_from(&self, source: PeerId, event: directory::Event) {
        if let Some(peer) = event.speaker() {
            self.vouch_for(&peer);
        }
        self.shared.directory.apply_from(source, event, Instant::now());
    }

    pub(crate) fn look_up(&mut self, topic: Topic, waiter: Option<Waiter>) {
        let kad = &mut self.swarm.behaviour_mut().kad;
        let mesh = self.shared.mesh;
        self.look_ups.join(topic, waiter, |topic| kad.get_record(record_store::key(topic, &mesh)));
    }

    fn connect(&mut self, peer: PeerId, answer: crate::dial::Waiter) {
        if self.is_connected(&peer) || peer == self.shared.peer_id {
            // An error means that the caller has gone.
            let _ = answer.send(Ok(()));
            return;
        }
        self.dial(peer, Some(answer));
    }

    /// Dials a peer where it is known to be, unless that is under way or held back.
    pub(crate) fn dial(&mut self, peer: PeerId, waiter: Option<crate::dial::Waiter>) {
        let now = Instant::now();
        if !self.pause.dials() {
            // An error means that the caller has gone.
            waiter.map(|waiter| waiter.send(Err(ConnectError::Revoked)).ok());
            return;
        }
        if !self.dials.ask(peer, waiter, now) {
            return;
        }
        if self.members.refused(&peer, now).is_some() {
            self.dials.failed(peer, &ConnectError::Refused(peer), true, now);
            return;
        }
        let recorded = self.shared.directory.read(|directory| directory.addresses(&peer).to_vec());
        let mut addresses = addresses::preferred(self.book.of(&peer, &recorded));
        let dial = if self.is_connected(&peer) {
            // Through a relay, or it would not be dialled.
            addresses.retain(|address| !addresses::is_relayed(address));
            DialOpts::peer_id(peer).addresses(addresses).condition(PeerCondition::NotDialing)
        } else {
            let condition = PeerCondition::DisconnectedAndNotDialing;
            DialOpts::peer_id(peer).addresses(addresses).extend_addresses_through_behaviour().condition(condition)
        }
        .build();
        match self.swarm.dial(dial) {
            // A dial of another behaviour is under way: its end is this dial's end.
            Ok(()) | Err(libp2p::swarm::DialError::DialPeerConditionFalse(_)) => {}
            Err(libp2p::swarm::DialError::NoAddresses) => {
                self.dials.failed(peer, &ConnectError::NoAddress(peer), false, now);
            }
            Err(error) => {
                let error = ConnectError::Failed { peer, cause: error.to_string() };
                self.dials.failed(peer, &error, false, now);
            }
        }
    }

    pub(crate) fn is_connected(&self, peer: &PeerId) -> bool {
        self.connections.contains_key(peer)
    }

    /// Whether a connection to the peer goes without a relay, so that none better can be had.
    pub(crate) fn has_direct(&self, peer: &PeerId) -> bool {
        self.connections.get(peer).is_some_and(|all| all.iter().any(|connection| !connection.relayed))
    }

    /// Fetches over the hop what gossip said before this connection was there.
    pub(crate) fn pull(&mut self, peer: PeerId) {
        let Some(membership) = self.members.get(&peer) else { return };
        if membership.roles.contains(Role::Agent) {
            self.hop.prepare(peer);
            self.pulls.info(info::Puller { hop: self.hop.clone(), directory: self.shared.directory.clone() }, peer);
        }
        if let Some(list) = self.members.other_list_of(&peer) {
            self.anti_entropy.differs(peer, list, Instant::now());
        }
    }

    /// Handles one event of the swarm; false when none came until `deadline`.
    pub(crate) async fn step(&mut self, deadline: tokio::time::Instant) -> bool {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => false,
            event = self.swarm.select_next_some() => {
                self.on_event(event);
                true
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

//! The one task that owns the swarm. It only translates: commands into calls of behaviours, their events into calls of
//! the pure parts. Each protocol's events have a file of their own under `events/`.

use crate::{
    addresses::{self, Book},
    behaviour::Behaviour,
    bootstrap::Bootstrap,
    clock,
    config::Config,
    dial::Dials,
    directory,
    gossip::{self, MeshMessage},
    handle::{Command, ConnectError, Shared},
    hop::Hop,
    info, liveness,
    liveness::{Liveness, Verdict},
    look_up::{LookUps, Waiter},
    members::{Denied, Members},
    pulls::Pulls,
    record_store,
    registration::{Registration, Statement},
    reports::Reports,
    state::{KnownPeer, StateDir},
};
use dunlin_protocol::{
    announcement::ReplicaState,
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
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How often the peers of a role are looked up.
const DISCOVER: Duration = Duration::from_secs(10);
/// How often own records are put again under a new version.
const REFRESH: Duration = Duration::from_secs(180);
/// How long news of the neighbourhood is collected before anything is looked up or put again because of it.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);
/// Shortest time between two look-ups, or two rounds of puts, because of such news: a mesh that starts all at once
/// would otherwise talk of nothing else.
const CALM: Duration = Duration::from_secs(3);
/// How often wanted peers are dialled and old things forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the addresses of connected peers are stored for the next start.
const STORE_PEERS: Duration = Duration::from_secs(60);
/// Peers dialled in one round without anybody asking.
const IDLE_DIALS: usize = 48;
/// Longest time that the end of a node may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time that the last gossip gets to leave its queues.
const FLUSH: Duration = Duration::from_millis(100);

/// Everything that the task owns.
pub(crate) struct EventLoop {
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) members: Members,
    pub(crate) hop: Hop,
    pub(crate) state: StateDir,
    pub(crate) roles: Roles,
    pub(crate) external: Vec<Multiaddr>,
    pub(crate) registration: Registration,
    pub(crate) look_ups: LookUps,
    pub(crate) dials: Dials,
    pub(crate) book: Book,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) liveness: Liveness,
    pub(crate) connections: HashMap<PeerId, Vec<Connection>>,
    pub(crate) reports: Reports,
    pub(crate) pulls: Pulls,
    pub(crate) puts: HashSet<kad::QueryId>,
    pub(crate) blocked: HashSet<PeerId>,
    pub(crate) due: Due,
    pub(crate) report_interval: Duration,
    pub(crate) duplicates: Vec<PeerId>,
    /// When anything was last offered that had changed.
    pub(crate) offered: Option<Instant>,
    /// Of the certificate that this process started with.
    pub(crate) issued_at: u64,
}

/// One connection to a peer.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) relayed: bool,
    pub(crate) since: Instant,
}

/// When recurring work is to be done next.
pub(crate) struct Due {
    discover: Instant,
    pub(crate) refresh: Instant,
    put_again: Option<Instant>,
    pub(crate) announce_again: Option<Instant>,
    discovered: Option<Instant>,
    put: Option<Instant>,
    housekeeping: Instant,
    store_peers: Instant,
}

impl Due {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            discover: now + SETTLE,
            refresh: now + REFRESH,
            put_again: None,
            announce_again: None,
            discovered: None,
            put: None,
            housekeeping: now,
            store_peers: now + STORE_PEERS,
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
                Some(()) = self.pulls.finished() => {}
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

    fn on_offer(&mut self, offer: crate::Offer) {
        let own = self.members.own();
        let ready = offer.state == ReplicaState::Ready;
        let offered = offer.models.len();
        let allowed = offer.models.iter().filter(|model| own.may_serve(&model.id)).count();
        if allowed < offered {
            tracing::warn!(
                index = offer.index,
                left_out = offered - allowed,
                "models outside this peer's certificate are not registered"
            );
        }
        match self.registration.offer(offer, |model| own.may_serve(model), Instant::now()) {
            Ok(statements) => {
                if !statements.is_empty() {
                    self.offered = Some(Instant::now());
                }
                self.say(statements);
            }
            Err(error) => tracing::error!(%error, "replica cannot be announced"),
        }
        if ready {
            self.due.discover = Instant::now();
        }
    }

    /// Gossips and puts what follows from a change of this process's own state.
    pub(crate) fn say(&mut self, statements: Vec<Statement>) {
        for statement in statements {
            match statement {
                Statement::Announce { announcement, signed } => {
                    self.learn(directory::Event::Announcement(announcement));
                    self.publish(&MeshMessage::Announcement(signed));
                }
                Statement::Put { topic, value } => self.put(&topic, value),
            }
        }
        self.shared.announced.store(Arc::new(self.registration.announcements()));
    }

    fn put(&mut self, topic: &Topic, value: Vec<u8>) {
        let record = kad::Record::new(record_store::key(topic, &self.shared.mesh), value);
        match self.swarm.behaviour_mut().kad.put_record(record, kad::Quorum::One) {
            Ok(query) => {
                self.puts.insert(query);
            }
            Err(error) => tracing::warn!(%topic, %error, "own record not stored"),
        }
    }

    pub(crate) fn learn(&self, event: directory::Event) {
        self.shared.directory.apply(event, Instant::now());
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
        if !self.dials.ask(peer, waiter, now) {
            return;
        }
        if self.members.refused(&peer, now).is_some() {
            self.dials.failed(peer, &ConnectError::Refused(peer), true, now);
            return;
        }
        let recorded = self
            .shared
            .directory
            .read(|directory| directory.peer(&peer).map(|view| view.addresses.to_vec()).unwrap_or_default());
        let addresses = addresses::preferred(self.book.of(&peer, &recorded));
        let dial = DialOpts::peer_id(peer)
            .addresses(addresses)
            .extend_addresses_through_behaviour()
            .condition(PeerCondition::DisconnectedAndNotDialing)
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

    pub(crate) fn publish(&mut self, message: &MeshMessage) {
        match message.encode() {
            Ok(data) => self.gossip(gossip::mesh_topic(), data),
            Err(error) => tracing::warn!(%error, "message not gossiped"),
        }
    }

    fn gossip(&mut self, topic: libp2p::gossipsub::IdentTopic, data: Vec<u8>) {
        if let Err(error) = self.swarm.behaviour_mut().gossip.publish(topic, data) {
            // Nobody there to hear it, or said already: both normal.
            tracing::trace!(%error, "not gossiped");
        }
    }

    fn send_reports(&mut self, interval: Duration) {
        for report in self.reports.due(interval, Instant::now()) {
            match report.encode() {
                Ok(data) => self.gossip(gossip::load_topic(), data),
                Err(error) => tracing::warn!(%error, "load report not gossiped"),
            }
        }
    }

    fn on_tick(&mut self, now: Instant) {
        self.judge_silence(now);
        for query in self.look_ups.ripe(now) {
            if let Some(mut query) = self.swarm.behaviour_mut().kad.query_mut(&query) {
                query.finish();
            }
        }
        self.dials.expire(now);
        if self.due.discover <= now {
            self.due.discover = now + DISCOVER;
            self.due.discovered = Some(now);
            self.discover();
        }
        if self.due.refresh <= now {
            self.due.refresh = now + REFRESH;
            self.due.put = Some(now);
            let statements = self.registration.refresh(now);
            self.say(statements);
            self.tell_renewal();
        } else if self.due.put_again.take_if(|at| *at <= now).is_some() {
            self.due.put = Some(now);
            let puts = self.registration.puts();
            self.say(puts);
        }
        if self.due.announce_again.take_if(|at| *at <= now).is_some() {
            let statements = self.registration.announce_again();
            self.say(statements);
        }
        if self.due.housekeeping <= now {
            self.due.housekeeping = now + HOUSEKEEPING;
            self.keep_house(now);
        }
        if self.due.store_peers <= now {
            self.due.store_peers = now + STORE_PEERS;
            self.store_peers();
        }
    }

    /// Says again what certificate this peer has now, when that is not the one that it started with: whoever was
    /// connected since saw another.
    fn tell_renewal(&mut self) {
        if self.members.own().issued_at != self.issued_at {
            let chain = dunlin_protocol::certificate::Chain::clone(&self.members.own_chain());
            self.publish(&MeshMessage::Certificate(chain));
        }
    }

    fn judge_silence(&mut self, now: Instant) {
        let directory = self.shared.directory.clone();
        let last_report = |peer: &PeerId| directory.read(|directory| directory.last_report(peer));
        for verdict in self.liveness.check(last_report, now) {
            match verdict {
                Verdict::Suspect(peer) => {
                    tracing::warn!(%peer, "peer is silent; no new requests go there");
                    self.learn(directory::Event::Suspect { peer });
                }
                Verdict::Dead(peer) => {
                    tracing::warn!(%peer, "peer is silent for too long; its connections are closed");
                    // An error means that they closed by themselves meanwhile.
                    let _ = self.swarm.disconnect_peer_id(peer);
                    self.swarm.behaviour_mut().kad.remove_peer(&peer);
                }
            }
        }
    }

    /// Looks up who plays the roles that this process works with.
    fn discover(&mut self) {
        let proxy = self.roles.contains(Role::Proxy);
        if proxy || self.registration.any_ready() {
            self.look_up(Topic::Role(Role::Proxy), None);
        }
        if proxy {
            self.look_up(Topic::Role(Role::Agent), None);
        }
    }

    /// Something changed around this peer: look again soon, and put own records where they now belong.
    pub(crate) fn neighbourhood_changed(&mut self) {
        let soon = Instant::now() + SETTLE;
        let calmly = |last: Option<Instant>| last.map_or(soon, |last| soon.max(last + CALM));
        self.due.discover = self.due.discover.min(calmly(self.due.discovered));
        self.due.put_again.get_or_insert(calmly(self.due.put));
    }

    fn keep_house(&mut self, now: Instant) {
        self.shared.directory.expire(now);
        self.warn_of_duplicates(now);
        self.swarm.behaviour_mut().kad.store_mut().expire(now);
        self.unblock();
        self.close_expired();
        self.report_interval = gossip::report_interval(self.shared.directory.read(directory::Directory::agents));
        let alone = self.connections.is_empty();
        let connections = &self.connections;
        for (address, peer) in self.bootstrap.due(|peer| connections.contains_key(peer), alone, now) {
            self.dial_bootstrap(address, peer);
        }
        self.connect_wanted();
    }

    fn dial_bootstrap(&mut self, address: Multiaddr, peer: Option<PeerId>) {
        match peer {
            Some(peer) if peer == self.shared.peer_id => {}
            Some(peer) => {
                self.book.add(peer, address);
                self.dial(peer, None);
            }
            None => {
                if let Err(error) = self.swarm.dial(address.clone()) {
                    tracing::debug!(%address, %error, "bootstrap dial");
                }
            }
        }
    }

    /// Dials whom this process works with: agents the proxies, proxies each other and the replicas.
    pub(crate) fn connect_wanted(&mut self) {
        let proxy = self.roles.contains(Role::Proxy);
        let agent = self.roles.contains(Role::Agent);
        let own = self.shared.peer_id;
        let wanted: HashSet<PeerId> = self.shared.directory.read(|directory| {
            let proxies = directory.members(Role::Proxy).filter(|_| proxy || agent);
            let agents = directory.members(Role::Agent).filter(|_| proxy);
            let replicas = directory.all_replicas().map(|replica| replica.id.peer).filter(|_| proxy);
            proxies.chain(agents).chain(replicas).collect()
        });
        let missing = wanted.into_iter().filter(|peer| {
            *peer != own
                && !self.connections.contains_key(peer)
                && !self.dials.is_running(peer)
                && !self.blocked.contains(peer)
        });
        let missing: Vec<PeerId> = missing.take(IDLE_DIALS).collect();
        for peer in missing {
            self.dial(peer, None);
        }
    }

    /// Stores and carries out what was revoked.
    fn enforce_revocations(&mut self) {
        self.pulls.store_revocations(self.state.clone(), self.members.clone());
        for peer in self.members.revoked() {
            if self.blocked.insert(peer) {
                tracing::info!(%peer, "membership revoked");
            }
            let behaviour = self.swarm.behaviour_mut();
            // Closes its connections as well.
            behaviour.blocked.block_peer(peer);
            behaviour.kad.remove_peer(&peer);
            behaviour.kad.store_mut().forget(&peer);
            self.book.forget(&peer);
            self.learn(directory::Event::Revoked { peer });
        }
    }

    /// Two processes under one peer id take each other's place everywhere: only a human can say which one is meant.
    fn warn_of_duplicates(&mut self, now: Instant) {
        let duplicates: Vec<PeerId> = self.shared.directory.read(|directory| {
            directory.peers().filter(|view| view.epochs_conflict(now)).map(|view| view.peer).collect()
        });
        for peer in &duplicates {
            if !self.duplicates.contains(peer) {
                tracing::error!(%peer, "two processes run under this peer id; stop one, or give it its own state directory");
            }
        }
        self.duplicates = duplicates;
    }

    /// Ends the connections of members whose certificates have ended.
    fn close_expired(&mut self) {
        let unix_s = clock::unix_s();
        let ended = |peer: &&PeerId| matches!(self.members.check(peer, unix_s), Err(Denied::Expired));
        let expired: Vec<PeerId> = self.connections.keys().filter(ended).copied().collect();
        for peer in expired {
            tracing::info!(%peer, "certificate has expired");
            // An error means that it closed by itself meanwhile.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    /// Lets those back in who were invited again.
    pub(crate) fn unblock(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        let revoked: HashSet<PeerId> = self.members.revoked().into_iter().collect();
        let back: Vec<PeerId> = self.blocked.iter().filter(|peer| !revoked.contains(peer)).copied().collect();
        for peer in back {
            self.blocked.remove(&peer);
            self.swarm.behaviour_mut().blocked.unblock_peer(peer);
            self.dials.forgive(&peer);
        }
    }

    fn store_peers(&mut self) {
        let known = self.book.iter().filter(|(peer, _)| self.connections.contains_key(peer));
        let known: Vec<KnownPeer> =
            known.map(|(peer, addresses)| KnownPeer { peer, addresses: addresses.to_vec() }).collect();
        if !known.is_empty() {
            self.pulls.store_peers(self.state.clone(), known);
        }
    }

    /// Fetches over the hop what gossip said before this connection was there.
    pub(crate) fn pull(&mut self, peer: PeerId) {
        let Some(membership) = self.members.get(&peer) else { return };
        let agent = membership.roles.contains(Role::Agent);
        let revocations = self.members.wants_revocations_of(&peer);
        if agent || revocations {
            self.hop.prepare(peer);
        }
        if agent {
            self.pulls.info(info::Puller { hop: self.hop.clone(), directory: self.shared.directory.clone() }, peer);
        }
        if revocations {
            self.pulls.revocations(self.hop.clone(), self.members.clone(), peer);
        }
    }

    /// Takes back what this process said, and waits a bounded time for that to get out.
    async fn say_farewell(mut self: Box<Self>, served: CancellationToken) {
        self.puts.clear();
        let statements = self.registration.withdraw_all(Instant::now());
        let said_anything = !statements.is_empty();
        self.say(statements);
        let deadline = tokio::time::Instant::now() + FAREWELL;
        while said_anything && !self.puts.is_empty() && self.step(deadline).await {}
        let flushed = tokio::time::Instant::now() + FLUSH;
        while said_anything && self.step(flushed).await {}
        self.store_peers();
        loop {
            tokio::select! {
                () = served.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_event(event),
            }
        }
        self.pulls.drain(FAREWELL).await;
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

/// A node that could not start.
pub(crate) fn listen(swarm: &mut Swarm<Behaviour>, config: &Config) -> Result<(), crate::node::Error> {
    for address in &config.listen {
        let listening = swarm.listen_on(address.clone());
        listening.map_err(|cause| crate::node::Error::Listen { address: address.clone(), cause: cause.to_string() })?;
    }
    for relay in &config.relays {
        let address = relay.clone().with(libp2p::multiaddr::Protocol::P2pCircuit);
        let listening = swarm.listen_on(address.clone());
        listening.map_err(|cause| crate::node::Error::Listen { address, cause: cause.to_string() })?;
    }
    Ok(())
}

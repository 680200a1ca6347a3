//! What is to be done now and then: judging silence, looking for peers, dialling them, forgetting what is old.

use super::{EXPIRE_REVOCATIONS, EventLoop, REFRESH, SETTLE, STORE_PEERS};
use crate::{addresses, clock, directory, gossip, liveness::Verdict, members::Standing, state::KnownPeer};
use dunlin_protocol::{
    id::{PeerId, Role},
    topic::Topic,
};
use libp2p::Multiaddr;
use std::{
    collections::HashSet,
    sync::PoisonError,
    time::{Duration, Instant},
};

/// How often the peers of a role are looked up.
const DISCOVER: Duration = Duration::from_secs(10);
/// Shortest time between two look-ups, or two rounds of puts, because of news of the neighbourhood: a mesh that starts
/// all at once would otherwise talk of nothing else.
const CALM: Duration = Duration::from_secs(3);
/// How often wanted peers are dialled and old things forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Members dialled in one round without anybody asking.
const IDLE_DIALS: usize = 48;
/// Dials under way to peers that are not known to be members.
const STRANGER_DIALS: usize = 32;

impl EventLoop {
    pub(super) fn on_tick(&mut self, now: Instant) {
        self.judge_silence(now);
        for query in self.look_ups.ripe(now) {
            if let Some(mut query) = self.swarm.behaviour_mut().kad.query_mut(&query) {
                query.finish();
            }
        }
        self.dials.expire(now);
        // The next ones at once where these proved members; those that failed make room at the pace of housekeeping, so
        // that nobody can make this process dial about.
        if self.strangers_dialled.iter().any(|peer| self.is_connected(peer)) {
            self.connect_wanted();
        }
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
        if self.due.subscribe_again.take_if(|at| *at <= now).is_some() {
            self.subscribe_again();
        }
        if self.due.housekeeping <= now {
            self.due.housekeeping = now + HOUSEKEEPING;
            self.keep_house(now);
        }
        if self.due.store_peers <= now {
            self.due.store_peers = now + STORE_PEERS;
            self.store_peers();
        }
        if self.due.expire_revocations <= now {
            self.due.expire_revocations = now + EXPIRE_REVOCATIONS;
            self.members.expire_revocations(clock::unix_s());
        }
    }

    pub(super) fn judge_silence(&mut self, now: Instant) {
        let directory = self.shared.directory.clone();
        // With much on its way, a ping waits behind it: then what the hop hears is the only word for a long time.
        let streams = self.streams.clone();
        let last_report = |peer: &PeerId| {
            let reported = directory.read(|directory| directory.last_report(peer));
            reported.max(streams.last_heard(peer))
        };
        for verdict in self.liveness.check(last_report, now) {
            match verdict {
                Verdict::Suspect(peer) => {
                    tracing::warn!(%peer, "peer is silent; no new requests go there");
                    self.learn(directory::Event::Suspect { peer });
                }
                Verdict::Back(peer) => {
                    tracing::info!(%peer, "peer speaks again");
                    self.learn(directory::Event::Heard { peer });
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
    pub(super) fn discover(&mut self) {
        if !self.pause.dials() {
            return;
        }
        let proxy = self.roles.contains(Role::Proxy);
        if proxy || self.registration.any_ready() {
            self.look_up(Topic::Role(Role::Proxy), None);
        }
        if proxy {
            self.look_up(Topic::Role(Role::Agent), None);
        } else if self.registration.any_ready() && self.due.count_agents <= Instant::now() {
            // An agent that comes late has not heard the others announce themselves.
            self.due.count_agents = Instant::now() + REFRESH;
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

    /// Nobody took what this process put, though there is somebody: tries again before long.
    pub(crate) fn put_failed(&mut self) {
        let somebody = self.swarm.behaviour_mut().kad.kbuckets().any(|bucket| !bucket.is_empty());
        if somebody {
            self.due.put_again.get_or_insert(Instant::now() + CALM);
        }
    }

    pub(super) fn keep_house(&mut self, now: Instant) {
        self.shared.directory.expire(now);
        self.warn_of_duplicates(now);
        self.places.ask_again(&mut self.swarm, now);
        self.swarm.behaviour_mut().kad.store_mut().expire(now);
        self.unblock();
        self.close_denied();
        self.set_pace();
        let alone = self.connections.is_empty();
        self.pause_if_revoked(alone, now);
        if self.pause.dials() {
            self.redial(alone, now);
        }
        self.close_spare_relayed(now);
    }

    /// How often this process reports; and at a proxy, what it tells the agents that it is connected with.
    fn set_pace(&mut self) {
        let known = self.shared.directory.read(directory::Directory::agents);
        let said = {
            let mut heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.most(|proxy| self.connections.contains_key(proxy))
        };
        self.report_interval = gossip::report_interval(known.max(said));
        if !self.roles.contains(Role::Proxy) {
            return;
        }
        let is_agent = |peer: &&PeerId| self.members.get(peer).is_some_and(|it| it.roles.contains(Role::Agent));
        let connected: Vec<PeerId> = self.connections.keys().filter(is_agent).copied().collect();
        for agent in self.told.due(&connected, known) {
            self.pulls.tell_agents(self.hop.clone(), agent, known);
        }
    }

    fn redial(&mut self, alone: bool, now: Instant) {
        let connected = |peer: &PeerId, address: &Multiaddr| match self.connections.get(peer) {
            Some(connections) => addresses::is_relayed(address) || connections.iter().any(|one| !one.relayed),
            None => false,
        };
        for (address, peer) in self.bootstrap.due(connected, alone, now) {
            self.dial_bootstrap(address, peer);
        }
        self.connect_wanted();
    }

    /// Stops dialling once this process knows that it is out of its mesh, and says so.
    fn pause_if_revoked(&mut self, alone: bool, now: Instant) {
        let standing = self.members.standing();
        if !self.pause.update(standing, alone, now) {
            return;
        }
        let says = match standing {
            Standing::CalledRevoked(peer) => format!("peer {peer}"),
            Standing::Revoked | Standing::Member => "a signed revocation".to_owned(),
        };
        tracing::warn!(
            says,
            "this machine's membership was revoked; it dials nobody any more (where no signed revocation has come, it looks \
             again every ten minutes); ask for a new invitation, stop this process, then: dunlin join TOKEN"
        );
    }

    pub(super) fn dial_bootstrap(&mut self, address: Multiaddr, peer: Option<PeerId>) {
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

    /// Dials whom this process works with: agents the proxies, proxies each other and the replicas. With those that
    /// are connected only through a relay a direct way is tried again and again, and who was lost is looked for.
    pub(crate) fn connect_wanted(&mut self) {
        let proxy = self.roles.contains(Role::Proxy);
        let agent = self.roles.contains(Role::Agent);
        let own = self.shared.peer_id;
        let (members, strangers) = self.shared.directory.read(|directory| {
            let proxies = directory.members(Role::Proxy).filter(|_| proxy || agent);
            let agents = directory.members(Role::Agent).filter(|_| proxy);
            let replicas = directory.all_replicas().map(|replica| replica.id.peer).filter(|_| proxy);
            let members: HashSet<PeerId> = proxies.chain(agents).chain(replicas).collect();
            // To connect with them is the way to find out whether they are members.
            let wanted = |it: &directory::Stranger| (it.proxy && (proxy || agent)) || (it.agent && proxy);
            let strangers: Vec<PeerId> = directory.strangers().filter(wanted).map(|stranger| stranger.peer).collect();
            (members, strangers)
        });
        let members: HashSet<PeerId> = members.into_iter().chain(self.lost.wanted()).collect();
        let now = Instant::now();
        self.strangers_dialled.retain(|peer| self.dials.is_running(peer));
        let missing = |peer: &PeerId| {
            let busy = self.dials.is_running(peer) || self.dials.is_held_back(peer, now);
            *peer != own && !busy && !self.has_direct(peer) && !self.blocked.contains(peer)
        };
        // Anybody can make strangers up, and each costs a dial: they never take the place of members.
        let room = STRANGER_DIALS.saturating_sub(self.strangers_dialled.len());
        let strangers: Vec<PeerId> = strangers.into_iter().filter(missing).take(room).collect();
        let members: Vec<PeerId> = members.into_iter().filter(missing).take(IDLE_DIALS).collect();
        for peer in members {
            self.dial(peer, None);
        }
        for peer in strangers {
            self.dial(peer, None);
            self.strangers_dialled.insert(peer);
        }
    }

    /// Two processes under one peer id take each other's place everywhere: only a human can say which one is meant.
    pub(super) fn warn_of_duplicates(&mut self, now: Instant) {
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
    pub(super) fn store_peers(&mut self) {
        // Who is away comes last: where there is no room for all, the others are more likely to be there.
        let peers = self.connections.keys().copied().chain(self.lost.all());
        let noted = |peer| KnownPeer { peer, addresses: self.book.noted(&peer).to_vec() };
        let known: Vec<KnownPeer> = peers.map(noted).filter(|known| !known.addresses.is_empty()).collect();
        if !known.is_empty() {
            self.pulls.store_peers(self.state.clone(), known);
        }
    }
}

//! What peers said whose certificates this process has not seen yet.
//!
//! A signature proves only that the owner of a key said something, and keys cost nothing: any member could make
//! thousands and let each announce a replica. So such words wait here, apart and within narrow bounds, shown to nobody,
//! until a certificate proves that their peer is a member. What falls out is heard again: peers refresh what they say,
//! and a member that is connected is asked for it.

use super::{EXPIRY, Event};
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{PeerId, ReplicaId, Role, Version},
    record::RecordState,
    topic::Topic,
};
use libp2p::Multiaddr;
use std::{collections::HashMap, time::Instant};

/// Peers whose words wait. Of those that the source with the most of them handed over, the one that came first makes room.
pub(super) const PEERS: usize = 256;
/// Words of one peer that wait; the one that came first makes room.
pub(super) const STATEMENTS: usize = 8;

/// A peer that said something and that nothing is known of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    /// What it calls itself.
    pub peer: PeerId,
    /// Whether it says that it is a proxy.
    pub proxy: bool,
    /// Whether it says that it serves, or may.
    pub agent: bool,
}

/// The words that wait.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    peers: HashMap<PeerId, Words>,
    arrivals: u64,
}

#[derive(Debug)]
struct Words {
    arrival: u64,
    /// Who handed over the first of them, where that was another peer.
    source: Option<PeerId>,
    expires: Instant,
    said: Vec<Event>,
}

impl Unproven {
    /// Keeps what `peer` said and `source` handed over, unless the peer said something later of the same thing.
    pub(super) fn hold(&mut self, peer: PeerId, source: Option<PeerId>, event: Event, now: Instant) {
        if !self.peers.contains_key(&peer) && self.peers.len() >= PEERS {
            self.make_room();
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        let new = || Words { arrival, source, expires: now + EXPIRY, said: Vec::new() };
        self.peers.entry(peer).or_insert_with(new).hold(event);
    }

    fn make_room(&mut self) {
        let mut of_source: HashMap<Option<PeerId>, usize> = HashMap::new();
        for words in self.peers.values() {
            *of_source.entry(words.source).or_default() += 1;
        }
        // Among equals one is chosen by its id, so that the choice is the same each time.
        let Some((source, _)) = of_source.into_iter().max_by_key(|(source, count)| (*count, *source)) else { return };
        let its = self.peers.iter().filter(|(_, words)| words.source == source);
        let oldest = its.min_by_key(|(_, words)| words.arrival).map(|(peer, _)| *peer);
        oldest.and_then(|peer| self.peers.remove(&peer));
    }

    /// What `peer` said, which no longer waits.
    pub(super) fn take(&mut self, peer: &PeerId) -> Vec<Event> {
        self.peers.remove(peer).map(|words| words.said).unwrap_or_default()
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.peers.retain(|_, words| words.expires > now);
    }

    /// The newest of each source in turn.
    pub(super) fn strangers(&self) -> impl Iterator<Item = Stranger> {
        let mut newest_first: Vec<(&PeerId, &Words)> = self.peers.iter().collect();
        newest_first.sort_unstable_by_key(|(_, words)| std::cmp::Reverse(words.arrival));
        let mut of_source: HashMap<Option<PeerId>, usize> = HashMap::new();
        let mut in_turn: Vec<(usize, Stranger)> = Vec::with_capacity(newest_first.len());
        for (peer, words) in newest_first {
            let turn = of_source.entry(words.source).or_default();
            let stranger = Stranger {
                peer: *peer,
                proxy: words.said.iter().any(|event| plays(event, Role::Proxy)),
                agent: words.serves(),
            };
            in_turn.push((*turn, stranger));
            *turn += 1;
        }
        in_turn.sort_by_key(|(turn, _)| *turn);
        in_turn.into_iter().map(|(_, stranger)| stranger)
    }

    /// How many of them say that they serve, or may.
    pub(super) fn agents(&self) -> usize {
        self.peers.values().filter(|words| words.serves()).count()
    }

    /// Where `peer` says that it listens.
    pub(super) fn addresses(&self, peer: &PeerId) -> &[Multiaddr] {
        let said = self.peers.get(peer).map(|words| words.said.as_slice()).unwrap_or_default();
        let told = said.iter().filter_map(|event| match event {
            Event::Record(record) => match &record.state {
                RecordState::Live { addresses, .. } => Some((record.version, addresses.as_slice())),
                RecordState::Withdrawn => None,
            },
            _ => None,
        });
        told.max_by_key(|(version, _)| *version).map(|(_, addresses)| addresses).unwrap_or_default()
    }

    /// Whether somebody registered `topic`.
    pub(super) fn registers(&self, topic: &Topic) -> bool {
        let live = |event: &Event| {
            matches!(event, Event::Record(record)
            if record.topic == *topic && matches!(record.state, RecordState::Live { .. }))
        };
        self.peers.values().any(|words| words.said.iter().any(live))
    }

    pub(super) fn record_version(&self, topic: &Topic, replica: &ReplicaId) -> Option<Version> {
        self.version(replica, Some(topic))
    }

    pub(super) fn announced_version(&self, replica: &ReplicaId) -> Option<Version> {
        self.version(replica, None)
    }

    fn version(&self, replica: &ReplicaId, topic: Option<&Topic>) -> Option<Version> {
        let said = &self.peers.get(&replica.peer)?.said;
        let about = said.iter().filter_map(subject).find(|about| about.replica == *replica && about.topic == topic);
        about.map(|about| about.version)
    }
}

impl Words {
    fn serves(&self) -> bool {
        self.said.iter().any(|event| plays(event, Role::Agent) || serves(event))
    }

    fn hold(&mut self, event: Event) {
        let Some(new) = subject(&event) else { return };
        let same = |old: &Event| subject(old).is_some_and(|old| old.replica == new.replica && old.topic == new.topic);
        if let Some(old) = self.said.iter_mut().find(|old| same(old)) {
            if subject(old).is_some_and(|old| old.version < new.version) {
                *old = event;
            }
            return;
        }
        if self.said.len() >= STATEMENTS {
            self.said.remove(0);
        }
        self.said.push(event);
    }
}

/// What a word is about.
struct Subject<'a> {
    replica: ReplicaId,
    /// None for an announcement.
    topic: Option<&'a Topic>,
    version: Version,
}

fn subject(event: &Event) -> Option<Subject<'_>> {
    match event {
        Event::Announcement(said) => Some(Subject { replica: said.replica, topic: None, version: said.version }),
        Event::Record(said) => Some(Subject { replica: said.replica, topic: Some(&said.topic), version: said.version }),
        _ => None,
    }
}

fn plays(event: &Event, role: Role) -> bool {
    matches!(event, Event::Record(record)
        if record.topic == Topic::Role(role) && matches!(record.state, RecordState::Live { .. }))
}

fn serves(event: &Event) -> bool {
    match event {
        Event::Announcement(said) => said.state != ReplicaState::Gone,
        Event::Record(said) => matches!(said.topic, Topic::Model(_)) && matches!(said.state, RecordState::Live { .. }),
        _ => false,
    }
}

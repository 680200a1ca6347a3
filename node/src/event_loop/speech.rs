//! What this process says: its replicas and roles to the DHT and by gossip, its load, and its farewell.

use super::EventLoop;
use crate::{
    dial::Dials,
    directory,
    gossip::{self, MeshMessage},
    look_up::LookUps,
    record_store,
    registration::Statement,
};
use dunlin_protocol::{announcement::ReplicaState, certificate::Chain, key::SignedKeyStatement, topic::Topic};
use futures::StreamExt;
use libp2p::kad;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// Longest time that the end of a node may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Shortest time between two tellings of the own certificate with announcements that follow each other closely.
const VOUCH: Duration = Duration::from_secs(60);
/// Own records that are put at the same time.
const PUTS: usize = 16;
/// Own records that wait to be put: a newer one of a topic takes the place of the one that waits.
const WAITING_PUTS: usize = 8 * 1024;
/// Time that the last gossip gets to leave its queues.
const FLUSH: Duration = Duration::from_millis(100);

impl EventLoop {
    pub(super) fn on_offer(&mut self, offer: crate::Offer) {
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
        if statements.iter().any(|statement| matches!(statement, Statement::Announce { .. })) {
            self.vouch_for_self(Instant::now());
        }
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

    /// Gossips the own certificate ahead of what it is needed for: what peers say counts only where theirs is known.
    fn vouch_for_self(&mut self, now: Instant) {
        if self.vouched.is_some_and(|at| now.saturating_duration_since(at) < VOUCH) {
            return;
        }
        self.vouched = Some(now);
        let chain = Chain::clone(&self.members.own_chain());
        self.publish(&MeshMessage::Certificate(chain));
    }

    /// Puts `value` now, or when earlier puts are done: hundreds at once (an Ollama lists as many models) would keep
    /// everything else of a connection waiting, and gossip doesn't wait for long.
    pub(super) fn put(&mut self, topic: &Topic, value: Vec<u8>) {
        if self.puts.len() < PUTS {
            return self.put_now(topic, value);
        }
        if self.waiting_puts.len() < WAITING_PUTS || self.waiting_puts.contains_key(topic) {
            self.waiting_puts.insert(topic.clone(), value);
        } else {
            tracing::warn!(%topic, "too many own records wait to be stored; this one is stored at the next refresh");
        }
    }

    fn put_now(&mut self, topic: &Topic, value: Vec<u8>) {
        let record = kad::Record::new(record_store::key(topic, &self.shared.mesh), value);
        match self.swarm.behaviour_mut().kad.put_record(record, kad::Quorum::One) {
            Ok(query) => {
                self.puts.insert(query);
            }
            Err(error) => tracing::warn!(%topic, %error, "own record not stored"),
        }
    }

    /// A put has come to its end: the next ones.
    pub(crate) fn put_ended(&mut self, query: &kad::QueryId) {
        if !self.puts.remove(query) {
            return;
        }
        while self.puts.len() < PUTS
            && let Some((topic, value)) = self.waiting_puts.pop_first()
        {
            self.put_now(&topic, value);
        }
    }

    pub(crate) fn publish(&mut self, message: &MeshMessage) {
        match message.encode() {
            Ok(data) => self.gossip(gossip::mesh_topic(), data),
            Err(error) => tracing::warn!(%error, "message not gossiped"),
        }
    }

    pub(super) fn tell_key(&mut self, signed: &SignedKeyStatement) {
        match signed.encode() {
            Ok(data) => self.gossip(gossip::keys_topic(), data),
            Err(error) => tracing::warn!(%error, "statement about a key not gossiped"),
        }
    }

    pub(super) fn gossip(&mut self, topic: libp2p::gossipsub::IdentTopic, data: Vec<u8>) {
        if let Err(error) = self.swarm.behaviour_mut().gossip.publish(topic, data) {
            // Nobody there to hear it, or said already: both normal.
            tracing::trace!(%error, "not gossiped");
        }
    }

    pub(super) fn send_reports(&mut self, interval: Duration) {
        for report in self.reports.due(interval, Instant::now()) {
            match report.encode() {
                Ok(data) => self.gossip(gossip::load_topic(), data),
                Err(error) => tracing::warn!(%error, "load report not gossiped"),
            }
        }
    }

    /// Says again what certificate this peer has now, when that is not the one that it started with: whoever was
    /// connected since saw another.
    pub(super) fn tell_renewal(&mut self) {
        if self.members.own().issued_at != self.issued_at {
            let chain = Chain::clone(&self.members.own_chain());
            self.publish(&MeshMessage::Certificate(chain));
        }
    }

    /// Takes back what this process said, and waits a bounded time for that to get out.
    pub(super) async fn say_farewell(mut self: Box<Self>, served: CancellationToken) {
        // Whoever asks, or waits, for something learns that the node has stopped.
        self.commands.close();
        while self.commands.try_recv().is_ok() {}
        self.look_ups = LookUps::default();
        self.dials = Dials::default();
        self.puts.clear();
        self.waiting_puts.clear();
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
}

//! Gossipsub: each message is judged before it is forwarded.

use crate::{
    clock, directory,
    event_loop::{EventLoop, SETTLE},
    gossip::{self, Judgement, Learnt},
    members::Heard,
};
use dunlin_protocol::{
    announcement::ReplicaState,
    certificate::Chain,
    id::PeerId,
    key::SignedKeyStatement,
    revocation::{Merged, SignedRevocation},
};
use libp2p::gossipsub::{Event, Message, MessageAcceptance, MessageId};
use std::{sync::Arc, time::Instant};

impl EventLoop {
    pub(crate) fn on_gossip(&mut self, event: Event) {
        match event {
            Event::Message { propagation_source, message_id, message } => {
                self.on_message(propagation_source, &message_id, &message);
            }
            Event::Subscribed { peer_id, topic } if topic == gossip::mesh_topic().hash() => self.on_listener(peer_id),
            Event::SlowPeer { peer_id, .. } => tracing::debug!(peer = %peer_id, "gossip to a slow peer was dropped"),
            Event::GossipsubNotSupported { peer_id } => tracing::debug!(peer = %peer_id, "peer without gossip"),
            _ => {}
        }
    }

    /// A peer asks on connecting what this one serves, and from now on hears of changes. What changed in between it has
    /// neither seen nor heard.
    fn on_listener(&mut self, peer: PeerId) {
        let Some(connections) = self.connections.get(&peer) else { return };
        let since = connections.iter().map(|connection| connection.since).min();
        if self.offered.zip(since).is_some_and(|(offered, since)| offered >= since) {
            self.due.announce_again.get_or_insert(Instant::now() + SETTLE);
            self.vouched = None;
        }
    }

    fn on_message(&mut self, source: PeerId, id: &MessageId, message: &Message) {
        self.on_heard(source, Instant::now());
        let directory = &self.shared.directory;
        let judgement = directory.read(|known| gossip::judge(&message.topic, source, &message.data, known));
        let Judgement { mut acceptance, learnt } = judgement;
        match learnt {
            Some(Learnt::Directory(event)) if self.is_about_self(&event) => acceptance = MessageAcceptance::Ignore,
            Some(Learnt::Directory(event)) => self.learn_from(source, *event),
            Some(Learnt::Revocation(revocation)) => acceptance = self.on_revocation(*revocation),
            Some(Learnt::Certificate(chain)) => acceptance = self.on_certificate(source, &chain),
            Some(Learnt::Key(signed)) => acceptance = self.on_key_statement(*signed),
            None => {}
        }
        // False means that the message was forgotten meanwhile, which is harmless.
        self.swarm.behaviour_mut().gossip.report_message_validation_result(id, &source, acceptance);
    }

    /// What comes back about this process is old, or another process's under the same id.
    fn is_about_self(&self, event: &directory::Event) -> bool {
        let directory::Event::Announcement(announcement) = event else { return false };
        if announcement.replica.peer != self.shared.peer_id {
            return false;
        }
        if announcement.version.epoch != self.shared.epoch && announcement.state != ReplicaState::Gone {
            tracing::error!("another process runs under this peer id; stop one, or give it its own state directory");
        }
        true
    }

    fn on_revocation(&self, revocation: SignedRevocation) -> MessageAcceptance {
        match self.members.revoke(revocation) {
            Ok(Merged::New(_)) => MessageAcceptance::Accept,
            Ok(Merged::Known | Merged::Full) => MessageAcceptance::Ignore,
            Err(error) => {
                tracing::info!(%error, "revocation refused");
                MessageAcceptance::Reject
            }
        }
    }

    fn on_key_statement(&self, signed: SignedKeyStatement) -> MessageAcceptance {
        match self.members.verify_key_statement(&signed, clock::unix_s()) {
            Ok(statement) => {
                // An error means that this process has no use for it.
                let _ = self.shared.key_statements.send(Arc::new((statement, signed)));
                MessageAcceptance::Accept
            }
            Err(error) => {
                tracing::info!(%error, "statement about a key refused");
                // Its signer may be known elsewhere.
                MessageAcceptance::Ignore
            }
        }
    }

    /// A certificate counts when it is later than the one that is known of its peer, see [`Members::hear`].
    ///
    /// [`Members::hear`]: crate::members::Members::hear
    fn on_certificate(&self, source: PeerId, chain: &Chain) -> MessageAcceptance {
        let Ok(membership) = chain.verify(clock::unix_s(), &self.shared.mesh) else {
            return MessageAcceptance::Reject;
        };
        let peer = membership.peer;
        match self.members.hear(membership, source == peer) {
            Heard::Useless => return MessageAcceptance::Ignore,
            Heard::New => self.tell_rights(peer),
            Heard::Known => {}
        }
        // Known here does not mean known there: others have not met this peer.
        MessageAcceptance::Accept
    }
}

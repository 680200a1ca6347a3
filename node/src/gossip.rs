//! Gossip: three topics, their settings, and the judgement of each message. Pure but for the settings' types.
//!
//! `load` carries load reports from agents straight to the proxies, which alone subscribe and never forward. `mesh`
//! carries announcements and revocations, signed inside, which everybody forwards once they proved true. `keys` carries
//! statements about keys, signed inside, from and to proxies.

use crate::directory::{self, Directory};
use dunlin_protocol::{
    announcement::{self, SignedAnnouncement},
    certificate::Chain,
    codec,
    id::{PeerId, Role, Roles},
    key::SignedKeyStatement,
    limits,
    load::LoadReport,
    revocation::SignedRevocation,
};
use libp2p::gossipsub::{
    self, ConfigBuilder, ConfigBuilderError, IdentTopic, MessageAcceptance, MessageId, TopicHash, ValidationMode,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Bytes of a message's hash that name it.
const MESSAGE_ID_BYTES: usize = 20;
/// Longest time that a message waits for a slow connection; reports that are older help nobody.
const PUBLISH_QUEUE: Duration = Duration::from_millis(300);
/// Messages that wait for one connection.
const CONNECTION_QUEUE: usize = 64;
/// How long a message is known as a duplicate.
const DUPLICATES: Duration = Duration::from_secs(5);
/// Peers that each message on `mesh` is forwarded to.
const MESH_PEERS: usize = 3;

/// Agents up to which every report may go out at the full rate.
const AGENTS_AT_FULL_RATE: usize = 40;
/// Shortest time between two reports of one agent.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time between two reports that differ, however large the mesh.
const REPORT_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// Load reports.
#[must_use]
pub fn load_topic() -> IdentTopic {
    IdentTopic::new("load")
}

/// Announcements and revocations.
#[must_use]
pub fn mesh_topic() -> IdentTopic {
    IdentTopic::new("mesh")
}

/// Statements about keys, tenants and prices.
#[must_use]
pub fn keys_topic() -> IdentTopic {
    IdentTopic::new("keys")
}

/// Shortest time between two reports where `agents` report to each proxy: 10 a second up to 40 agents, 2 from 200 on.
#[must_use]
pub fn report_interval(agents: usize) -> Duration {
    let factor = agents.max(AGENTS_AT_FULL_RATE) as f64 / AGENTS_AT_FULL_RATE as f64;
    REPORT_INTERVAL.mul_f64(factor).min(REPORT_INTERVAL_MAX)
}

/// What a process in these roles listens to.
#[must_use]
pub fn topics(roles: Roles) -> Vec<IdentTopic> {
    let of_proxies = roles.contains(Role::Proxy).then(|| [load_topic(), keys_topic()]);
    std::iter::once(mesh_topic()).chain(of_proxies.into_iter().flatten()).collect()
}

/// What travels on `mesh`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MeshMessage {
    /// A replica's announcement, signed by its peer.
    Announcement(SignedAnnouncement),
    /// A revocation, signed by an issuer.
    Revocation(SignedRevocation),
    /// A certificate that was renewed while its peer was connected: others saw the old one at admission.
    Certificate(Chain),
}

#[derive(Serialize, Deserialize)]
enum Wire {
    V1(MeshMessage),
}

impl MeshMessage {
    /// As gossiped.
    ///
    /// # Errors
    /// Over [`limits::ANNOUNCEMENT_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode(&Wire::V1(self.clone()), limits::ANNOUNCEMENT_BYTES)
    }

    /// From gossip; nothing in it is verified yet.
    ///
    /// # Errors
    /// Not a message of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        let Wire::V1(message) = codec::decode(bytes, limits::ANNOUNCEMENT_BYTES)?;
        Ok(message)
    }
}

/// The settings, each with its reason where the default would hurt.
///
/// # Errors
/// Never for these values; the builder checks them at run time.
pub fn settings() -> Result<gossipsub::Config, ConfigBuilderError> {
    ConfigBuilder::default()
        .protocol_id_prefix("/dunlin/gossip")
        // What needs a signature is signed inside, so that only the first copy costs a verification.
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        // With origin and sequence as the id, one member could shut out another's messages.
        .message_id_fn(|message| MessageId::new(&Sha256::digest(&message.data)[..MESSAGE_ID_BYTES]))
        .flood_publish(true)
        .mesh_n(MESH_PEERS)
        .mesh_n_low(MESH_PEERS)
        .mesh_n_high(MESH_PEERS * 2)
        .mesh_outbound_min(1)
        // No IHAVE rumours: a lost report is harmless, announcements are refreshed.
        .gossip_lazy(0)
        .gossip_factor(0.0)
        // A process that subscribes again (see `EventLoop::subscribe_again`) is back in the mesh of its peers soon.
        .unsubscribe_backoff(Duration::from_secs(1))
        .heartbeat_initial_delay(Duration::from_millis(200))
        .publish_queue_duration(PUBLISH_QUEUE)
        .forward_queue_duration(PUBLISH_QUEUE)
        .connection_handler_queue_len(CONNECTION_QUEUE)
        .duplicate_cache_time(DUPLICATES)
        .max_transmit_size(limits::ANNOUNCEMENT_BYTES + 1024)
        .build()
}

/// What is to be done with a message.
#[derive(Debug)]
pub struct Judgement {
    /// Whether gossipsub forwards it.
    pub acceptance: MessageAcceptance,
    /// What was learnt.
    pub learnt: Option<Learnt>,
}

/// What a message said.
#[derive(Debug)]
pub enum Learnt {
    /// Something for the directory.
    Directory(Box<directory::Event>),
    /// A revocation, not verified: the table of members does that.
    Revocation(Box<SignedRevocation>),
    /// A renewed certificate, not verified: that takes the mesh's key and the time.
    Certificate(Box<Chain>),
    /// A statement about a key, not verified: that takes the table of members.
    Key(Box<SignedKeyStatement>),
}

impl Judgement {
    fn without(acceptance: MessageAcceptance) -> Self {
        Self { acceptance, learnt: None }
    }
}

/// Judges a message that `source` handed over. `known` is the directory as it is.
#[must_use]
pub fn judge(topic: &TopicHash, source: PeerId, data: &[u8], known: &Directory) -> Judgement {
    if *topic == load_topic().hash() {
        return judge_load(source, data);
    }
    if *topic == keys_topic().hash() {
        return match SignedKeyStatement::decode(data) {
            Ok(signed) => {
                Judgement { acceptance: MessageAcceptance::Ignore, learnt: Some(Learnt::Key(Box::new(signed))) }
            }
            Err(_) => Judgement::without(MessageAcceptance::Reject),
        };
    }
    match MeshMessage::decode(data) {
        Ok(MeshMessage::Announcement(announcement)) => judge_announcement(&announcement, known),
        Ok(MeshMessage::Revocation(revocation)) => Judgement {
            // Accepted only after the table of members verified it.
            acceptance: MessageAcceptance::Ignore,
            learnt: Some(Learnt::Revocation(Box::new(revocation))),
        },
        Ok(MeshMessage::Certificate(chain)) => {
            Judgement { acceptance: MessageAcceptance::Ignore, learnt: Some(Learnt::Certificate(Box::new(chain))) }
        }
        Err(_) => Judgement::without(MessageAcceptance::Reject),
    }
}

fn judge_load(source: PeerId, data: &[u8]) -> Judgement {
    match LoadReport::decode(data) {
        Ok(report) if report.replica.peer == source => Judgement {
            // Consumed here: whoever else wants it gets it from its agent.
            acceptance: MessageAcceptance::Ignore,
            learnt: Some(Learnt::Directory(Box::new(directory::Event::Load { from: source, report }))),
        },
        Ok(_) => Judgement::without(MessageAcceptance::Ignore),
        Err(_) => Judgement::without(MessageAcceptance::Reject),
    }
}

fn judge_announcement(signed: &SignedAnnouncement, known: &Directory) -> Judgement {
    // An old one is dropped before its signature costs anything.
    let Ok(claimed) = signed.peek() else { return Judgement::without(MessageAcceptance::Reject) };
    let newest = known.announced_version(&claimed.replica);
    if newest.is_some_and(|version| version >= claimed.version)
        || known.is_outdated(&claimed.replica.peer, claimed.version)
    {
        return Judgement::without(MessageAcceptance::Ignore);
    }
    match announcement::verify(signed) {
        Ok(verified) => Judgement {
            acceptance: MessageAcceptance::Accept,
            learnt: Some(Learnt::Directory(Box::new(directory::Event::Announcement(verified)))),
        },
        Err(_) => Judgement::without(MessageAcceptance::Reject),
    }
}

#[cfg(test)]
mod tests;

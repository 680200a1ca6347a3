//! What the directory is told.

use super::Rights;
use dunlin_protocol::{announcement::Announcement, id::PeerId, load::LoadReport, record::TopicRecord};
use std::time::Duration;

/// Something that was learnt. Everything signed has been verified before it becomes an event.
#[derive(Debug, Clone)]
pub enum Event {
    /// A topic record from the DHT, verified.
    Record(TopicRecord),
    /// An announcement, verified.
    Announcement(Announcement),
    /// A load report, by gossip or on an answer of the hop. It counts only when `from` is the peer that it is about.
    Load {
        /// The peer that handed the report to this process.
        from: PeerId,
        /// The report.
        report: LoadReport,
    },
    /// The certificate of a peer was verified at admission or renewal.
    Member {
        /// The peer.
        peer: PeerId,
        /// What its certificate lets it serve.
        rights: Rights,
    },
    /// The peer's membership was revoked: whatever it said does not count, until a later certificate.
    Revoked {
        /// The peer.
        peer: PeerId,
    },
    /// The peer has a connection. Repeated when a better or worse kind of connection takes over.
    Connected {
        /// The peer.
        peer: PeerId,
        /// Whether every connection to it goes through a relay.
        relayed: bool,
    },
    /// The last connection to the peer closed.
    Disconnected {
        /// The peer.
        peer: PeerId,
    },
    /// The peer is connected and has said nothing for too long.
    Suspect {
        /// The peer.
        peer: PeerId,
    },
    /// A suspect spoke again.
    Heard {
        /// The peer.
        peer: PeerId,
    },
    /// The peer could not be connected to.
    Unreachable {
        /// The peer.
        peer: PeerId,
    },
    /// A round trip to the peer was measured.
    RoundTrip {
        /// The peer.
        peer: PeerId,
        /// There and back.
        rtt: Duration,
    },
}

impl Event {
    /// The peer that signed what was learnt, where it is a peer's own word.
    pub(crate) fn speaker(&self) -> Option<PeerId> {
        match self {
            Self::Record(record) => Some(record.replica.peer),
            Self::Announcement(announcement) => Some(announcement.replica.peer),
            _ => None,
        }
    }
}

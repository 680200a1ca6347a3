//! What the directory knows of a peer apart from its replicas: rights, addresses, and how it is reached now.

use super::EXPIRY;
use dunlin_protocol::{
    id::{ModelId, PeerId, Role, Roles, Version},
    pattern::Models,
};
use libp2p::Multiaddr;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Two epochs of one peer id count as alive at once when the older one was heard this recently.
const EPOCH_CONFLICT: Duration = Duration::from_secs(10);

/// How a peer is reached now, as this process sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reachability {
    /// Never connected to.
    #[default]
    Unknown,
    /// Connected and heard of lately.
    Connected {
        /// Whether every connection goes through a relay.
        relayed: bool,
        /// Last measured round trip.
        rtt: Option<Duration>,
    },
    /// Connected, but silent for too long: nothing new goes there, streams go on.
    Suspect,
    /// The last connection closed.
    Disconnected,
}

impl Reachability {
    /// Whether new requests may go there now.
    #[must_use]
    pub fn is_connected(self) -> bool {
        matches!(self, Self::Connected { .. })
    }
}

/// What a peer's certificate lets it do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// What it may register as. It serves only as `agent`.
    pub roles: Roles,
    /// Which models it may serve.
    pub models: Models,
    /// When the certificate was issued, unix seconds by the issuer's clock: of two certificates the later counts.
    pub issued_at: u64,
}

/// One peer as the directory sees it now.
#[derive(Debug, Clone, Copy)]
pub struct PeerView<'a> {
    /// Its id.
    pub peer: PeerId,
    /// How it is reached now.
    pub reachability: Reachability,
    /// Where its newest record says that it listens.
    pub addresses: &'a [Multiaddr],
    /// Its rights, once a certificate was seen.
    pub rights: Option<&'a Rights>,
    /// Newest epoch heard from it.
    pub epoch: Option<u64>,
    /// When it last spoke with an epoch older than its newest, if it did.
    older_epoch_heard: Option<Instant>,
}

impl PeerView<'_> {
    /// Whether two processes seem to run under this peer id: an error that a human must correct.
    #[must_use]
    pub fn epochs_conflict(&self, now: Instant) -> bool {
        self.older_epoch_heard.is_some_and(|heard| now.saturating_duration_since(heard) < EPOCH_CONFLICT)
    }
}

#[derive(Debug, Default)]
pub(super) struct PeerEntry {
    pub(super) reachability: Reachability,
    pub(super) indices: BTreeSet<u16>,
    pub(super) last_report: Option<Instant>,
    relayed: bool,
    rights: Option<Rights>,
    addresses: Option<Addresses>,
    epoch: Option<u64>,
    older_epoch_heard: Option<Instant>,
}

#[derive(Debug)]
struct Addresses {
    version: Version,
    list: Vec<Multiaddr>,
    expires: Instant,
}

impl PeerEntry {
    pub(super) fn view(&self, peer: PeerId) -> PeerView<'_> {
        PeerView {
            peer,
            reachability: self.reachability,
            addresses: self.addresses(),
            rights: self.rights.as_ref(),
            epoch: self.epoch,
            older_epoch_heard: self.older_epoch_heard,
        }
    }

    pub(super) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    pub(super) fn addresses(&self) -> &[Multiaddr] {
        self.addresses.as_ref().map_or(&[], |addresses| &addresses.list)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.rights.is_some()
    }

    pub(super) fn may_serve(&self, model: &ModelId) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.roles.contains(Role::Agent) && rights.models.allows(model))
    }

    /// Whether its certificate has `role`, so that a record saying so counts.
    pub(super) fn may_play(&self, role: Role) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.roles.contains(role))
    }

    pub(super) fn take_rights(&mut self, rights: Rights) -> bool {
        if self.rights.as_ref().is_some_and(|known| known.issued_at >= rights.issued_at) {
            return false;
        }
        self.rights = Some(rights);
        true
    }

    /// Takes every right away; a certificate issued later gives new ones.
    pub(super) fn revoke(&mut self) -> bool {
        let issued_at = self.rights.as_ref().map_or(0, |rights| rights.issued_at);
        let none = Rights { roles: Roles::NONE, models: Models::Only(Vec::new()), issued_at };
        self.rights.replace(none).is_none_or(|rights| rights.roles != Roles::NONE)
    }

    /// The newest record's addresses win; between records of one version, which differ where a long model name left
    /// less room, the longer list.
    pub(super) fn take_addresses(&mut self, version: Version, list: &[Multiaddr], now: Instant) -> bool {
        if let Some(known) = &self.addresses
            && (known.version, known.list.len(), known.list.as_slice()) >= (version, list.len(), list)
        {
            return false;
        }
        self.addresses = Some(Addresses { version, list: list.to_vec(), expires: now + EXPIRY });
        true
    }

    /// Notes that the peer's process of `epoch` said something. Returns whether there is an earlier process whose words
    /// end with that; `None` when there is a later one.
    pub(super) fn raise_epoch(&mut self, epoch: u64) -> Option<bool> {
        match self.epoch {
            Some(newest) if epoch < newest => None,
            before => {
                self.epoch = Some(epoch);
                Some(before.is_some_and(|before| before < epoch))
            }
        }
    }

    /// Notes a load report, which comes from a living process; `outdated`: not from the newest one.
    pub(super) fn spoke(&mut self, outdated: bool, now: Instant) -> bool {
        self.last_report = Some(now);
        if outdated {
            self.older_epoch_heard = Some(now);
        }
        true
    }

    pub(super) fn connected(&mut self, relayed: bool) -> bool {
        self.relayed = relayed;
        let rtt = match self.reachability {
            Reachability::Connected { rtt, relayed: before } if before == relayed => rtt,
            _ => None,
        };
        self.reach(Reachability::Connected { relayed, rtt })
    }

    pub(super) fn disconnected(&mut self) -> bool {
        match self.reachability {
            Reachability::Unknown => false,
            _ => self.reach(Reachability::Disconnected),
        }
    }

    pub(super) fn suspect(&mut self) -> bool {
        match self.reachability {
            Reachability::Connected { .. } => self.reach(Reachability::Suspect),
            _ => false,
        }
    }

    pub(super) fn heard(&mut self) -> bool {
        match self.reachability {
            Reachability::Suspect => self.reach(Reachability::Connected { relayed: self.relayed, rtt: None }),
            _ => false,
        }
    }

    pub(super) fn round_trip(&mut self, rtt: Duration) -> bool {
        match self.reachability {
            Reachability::Connected { relayed, .. } => self.reach(Reachability::Connected { relayed, rtt: Some(rtt) }),
            _ => false,
        }
    }

    fn reach(&mut self, reachability: Reachability) -> bool {
        let changed = self.reachability != reachability;
        self.reachability = reachability;
        changed
    }

    /// Whether nothing would be lost with the entry. Drops addresses past their time.
    pub(super) fn forgettable(&mut self, now: Instant) -> bool {
        self.addresses.take_if(|addresses| addresses.expires <= now);
        let reached = matches!(self.reachability, Reachability::Connected { .. } | Reachability::Suspect);
        !reached && self.indices.is_empty() && self.addresses.is_none()
    }
}

//! What `dunlin peers` shows: the directory, the table of members and this process in one list.

use crate::{
    directory::{PeerView, Reachability, Replica},
    handle::Handle,
};
use dunlin_protocol::{
    announcement::ReplicaState,
    certificate::Membership,
    id::{ModelId, Name, PeerId, Role, RuntimeName},
    load::{EngineLoad, Measured},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// One peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its id, base58.
    pub peer: String,
    /// Its display name, from its certificate.
    pub name: Option<Name>,
    /// Roles that its certificate allows; empty while the certificate was not seen.
    pub roles: Vec<Role>,
    /// `self`, `connected`, `relayed`, `suspect`, `disconnected`, `unknown`, or `revoked`.
    pub reachability: String,
    /// Last measured round trip, microseconds.
    pub rtt_us: Option<u64>,
    /// Where its newest record says that it listens.
    pub addresses: Vec<String>,
    /// End of its certificate, unix seconds.
    pub not_after: Option<u64>,
    /// Whether two processes seem to run under this id: one of them must be stopped.
    pub duplicate: bool,
    /// What it serves; nothing once its membership was revoked.
    pub replicas: Vec<ReplicaInfo>,
}

/// One replica of a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// Which of its peer's engines.
    pub index: u16,
    /// Where it stands.
    pub state: ReplicaState,
    /// The engine's runtime.
    pub runtime: Option<RuntimeName>,
    /// Requests that the engine works on at once; 0 while only its records are known.
    pub slots: u16,
    /// Requests that the engine has now, as reported last.
    pub in_flight: Option<u16>,
    /// Age of that report, milliseconds.
    pub report_age_ms: Option<u64>,
    /// Requests that wait in the agent's queue, as reported last.
    pub queued: Option<u16>,
    /// What the agent measured, as reported last.
    pub measured: Option<Measured>,
    /// What the engine's own metrics said, as reported last.
    pub engine: Option<EngineLoad>,
    /// Models served.
    pub models: Vec<ModelId>,
}

impl PeerInfo {
    pub(crate) fn all(handle: &Handle) -> Vec<Self> {
        let now = Instant::now();
        let own = handle.peer_id();
        handle.directory().read(|directory| {
            let mut replicas: BTreeMap<PeerId, Vec<ReplicaInfo>> = BTreeMap::new();
            for replica in directory.all_replicas() {
                replicas.entry(replica.id.peer).or_default().push(ReplicaInfo::of(replica, now));
            }
            let mut peers: Vec<Self> = directory
                .peers()
                .map(|view| {
                    let membership = handle.members().get(&view.peer);
                    let replicas = replicas.remove(&view.peer).unwrap_or_default();
                    let mut info = Self::of(&view, view.peer == own, membership.clone(), replicas, now);
                    if view.peer != own && membership.is_some_and(|of| handle.members().is_revoked(&of)) {
                        info.revoke();
                    }
                    info
                })
                .collect();
            peers.sort_by(|a, b| a.peer.cmp(&b.peer));
            peers
        })
    }

    fn of(
        view: &PeerView<'_>,
        own: bool,
        membership: Option<Arc<Membership>>,
        mut replicas: Vec<ReplicaInfo>,
        now: Instant,
    ) -> Self {
        replicas.sort_by_key(|replica| replica.index);
        let (reachability, rtt) = match view.reachability {
            _ if own => ("self", None),
            Reachability::Connected { relayed: false, rtt } => ("connected", rtt),
            Reachability::Connected { relayed: true, rtt } => ("relayed", rtt),
            Reachability::Suspect => ("suspect", None),
            Reachability::Disconnected => ("disconnected", None),
            Reachability::Unknown => ("unknown", None),
        };
        Self {
            peer: view.peer.to_string(),
            name: membership.as_ref().and_then(|membership| membership.name.clone()),
            roles: membership.as_ref().map(|membership| membership.roles.iter().collect()).unwrap_or_default(),
            reachability: reachability.to_owned(),
            rtt_us: rtt.map(|rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
            addresses: view.addresses.iter().map(ToString::to_string).collect(),
            not_after: membership.map(|membership| membership.not_after),
            duplicate: view.epochs_conflict(now),
            replicas,
        }
    }

    /// Nobody asks it for anything, and what it said of its replicas counts no more.
    fn revoke(&mut self) {
        self.reachability = "revoked".to_owned();
        self.rtt_us = None;
        self.replicas.clear();
    }
}

impl ReplicaInfo {
    fn of(replica: &Replica, now: Instant) -> Self {
        let load = replica.load.as_ref();
        let age = |received: Instant| now.saturating_duration_since(received).as_millis();
        Self {
            index: replica.id.index,
            state: replica.state,
            runtime: replica.runtime.clone(),
            slots: replica.slots,
            in_flight: load.map(|(report, _)| report.in_flight),
            report_age_ms: load.map(|(_, received)| u64::try_from(age(*received)).unwrap_or(u64::MAX)),
            queued: load.map(|(report, _)| report.queued),
            measured: load.map(|(report, _)| report.measured),
            engine: load.and_then(|(report, _)| report.engine),
            models: replica.models.iter().map(|model| model.id.clone()).collect(),
        }
    }
}

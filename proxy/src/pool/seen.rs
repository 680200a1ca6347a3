//! What the directory says of one model's replicas, taken out so that nothing is decided under its lock.

use super::{Unserved, lives};
use crate::route::{Candidate, Load, Loads, Own, Reach};
use dunlin_node::directory::{Directory, Reachability, Replica};
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ModelId, ReplicaId},
};

/// The replicas of a model.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Those that serve.
    pub(super) ready: Vec<Candidate>,
    /// One of them that is connected.
    pub(super) connected: Option<ReplicaId>,
    starting: bool,
    known: bool,
}

impl Seen {
    pub(super) fn of(directory: &Directory, model: &ModelId) -> Self {
        let mut seen = Self { ready: Vec::new(), connected: None, starting: false, known: false };
        for replica in directory.replicas(model) {
            seen.known = true;
            if lives::serves(replica) {
                seen.connected = Some(replica.id);
            }
            match replica.state {
                ReplicaState::Ready => seen.ready.push(candidate(replica, model)),
                // What fails now may be well again, or be started again, within a request's patience.
                ReplicaState::Starting | ReplicaState::Unhealthy => seen.starting = true,
                ReplicaState::Draining | ReplicaState::Gone => {}
            }
        }
        seen.prefer_loaded(directory, model);
        seen
    }

    /// Of an adapter that some replicas have loaded, the others, which would have to load it, are left out.
    fn prefer_loaded(&mut self, directory: &Directory, model: &ModelId) {
        let loaded = |id: &ReplicaId| {
            let served = directory.replica(id).and_then(|replica| replica.models.iter().find(|one| one.id == *model));
            served.is_none_or(|served| served.parent.is_none() || served.root.is_some())
        };
        let usable = |one: &Candidate| !matches!(one.reach, Reach::Gone | Reach::Suspect) && loaded(&one.replica);
        if self.ready.iter().any(usable) {
            self.ready.retain(|candidate| loaded(&candidate.replica));
        }
    }

    /// Whether there is nobody to wait for.
    pub(super) fn nobody(&self) -> bool {
        self.ready.is_empty() && !self.starting
    }

    /// Why a request for the model could not be served.
    pub(super) fn unserved(&self) -> Unserved {
        match self {
            Self { known: false, .. } => Unserved::Unknown,
            Self { ready, .. } if !ready.is_empty() => Unserved::StillFull { wait: None },
            Self { starting: true, .. } => Unserved::StillStarting,
            _ => Unserved::NoReplica,
        }
    }
}

fn candidate(replica: &Replica, model: &ModelId) -> Candidate {
    let (reach, rtt) = match replica.reachability {
        Reachability::Connected { relayed: false, rtt } => (Reach::Direct, rtt),
        Reachability::Connected { relayed: true, rtt } => (Reach::Relayed, rtt),
        Reachability::Unknown => (Reach::Unknown, None),
        Reachability::Suspect => (Reach::Suspect, None),
        Reachability::Disconnected => (Reach::Gone, None),
    };
    let load = replica.load.as_ref().map(|(report, received)| Load::new(report, *received));
    let loads = loads(replica, model);
    Candidate { replica: replica.id, reach, rtt, slots: replica.slots, loads, load, own: Own::default() }
}

fn loads(replica: &Replica, model: &ModelId) -> Loads {
    if replica.models.len() < 2 {
        return Loads::Never;
    }
    match replica.models.iter().find(|served| served.id == *model) {
        Some(served) if served.parent.is_some() => Loads::Adapter,
        // Two names of what is loaded are one model.
        Some(served)
            if replica.models.iter().any(|other| {
                other.id != *model && other.parent.is_none() && (other.root.is_none() || other.root != served.root)
            }) =>
        {
            Loads::Model
        }
        _ => Loads::Never,
    }
}

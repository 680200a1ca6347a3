//! Which models were served a moment ago, so that a request can wait for a replica that was just lost and may return.

use dunlin_node::directory::{Directory, Replica};
use dunlin_protocol::{
    announcement::ReplicaState,
    id::{ModelId, ReplicaId},
};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long a lost replica is expected back: as long as a process takes to be started again and to connect.
const RECENT: Duration = Duration::from_secs(30);
/// Models that are remembered.
const MODELS: usize = 16 * 1024;

/// The last signs of life of each model.
#[derive(Debug, Default)]
pub(super) struct Lives(HashMap<ModelId, Life>);

#[derive(Debug)]
struct Life {
    /// The replica that was ready and connected last.
    replica: ReplicaId,
    reachable: Instant,
    /// When a replica last answered, or was found gone: its refusals may be those of a process that is starting, and
    /// not of one that will never do.
    changing: Option<Instant>,
}

impl Lives {
    /// Notes what `directory` shows of all models, and forgets what is long past.
    pub(super) fn sweep(&mut self, directory: &Directory, now: Instant) {
        for replica in directory.all_replicas().filter(|replica| serves(replica)) {
            replica.models.iter().for_each(|model| self.reachable(&model.id, replica.id, now));
        }
        self.0.retain(|_, life| is_recent(life.reachable, now));
    }

    /// `replica` serves `model` and is connected.
    pub(super) fn reachable(&mut self, model: &ModelId, replica: ReplicaId, now: Instant) {
        if let Some(life) = self.0.get_mut(model) {
            (life.replica, life.reachable) = (replica, now);
        } else if self.0.len() < MODELS {
            self.0.insert(model.clone(), Life { replica, reachable: now, changing: None });
        }
    }

    /// A replica of `model` answered, or was found gone.
    pub(super) fn changing(&mut self, model: &ModelId, now: Instant) {
        if let Some(life) = self.0.get_mut(model) {
            life.changing = Some(now);
        }
    }

    /// Whether a replica of `model` was connected a moment ago.
    pub(super) fn was_reachable(&self, model: &ModelId, now: Instant) -> bool {
        self.0.get(model).is_some_and(|life| is_recent(life.reachable, now))
    }

    /// Whether what a replica of `model` refuses now it may do soon.
    pub(super) fn is_changing(&self, model: &ModelId, now: Instant) -> bool {
        self.0.get(model).and_then(|life| life.changing).is_some_and(|at| is_recent(at, now))
    }

    /// Whether the replica that served `model` a moment ago has gone without a farewell.
    pub(super) fn may_return(&self, directory: &Directory, model: &ModelId, now: Instant) -> bool {
        self.0.get(model).is_some_and(|life| is_recent(life.reachable, now) && !said_farewell(directory, &life.replica))
    }
}

/// Of a new process nothing is known at first; one that left, drains, or serves other models only has said so.
fn said_farewell(directory: &Directory, replica: &ReplicaId) -> bool {
    match directory.replica(replica) {
        Some(shown) => shown.state != ReplicaState::Starting,
        None => directory.announced_version(replica).is_some(),
    }
}

/// Whether requests can be sent to it.
pub(super) fn serves(replica: &Replica) -> bool {
    replica.state == ReplicaState::Ready && replica.reachability.is_connected()
}

/// Whether what happened `at` that time counts still.
pub(super) fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_protocol::id::PeerId;

    #[test]
    fn a_loss_is_recent_for_half_a_minute() {
        let (now, model) = (Instant::now(), ModelId::new("m").unwrap());
        let directory = Directory::default();
        let mut lives = Lives::default();
        assert!(!lives.may_return(&directory, &model, now) && !lives.was_reachable(&model, now));
        lives.reachable(&model, ReplicaId { peer: PeerId::random(), index: 0 }, now);
        assert!(lives.may_return(&directory, &model, now) && lives.was_reachable(&model, now));
        assert!(!lives.is_changing(&model, now));
        lives.changing(&model, now);
        assert!(lives.is_changing(&model, now + RECENT / 2));
        assert!(!lives.is_changing(&model, now + RECENT) && !lives.may_return(&directory, &model, now + RECENT));
        lives.sweep(&directory, now + RECENT);
        assert!(lives.0.is_empty());
    }
}

//! All replicas of an agent, by index.

use crate::replica::Replica;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// Grows while engines are found, and never shrinks: an index means one replica for as long as the agent runs. Cheap to
/// clone; all clones see the same list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replicas(Arc<ArcSwap<Vec<Arc<Replica>>>>);

impl Replicas {
    /// The list as it is now.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Replica>>> {
        self.0.load_full()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arc<Replica>> {
        self.0.load().get(index).cloned()
    }

    /// Appends a replica, whose index must be the list's length. One task alone does so.
    pub(crate) fn push(&self, replica: Arc<Replica>) {
        self.0.rcu(|list| {
            let mut list = Vec::clone(list);
            list.push(Arc::clone(&replica));
            list
        });
    }
}

//! What the mesh says of a replica. A pod that runs is not a replica that serves: it must be registered.

use crate::world::{OwnPod, Stage};

/// What is seen of one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sight {
    /// It is registered under its model, and serves.
    pub serving: bool,
    /// Its name in the mesh.
    pub peer: Option<String>,
    /// How far loading has come, per cent.
    pub progress: Option<i32>,
}

/// Who knows the replicas of the mesh.
pub trait Mesh: Send + Sync + 'static {
    /// What is seen of the replica in this pod. Quick: it reads a table.
    fn sight(&self, pod: &OwnPod) -> Sight;

    /// Waits until something may be seen differently.
    fn changed(&self) -> futures::future::BoxFuture<'_, ()>;

    /// Ends the membership of a peer whose pod has gone.
    fn revoke(&self, peer: &str);
}

/// Without a mesh to ask: the agent's `/ready`, as the kubelet tells it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Readiness;

impl Mesh for Readiness {
    fn sight(&self, pod: &OwnPod) -> Sight {
        Sight { serving: pod.stage == Stage::Up, ..Sight::default() }
    }

    fn changed(&self) -> futures::future::BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn revoke(&self, _peer: &str) {}
}

//! What the mesh says of a replica. A pod that runs is not a replica that serves: it must be registered.

use crate::{
    roster::Recorded,
    world::{OwnPod, Stage},
};
use futures::{FutureExt, future::BoxFuture};

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
    /// What is seen of the replica in this pod, whose peer is `known` from the record. Quick: it reads a table.
    fn sight(&self, pod: &OwnPod, known: Option<&str>) -> Sight;

    /// Whether this orchestrator leads from now on. Whoever does not stays out of the mesh.
    fn leads(&self, leads: bool) {
        let _ = leads;
    }

    /// Waits until something may be seen differently.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// What is stored of a Playground's replicas, by namespace and name; `None` when the Playground has gone.
    fn recorded(&self, namespace: &str, playground: &str, replicas: Option<Vec<Recorded>>) {
        let _ = (namespace, playground, replicas);
    }

    /// Ends the membership of a peer whose pod has gone. Whether it has ended: if not, it is tried on and on.
    fn revoke<'a>(&'a self, peer: &'a str) -> BoxFuture<'a, bool>;
}

/// Without a mesh to ask: the agent's `/ready`, as the kubelet tells it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Readiness;

impl Mesh for Readiness {
    fn sight(&self, pod: &OwnPod, _known: Option<&str>) -> Sight {
        Sight { serving: pod.stage == Stage::Up, ..Sight::default() }
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        std::future::pending().boxed()
    }

    fn revoke<'a>(&'a self, _peer: &'a str) -> BoxFuture<'a, bool> {
        std::future::ready(true).boxed()
    }
}

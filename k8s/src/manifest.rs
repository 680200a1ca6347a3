//! The Kubernetes objects of a Playground: pods, one ConfigMap for each revision, a NetworkPolicy, a
//! PodDisruptionBudget, and the ControllerRevisions. Pure.

mod pod;
mod sole;
mod weights;

pub use pod::pod;
pub(crate) use pod::{implied, resources};
pub use sole::{config_map, controller_revision, disruption_budget, network_policy};

use crate::{engine, names, resources::Playground, revision::Revision, settings::Settings};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

/// Port of the mesh, TCP and UDP.
pub const MESH_PORT: u16 = 4480;
/// Port that answers `/ready`, and nothing else.
pub const READY_PORT: u16 = 8481;
/// User and group of agent and loader.
const USER: i64 = 65_532;

/// Why an object can't be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine can't be run so.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The replica names a flavor that its revision lacks.
    #[error("the flavor {0:?} is not one of the Model's any more: choose another, or run a rollout restart")]
    Flavor(String),
    /// What was made is no such object: a fault of this program.
    #[error("the orchestrator made an object that is none: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The resolved runtime can't be written as TOML: a fault of this program.
    #[error("the resolved runtime can't be written: {0}")]
    Toml(#[from] toml::ser::Error),
}

/// Whose objects they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Owner {
    /// Namespace of the Playground.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Owner {
    /// Of this Playground.
    #[must_use]
    pub fn of(playground: &Playground) -> Self {
        let metadata = &playground.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// Whether this list of owners has the Playground as the controller.
    #[must_use]
    pub fn controls(&self, owners: Option<&Vec<OwnerReference>>) -> bool {
        owners.is_some_and(|owners| owners.iter().any(|owner| owner.controller == Some(true) && owner.uid == self.uid))
    }

    fn reference(&self) -> Value {
        json!([{
            "apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": true,
        }])
    }

    fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name, "namespace": self.namespace, "ownerReferences": self.reference(),
            "labels": { names::MANAGED_BY: names::MANAGER, names::PLAYGROUND: self.name },
        })
    }
}

/// All that a pod is made from.
#[derive(Debug, Clone, Copy)]
pub struct Making<'a> {
    /// Whose it is.
    pub owner: &'a Owner,
    /// What it is made from.
    pub revision: &'a Revision,
    /// What is the same for all.
    pub settings: &'a Settings,
}

impl Making<'_> {
    fn flavor(&self, name: &str) -> Result<(usize, &crate::resources::Flavor), Error> {
        let flavors = self.revision.snapshot.flavors().map_err(Error::Flavor)?;
        let found = flavors.into_iter().enumerate().find(|(_, flavor)| flavor.name == name);
        found.ok_or_else(|| Error::Flavor(name.to_owned()))
    }

    fn engine(&self, flavor: &crate::resources::Flavor) -> Result<engine::Engine, Error> {
        let snapshot = &self.revision.snapshot;
        Ok(engine::resolve(
            &snapshot.runtime_name,
            &snapshot.runtime,
            &snapshot.playground,
            flavor,
            &snapshot.model.source,
            &snapshot.model.served_name,
        )?)
    }

    /// Seconds that the last requests of a replica may take.
    fn drain_seconds(&self) -> i64 {
        self.revision.snapshot.runtime.drain_seconds.unwrap_or(300)
    }
}

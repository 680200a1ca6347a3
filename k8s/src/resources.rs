//! The custom resources of group `dunlin.dev`: `Model`, `BackendRuntime`, `Playground`.
//!
//! Every list and text is bounded: an API server adds up what the rules (CEL) of a resource may cost at worst, and refuses
//! a definition without bounds. Lists of objects are merged by a key, so that several managers can each own entries.
//! What does not work yet stands in the schema, and is refused with a message that says so.

mod backend_runtime;
mod crds;
mod model;
mod parts;
mod playground;
mod status;

pub use backend_runtime::{BackendRuntime, BackendRuntimeSpec, RecommendedConfig, RoleArgs, Security};
pub use crds::{crds, to_yaml};
pub use model::{Flavor, Model, ModelSpec, ModelStatus, Repository, Source};
pub use parts::{Device, EnvVar, Parallel, Resources, Toleration};
pub use playground::{ModelClaim, Playground, PlaygroundSpec, RuntimeChoice, Strategy};
pub use status::{Condition, Phase, PlaygroundStatus, ReplicaState};

/// API group of every custom resource.
pub const GROUP: &str = "dunlin.dev";
/// The only version so far.
pub const VERSION: &str = "v1alpha1";

/// Flavors of one model, and of one playground.
pub const FLAVORS: usize = 8;
/// Most replicas of one playground: with surge and those that are still draining, [`REPLICA_STATES`] hold them all.
pub const REPLICAS: i32 = 160;
/// Entries of `status.replicaStates`.
pub const REPLICA_STATES: usize = 200;
/// Longest name of a playground: a pod's name adds `-<ordinal>-<attempt>` and has at most 63 characters.
pub const PLAYGROUND_NAME: usize = 40;
/// Longest text for people in a status.
pub const MESSAGE: usize = 1024;

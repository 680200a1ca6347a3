//! Beside an engine: attach to it or launch it, probe it, meter it, and serve it to the mesh.
//!
//! Reading order: [`agent`] starts everything; [`replica`] is what all tasks of one engine share; `serve` takes requests
//! from the mesh hop through [`admit`] to the [`engine`]; [`metrics`] and [`counters`] say how busy it is, `prometheus` to
//! scrapers; [`supervise`] and [`output`] are for engines that the agent runs itself; `scout` finds those that come up
//! later. In a pod the engine has a container of its own: [`shim`] is its first process, [`pod`] what the two say.

pub mod admit;
pub mod agent;
pub mod config;
pub mod counters;
pub mod demo;
pub mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod metrics;
pub mod outcomes;
pub mod output;
pub mod pod;
mod prometheus;
mod readiness;
pub mod replica;
mod replicas;
mod scout;
mod serve;
pub mod shim;
mod small_http;
pub mod supervise;
#[cfg(test)]
mod test_data;

pub use agent::{Agent, Error};
pub use config::{AdapterConfig, Config, ContainerConfig, ContainerTool, EngineConfig, Gpus, Patience, Source};
pub use engine::discover::{Found, discover, usual_ports};
pub use replica::status::{EngineStatus, Status};
pub use serve::without_engines;

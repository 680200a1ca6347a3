//! A simulated mesh around the real routing code: proxies, agents, engines and a network that takes its time.
//!
//! Discrete events on a clock of microseconds; no I/O, no sleeping, and all chance from a seed, so that a run gives the
//! same numbers every time. What decides is the code that ships: `dunlin_proxy::balance` in each proxy, and in each agent
//! the admission, the measuring and the pacing of reports of `dunlin_agent`. Only engines, network and clients are models.

mod agent;
mod cache;
mod engine;
mod events;
mod policy;
pub mod proxy;
mod random;
pub mod run;
pub mod scenario;
pub mod summary;
mod workload;

/// Microseconds since the start.
pub type Micros = u64;
/// One second.
pub const SECOND: Micros = 1_000_000;

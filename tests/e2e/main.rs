//! End to end: the executable as a user runs it, with real engines, real clients and broken networks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
// Tests block: they have no runtime.
#![allow(clippy::disallowed_methods)]

#[cfg(target_os = "linux")]
#[path = "../chaos/chaos.rs"]
mod chaos;
mod chat;
mod cli;
mod clocks;
mod container;
mod continuation;
mod crowd;
mod delegation;
mod discovery;
#[cfg(target_os = "linux")]
mod disk;
mod failover;
mod fetch;
mod harness;
mod keys;
mod lies;
mod lifecycle;
mod limits;
mod load;
mod mesh;
mod metrics;
#[cfg(target_os = "linux")]
mod net;
mod orchestrator;
#[path = "../overload/overload.rs"]
mod overload;
#[cfg(target_os = "linux")]
mod partition;
mod pod;
mod responses;
mod sdk;
mod shutdown;
mod surface;
mod top;
mod up;
mod versions;

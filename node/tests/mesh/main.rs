//! A mesh of real nodes in one process, over loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod frozen;
// The hostile tests use more of it.
#[allow(dead_code)]
mod harness;
mod light;

mod control;
mod delegation;
mod discovery;
mod later;
mod liveness;
mod records;
mod relay;
mod renewal;
mod report_rate;
mod revocation;
mod shutdown;

//! A mesh of real nodes in one process, over loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod frozen;
mod harness;
mod light;

mod control;
mod discovery;
mod liveness;
mod records;
mod revocation;

//! A mesh of real nodes in one process, over loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
mod light;

mod control;
mod discovery;
mod records;
mod revocation;

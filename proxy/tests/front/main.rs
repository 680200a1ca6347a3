//! The proxy in front of real nodes: HTTP from a client, a real mesh of admitted peers on loopback, real hops. Only the
//! engine is played: each agent's routes are a few lines that answer as the test wants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Clippy takes only `#[test]` functions for tests.

mod captured;
mod client;
mod continuation;
mod engine;
mod failures;
mod hostile;
mod keys;
mod limits;
mod mesh;
mod names;
mod passing;
mod slow;
mod stored;
mod streams;
mod tls;
mod uploads;
mod waiting;
mod wire;

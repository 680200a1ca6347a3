//! Peers that mean no good, over TCP and over QUIC each. The victim is a swarm with real protocols behind the real
//! transport; what it must never do is tell its swarm that a stranger is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Whole nodes, and a member that says what it likes: shared with the tests of the mesh, which use more of it.
#[path = "../mesh/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "../mesh/light.rs"]
#[allow(dead_code)]
mod light;

mod certificates;
mod delegates;
mod invitations;
mod members;
mod pods;
mod raw;
mod relayed;
mod strangers;
mod victim;

/// Runs each test once over TCP and once over QUIC.
macro_rules! over_tcp_and_quic {
    ($($name:ident),+ $(,)?) => {
        mod tcp { $(#[tokio::test] async fn $name() { super::$name(crate::victim::TCP).await })+ }
        mod quic { $(#[tokio::test] async fn $name() { super::$name(crate::victim::QUIC).await })+ }
    };
}
pub(crate) use over_tcp_and_quic;

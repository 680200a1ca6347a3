//! The hop over two real swarms, with TCP and with QUIC: what it carries, whom it refuses, and every limit without
//! which one bad stream would end all others. The server runs on a thread of its own, so that it can be stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "the test fails, as it should")]

mod basics;
mod fixture;
mod limits;
mod loss;
mod rights;
mod streams;

/// Makes of each `async fn name(wire: Wire)` of the module two tests, one over TCP and one over QUIC.
#[macro_export]
macro_rules! over_tcp_and_quic {
    ($($name:ident),+ $(,)?) => {
        mod tcp { $(#[tokio::test] async fn $name() { super::$name($crate::fixture::Wire::Tcp).await })+ }
        mod quic { $(#[tokio::test] async fn $name() { super::$name($crate::fixture::Wire::Quic).await })+ }
    };
}

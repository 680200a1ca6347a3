//! What an orchestrator does, told as scenarios: against the API server in memory, or against a real one.
//!
//! `DUNLIN_TEST_KUBECONFIG=FILE cargo test -p dunlin-k8s --test scenarios` runs those that can on a real server (1.33 or
//! later, with its scheduler; a controller manager is not needed). They install the definitions, make namespaces, nodes and
//! custom resources called `dunlin-test-...`, and play the kubelets of these nodes themselves; their pods ask for a label that
//! no other node has. All but the definitions goes with each scenario, even if it fails. What needs a server that can be
//! broken at will is skipped there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]

mod crash;
mod examples;
mod figures;
mod harness;
mod leases;
mod life;
mod rights;
mod rules;
mod server;
mod trouble;
mod updates;

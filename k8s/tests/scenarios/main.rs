//! What an orchestrator does, told as scenarios: against the API server in memory, or against a real one.
//!
//! `DUNLIN_TEST_KUBECONFIG=FILE cargo test -p dunlin-k8s --test scenarios` runs those that can on a real server (1.33 or
//! later, with its scheduler). They make namespaces, nodes and custom resources called `dunlin-test-...`, and play the
//! kubelets of these nodes themselves. What needs a server that can be broken at will is skipped there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]

mod crash;
mod examples;
mod figures;
mod harness;
mod leases;
mod life;
mod rules;
mod trouble;
mod updates;

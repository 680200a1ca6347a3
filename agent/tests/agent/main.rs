//! An agent with real child processes, real engines and a real node; requests come over HTTP/2 as on the mesh hop.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod attach;
mod continuation;
mod discovery;
mod hang_up;
mod health;
mod launch;
mod load;
mod logs;
mod orphans;
mod replay;
mod runtimes;
mod serve;
mod support;

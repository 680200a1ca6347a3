//! End to end: the executable as a user runs it, with real engines, real clients and broken networks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::print_stderr)]
// Tests block: they have no runtime.
#![allow(clippy::disallowed_methods)]

mod harness;

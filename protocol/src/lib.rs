//! What Dunlin's peers say to each other: identifiers, certificates, records, reports, and their codec.
//!
//! Pure: no I/O, no clock, no async runtime. Time comes in as an argument, randomness too.

pub mod announcement;
pub mod appointment;
pub mod certificate;
pub mod codec;
pub mod delegation;
pub mod endpoint;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hello;
pub mod hop;
pub mod id;
pub mod invitation;
pub mod jobs;
pub mod key;
pub mod lease;
pub mod ledger;
pub mod limits;
pub mod load;
pub mod mesh_key;
pub mod pattern;
pub mod pod;
pub mod record;
pub mod revocation;
pub mod runtime;
pub mod signed;
pub mod topic;
pub mod usage;

//! Weights from hubs, buckets and folders into a folder: over several ranged connections, resumed after any end, checked
//! by size and hash, and never under their names before they are whole.
//!
//! Reading order: [`source`] is what is asked for; [`listing`] finds out its files, with [`hub`] and [`bucket`]; [`mod@fetch`]
//! runs them all; `file` brings one, with its `pieces` and its `part`; [`client`] is the only one that speaks HTTP.

pub mod bucket;
pub mod client;
pub mod error;
pub mod fetch;
mod file;
pub mod hub;
pub mod listing;
mod local;
mod part;
mod pieces;
pub mod progress;
pub mod secrets;
pub mod source;

pub use error::Error;
pub use fetch::{Order, fetch};
pub use progress::Progress;
pub use secrets::{Endpoints, Keys, Secrets};
pub use source::Source;

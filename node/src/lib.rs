//! One libp2p peer of a Dunlin mesh: identity, admission, discovery, gossip, and the HTTP/2 hop between members.

pub mod addresses;
pub mod dial;
pub mod directory;
mod handle;
pub mod hop;
pub mod liveness;
pub mod record_store;
mod registration;
pub mod stream;

pub use handle::{ConnectError, Handle, LookupError, Offer};

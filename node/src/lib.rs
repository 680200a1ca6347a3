//! One libp2p peer of a Dunlin mesh: identity, admission, discovery, gossip, and the HTTP/2 hop between members.

pub mod addresses;
pub mod admission;
pub mod clock;
pub mod dial;
pub mod directory;
mod handle;
pub mod hop;
pub mod issuer;
pub mod join;
pub mod liveness;
pub mod members;
pub mod mesh;
pub mod record_store;
mod registration;
pub mod renewal;
pub mod state;
pub mod stream;
pub mod transport;

pub use handle::{ConnectError, Handle, LookupError, Offer};

//! One libp2p peer of a Dunlin mesh: identity, admission, discovery, gossip, and the HTTP/2 hop between members.

pub mod dial;
pub mod directory;
mod handle;

pub use handle::{ConnectError, Handle, LookupError, Offer};

//! The mesh hop: HTTP/2 between members, on one long-lived substream per libp2p connection and direction.
//!
//! Owned here: keeping such a substream open to every peer that this node calls ([`Hop`]), serving the ones that peers
//! open to us ([`server`]), and the settings without which one bad stream would end all others on the connection
//! ([`Settings`]). Who may call what is [`dunlin_protocol::hop::Route`]'s table; what a route does is its owner's.
//!
//! A request on the hop: [`Hop::send`] -> the peer's link -> HTTP/2 by hyper -> substream == libp2p ==> substream ->
//! [`server`]: role, expiry and revocation of the caller -> the router.

mod body;
mod budget;
mod client;
mod coalesce;
mod fault;
mod keeper;
mod line;
mod pulse;
mod refusal;
pub mod server;
mod settings;
mod silence;
pub mod stall;

pub use body::{Body, BoxError, ResponseBody, ResponseError};
pub use budget::{Budget, Reservation};
pub use client::Hop;
pub use coalesce::Coalesce;
pub use fault::{Loss, SendError, Unsent};
pub use server::Caller;
pub use settings::Settings;
pub use silence::Silence;

use libp2p::StreamProtocol;

/// Protocol of the substreams that the hop opens and serves.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new(dunlin_protocol::hop::PROTOCOL);

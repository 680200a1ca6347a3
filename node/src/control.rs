//! The control socket: how the command line talks to the running node of a state directory. HTTP/1.1 with JSON over a
//! Unix socket that only its owner may open.

mod client;
mod routes;
mod server;

pub use client::{Client, Error as ClientError};
pub use routes::{
    Bounds, Delegate, Equip, Equipment, Foreigner, Invitation, InvitationInfo, Invite, IssuerInfo, ModelInfo, Revoke,
    Status, Undelegate,
};
pub use server::{Error, Server, path as socket_path};

/// Name of the socket in the state directory.
pub const SOCKET: &str = "control.sock";

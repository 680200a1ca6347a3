//! One file for the events of each protocol.

mod connection;
mod gossip;
mod identify;
mod kad;
mod mdns;

pub(crate) use identify::agent_version;

//! What a node needs to know to start.

use crate::{pods::PodAdmission, state::StateDir};
use dunlin_protocol::id::Roles;
use libp2p::Multiaddr;

/// Settings of one node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds identity, certificate, and what must survive a restart.
    pub state: StateDir,
    /// Where to listen; port 0 chooses a free one. Empty: only dials out, and stores nothing for others.
    pub listen: Vec<Multiaddr>,
    /// Addresses under which others reach this node that it can't see itself: names, port forwards.
    pub external: Vec<Multiaddr>,
    /// Members to dial at the start and whenever the connection to them is lost, with or without `/p2p`.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether to find members, and be found, on the local network. Anyone there sees peer id and addresses.
    pub mdns: bool,
    /// Relays to be reachable through, each with `/p2p`; for nodes that others cannot dial.
    pub relays: Vec<Multiaddr>,
    /// Whether others can dial this node. An unreachable one stores nothing for others.
    pub reachable: bool,
    /// Admits pods by their ServiceAccount tokens, on an orchestrator; it issues to them as its delegation allows.
    pub pods: Option<PodAdmission>,
    /// What this process plays; what its certificate does not allow is left out.
    pub roles: Roles,
}

impl Config {
    /// Defaults for a node with this state: listens nowhere, dials nobody, plays the roles of its certificate.
    #[must_use]
    pub fn new(state: StateDir, roles: Roles) -> Self {
        Self {
            state,
            listen: Vec::new(),
            external: Vec::new(),
            bootstrap: Vec::new(),
            mdns: false,
            relays: Vec::new(),
            reachable: true,
            pods: None,
            roles,
        }
    }
}

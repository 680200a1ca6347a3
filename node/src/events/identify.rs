//! Identify and ping: where a member listens, that it is alive, and whether it is the process that it was.

use crate::{
    addresses,
    behaviour::KAD_PROTOCOL,
    directory,
    event_loop::{EventLoop, SETTLE},
    gossip,
};
use dunlin_protocol::id::PeerId;
use libp2p::{identify, ping, swarm::ConnectionId};
use std::time::Instant;

/// What identify tells of this process: the version of the executable, and the epoch, for [`epoch_of`].
pub(crate) fn agent_version(epoch: u64) -> String {
    format!("dunlin/{} {epoch}", env!("CARGO_PKG_VERSION"))
}

/// The epoch in another process's [`agent_version`].
fn epoch_of(agent_version: &str) -> Option<u64> {
    agent_version.strip_prefix("dunlin/")?.split_once(' ')?.1.parse().ok()
}

impl EventLoop {
    /// The address that a peer observed is a mere candidate and is never told on: behind a NAT it names a port that
    /// nobody else can use. What others should dial is configured.
    pub(crate) fn on_identify(&mut self, event: identify::Event) {
        let identify::Event::Received { connection_id, peer_id, info } = event else { return };
        self.on_heard(peer_id, Instant::now());
        if let Some(epoch) = epoch_of(&info.agent_version) {
            self.on_epoch(peer_id, connection_id, epoch);
        }
        let loopback = self.book.met_on_loopback(&peer_id);
        let listening = addresses::dialable(info.listen_addrs, loopback, addresses::ADDRESSES_PER_PEER);
        for address in listening.iter().rev() {
            self.book.add(peer_id, address.clone());
        }
        // Kademlia's table stays empty unless it is told: and only those belong there who answer.
        if info.protocols.contains(&KAD_PROTOCOL) {
            for address in addresses::preferred(listening) {
                self.swarm.behaviour_mut().kad.add_address(&peer_id, address);
            }
        }
    }

    /// A connection by QUIC outlives a process that was killed, by ten seconds. When its successor connects meanwhile,
    /// the old one is of no use: closed at once, it takes no request into its silence.
    fn on_epoch(&mut self, peer: PeerId, id: ConnectionId, epoch: u64) {
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        if let Some(connection) = connections.iter_mut().find(|connection| connection.id == id) {
            connection.epoch = Some(epoch);
        }
        let of_earlier = connections.iter().filter(|connection| connection.epoch.is_some_and(|other| other < epoch));
        let of_earlier: Vec<ConnectionId> = of_earlier.map(|connection| connection.id).collect();
        if of_earlier.is_empty() {
            return;
        }
        tracing::info!(%peer, "peer was restarted");
        for connection in of_earlier {
            self.swarm.close_connection(connection);
        }
        self.due.subscribe_again.get_or_insert(Instant::now() + SETTLE);
    }

    /// Gossipsub tells its subscriptions on the first connection to a peer only, so a process that connected while its
    /// predecessor was still thought connected knows of none and would say nothing to this one. There is no way to tell
    /// it alone.
    pub(crate) fn subscribe_again(&mut self) {
        for topic in gossip::topics(self.roles) {
            let gossip = &mut self.swarm.behaviour_mut().gossip;
            gossip.unsubscribe(&topic);
            if let Err(error) = gossip.subscribe(&topic) {
                tracing::error!(%topic, %error, "cannot subscribe again");
            }
        }
    }

    pub(crate) fn on_ping(&mut self, event: &ping::Event) {
        match &event.result {
            Ok(rtt) => {
                self.on_heard(event.peer, Instant::now());
                self.hop.set_round_trip(&event.peer, *rtt);
                self.learn(directory::Event::RoundTrip { peer: event.peer, rtt: *rtt });
            }
            // Silence is judged by the clock, over all that a peer says.
            Err(error) => tracing::debug!(peer = %event.peer, %error, "ping"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_read_from_what_is_told() {
        assert_eq!(epoch_of(&agent_version(7)), Some(7));
        for other in ["", "dunlin/0.1.0", "dunlin/0.1.0 x", "rust-libp2p/0.57 7"] {
            assert_eq!(epoch_of(other), None, "{other}");
        }
    }
}

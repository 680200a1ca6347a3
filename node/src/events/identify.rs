//! Identify and ping: where a member listens, and that it is alive.

use crate::{addresses, behaviour::KAD_PROTOCOL, directory, event_loop::EventLoop};
use libp2p::{identify, ping};
use std::time::Instant;

impl EventLoop {
    /// The address that a peer observed is a mere candidate and is never told on: behind a NAT it names a port that
    /// nobody else can use. What others should dial is configured.
    pub(crate) fn on_identify(&mut self, event: identify::Event) {
        let identify::Event::Received { peer_id, info, .. } = event else { return };
        self.on_heard(peer_id, Instant::now());
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

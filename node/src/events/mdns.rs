//! mDNS: members on the local network are dialled; anybody else there fails admission and is left alone.

use crate::event_loop::EventLoop;
use libp2p::mdns;

/// Peers of one mDNS answer that are looked at: the network is not trusted.
const DISCOVERED: usize = 64;

impl EventLoop {
    pub(crate) fn on_mdns(&mut self, event: mdns::Event) {
        let mdns::Event::Discovered(discovered) = event else { return };
        for (peer, address) in discovered.into_iter().take(DISCOVERED) {
            if self.has_direct(&peer) || peer == self.shared.peer_id {
                continue;
            }
            self.book.add(peer, address);
            self.dial(peer, None);
        }
    }
}

//! Everything that the client knows about one peer: its links, and how far away it is.

use super::{Body, pulse::Pulse};
use crate::stream::{Connection, OpenError};
use hyper::client::conn::http2::SendRequest;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// HTTP/2 on one libp2p connection.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) sender: SendRequest<Body>,
    pub(super) pulse: Arc<Pulse>,
    in_flight: Arc<AtomicUsize>,
}

impl Link {
    pub(super) fn new(connection: Connection, sender: SendRequest<Body>, pulse: Arc<Pulse>) -> Self {
        Self { connection, sender, pulse, in_flight: Arc::default() }
    }

    /// Counts a request, unless `limit` are in flight.
    pub(super) fn enter(&self, limit: usize) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(Arc::clone(&self.in_flight));
        (before < limit).then_some(entered)
    }
}

/// One request in flight, until dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The links to one peer.
#[derive(Debug, Default)]
pub(super) struct Links {
    open: Vec<Link>,
    /// Attempts that failed, so that those who wait learn of it.
    failures: u64,
    failure: Option<Arc<OpenError>>,
}

impl Links {
    /// The link to use: one that isn't silent, a direct one if there is one, and of these the one with the fewest
    /// requests.
    fn best(&self) -> Option<&Link> {
        self.open.iter().filter(|link| !link.sender.is_closed()).min_by_key(|link| {
            (link.pulse.is_silent(), link.connection.relayed, link.in_flight.load(Ordering::Relaxed))
        })
    }
}

/// One peer.
#[derive(Debug, Default)]
pub(super) struct Line {
    links: watch::Sender<Links>,
    /// Microseconds; zero is unknown.
    round_trip: AtomicU64,
}

impl Line {
    pub(super) fn best(&self) -> Option<Link> {
        self.links.borrow().best().cloned()
    }

    /// Whether there is a link on each of these connections.
    pub(super) fn covers(&self, mut connections: impl Iterator<Item = Connection>) -> bool {
        let links = self.links.borrow();
        connections.all(|connection| links.open.iter().any(|link| link.connection.id == connection.id))
    }

    /// Waits for a link that isn't silent, or for the next failure to make one.
    ///
    /// # Errors
    /// The failure.
    pub(super) async fn wait(self: Arc<Self>) -> Result<Link, Arc<OpenError>> {
        let mut links = self.links.subscribe();
        let failures = links.borrow_and_update().failures;
        loop {
            {
                let now = links.borrow_and_update();
                if let Some(link) = now.best().filter(|link| !link.pulse.is_silent()) {
                    return Ok(link.clone());
                }
                if let Some(failure) = now.failure.as_ref().filter(|_| now.failures != failures) {
                    return Err(Arc::clone(failure));
                }
            }
            if links.changed().await.is_err() {
                return Err(Arc::new(OpenError::ConnectionClosed));
            }
        }
    }

    /// Adds a link. Relayed links go when a direct one comes: what is in flight on them ends there, nothing new
    /// starts.
    pub(super) fn publish(&self, link: Link) {
        self.links.send_modify(|links| {
            if !link.connection.relayed {
                links.open.retain(|other| !other.connection.relayed);
            }
            links.open.push(link);
            links.failure = None;
        });
    }

    /// Takes away this link, and no other: a connection may have a newer one by now.
    pub(super) fn withdraw(&self, withdrawn: &Link) {
        self.links.send_modify(|links| links.open.retain(|link| !Arc::ptr_eq(&link.pulse, &withdrawn.pulse)));
    }

    pub(super) fn failed(&self, error: OpenError) {
        self.links.send_modify(|links| {
            links.failures += 1;
            links.failure = Some(Arc::new(error));
        });
    }

    pub(super) fn has_direct(&self) -> bool {
        self.links.borrow().open.iter().any(|link| !link.connection.relayed)
    }

    /// Nobody uses or waits for this line.
    pub(super) fn is_idle(&self) -> bool {
        self.links.receiver_count() == 0 && self.links.borrow().open.is_empty()
    }

    pub(super) fn set_round_trip(&self, round_trip: Duration) {
        let us = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX).max(1);
        self.round_trip.store(us, Ordering::Relaxed);
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        let us = self.round_trip.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hop::{Settings, client::Tasks};
    use hyper_util::rt::TokioIo;
    use libp2p::swarm::ConnectionId;

    #[tokio::test]
    async fn a_late_loser_does_not_take_the_link_that_replaced_its_own() {
        let connection = Connection { id: ConnectionId::new_unchecked(1), relayed: false };
        let line = Line::default();
        let mut ends = Vec::new();
        let mut open = async || {
            let (ours, theirs) = tokio::io::duplex(4096);
            let client = Settings::default().client(Tasks::default());
            let (sender, http) = client.handshake::<_, Body>(TokioIo::new(ours)).await.unwrap();
            ends.push((http, theirs));
            Link::new(connection, sender, Arc::default())
        };
        let (broken, new) = (open().await, open().await);
        line.publish(broken.clone());
        line.withdraw(&broken);
        assert!(line.best().is_none());
        line.publish(new.clone());
        line.withdraw(&broken);
        assert!(line.best().is_some());
        line.withdraw(&new);
        assert!(line.best().is_none());
    }
}

//! Keeps one HTTP/2 link open on one libp2p connection, for as long as that connection lives.

use super::{
    PROTOCOL,
    client::Shared,
    line::Link,
    pulse::{Heard, Pulse},
};
use crate::stream::{Connection, OpenError};
use hyper_util::rt::TokioIo;
use libp2p::PeerId;
use std::{
    io,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::compat::FuturesAsyncReadCompatExt;

/// Pause before a link that broke is opened anew; doubles up to [`LONGEST_PAUSE`] while links don't last.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A link that lived so long was a good one.
const LASTED: Duration = Duration::from_secs(10);

/// Opens the link, opens it again when it breaks, and ends with the connection, with the hop, or when a relayed
/// connection is no longer needed.
pub(super) async fn keep(shared: Arc<Shared>, peer: PeerId, connection: Connection) {
    let stop = shared.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = reopen(&shared, peer, connection) => {}
    }
    shared.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&connection.id);
    shared.tidy(&peer);
}

async fn reopen(shared: &Shared, peer: PeerId, connection: Connection) {
    let mut pause = FIRST_PAUSE;
    loop {
        let started = Instant::now();
        if let Err(error) = run(shared, peer, connection).await {
            tracing::debug!(%peer, connection = %connection.id, %error, "no link to the peer");
            shared.line_or_new(peer).failed(error);
        }
        if !shared.control.connections(&peer).contains(&connection) {
            return;
        }
        if connection.relayed && shared.line(&peer).is_some_and(|line| line.has_direct()) {
            return;
        }
        pause = if started.elapsed() >= LASTED { FIRST_PAUSE } else { pause };
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One link, from its opening to its end.
async fn run(shared: &Shared, peer: PeerId, connection: Connection) -> Result<(), OpenError> {
    let deadline = shared.settings.open;
    let stream = shared.control.open(peer, Some(connection.id), PROTOCOL, deadline).await?;
    let pulse = Arc::<Pulse>::default();
    let io = TokioIo::new(Heard::new(stream, Arc::clone(&pulse)).compat());
    let handshake = shared.settings.client(shared.tasks.clone()).handshake(io);
    let (sender, http) = match tokio::time::timeout(deadline, handshake).await {
        Ok(Ok(pair)) => pair,
        Ok(Err(error)) => return Err(OpenError::Io(io::Error::other(error))),
        Err(_) => return Err(OpenError::Timeout(deadline)),
    };
    tracing::debug!(%peer, connection = %connection.id, relayed = connection.relayed, "link to the peer opened");
    shared.links_opened.fetch_add(1, Ordering::Relaxed);
    let _published = Published::new(shared, peer, Link::new(connection, sender, Arc::clone(&pulse)));
    tokio::select! {
        ended = http => if let Err(error) = ended {
            tracing::debug!(%peer, connection = %connection.id, %error, "link to the peer broke");
        },
        () = pulse.watch(shared.settings.suspect, shared.settings.dead) => {
            tracing::debug!(%peer, connection = %connection.id, "link to the peer closed: it is silent");
        }
    }
    Ok(())
}

/// A link that requests may use, until dropped.
struct Published<'a> {
    shared: &'a Shared,
    peer: PeerId,
    link: Link,
}

impl<'a> Published<'a> {
    fn new(shared: &'a Shared, peer: PeerId, link: Link) -> Self {
        shared.line_or_new(peer).publish(link.clone());
        Self { shared, peer, link }
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        self.shared.withdraw(&self.peer, &self.link);
    }
}

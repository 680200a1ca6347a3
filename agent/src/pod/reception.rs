//! Takes connections in, and shows them where they belong.

use super::frame::{self, Reader, Writer};
use crate::replica::Replica;
use dunlin_protocol::pod::{EngineState, FetchProgress, Opening};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::sleep,
};

/// Connections at once: a shim, a loader, and some that are about to go.
const CONNECTIONS: usize = 8;
/// After an accept that failed because the process has no file left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A shim that has said who it is.
#[derive(Debug)]
pub(crate) struct Shim {
    pub(crate) instance: u64,
    pub(crate) state: EngineState,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

/// Takes connections until dropped. Shims go to `shims`, of which the newest counts.
pub(crate) async fn receive(listener: UnixListener, replica: Arc<Replica>, shims: mpsc::Sender<Shim>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut guests = JoinSet::new();
    loop {
        while guests.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (replica, shims) = (Arc::clone(&replica), shims.clone());
                guests.spawn(async move {
                    if let Err(error) = welcome(stream, &replica, &shims).await {
                        tracing::warn!(replica = replica.index, %error, "a connection of the pod was given up");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of the pod could not be accepted");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn welcome(stream: UnixStream, replica: &Replica, shims: &mpsc::Sender<Shim>) -> Result<(), frame::Error> {
    let (mut reader, writer) = frame::greet(stream).await?;
    match reader.first().await? {
        Opening::Engine { instance, state } => {
            // Without a receiver the agent is ending.
            let _ = shims.send(Shim { instance, state, reader, writer }).await;
        }
        Opening::Fetch(progress) => {
            replica.set_fetching(progress);
            while let Some(progress) = reader.next::<FetchProgress>().await? {
                replica.set_fetching(progress);
            }
        }
    }
    Ok(())
}

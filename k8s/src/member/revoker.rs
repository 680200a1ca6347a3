//! Memberships that are to end with their pods.

use dunlin_node::{Handle, ManageError};
use dunlin_protocol::id::PeerId;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// Peers whose membership is to end and has not.
const WAITING: usize = 4_096;
/// Before a revocation that failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);

type Order = (PeerId, oneshot::Sender<()>);

/// Those that wait for their end, whether or not this process is in the mesh just now. Clones are the same ones.
#[derive(Clone)]
pub struct Revocations {
    orders: mpsc::Sender<Order>,
    waiting: Arc<Mutex<mpsc::Receiver<Order>>>,
}

impl Default for Revocations {
    fn default() -> Self {
        let (orders, waiting) = mpsc::channel(WAITING);
        Self { orders, waiting: Arc::new(Mutex::new(waiting)) }
    }
}

impl Revocations {
    /// Ends a membership. Returns whether it has ended; whoever does not wait for that has it ended all the same.
    pub async fn end(&self, peer: PeerId) -> bool {
        let (done, ended) = oneshot::channel();
        if self.orders.try_send((peer, done)).is_err() {
            tracing::error!(%peer, "too many memberships are to end; this one ends with its certificate");
            return false;
        }
        ended.await.is_ok()
    }

    /// Carries them out through `handle`, one after the other, until `stop`.
    pub async fn carry_out(&self, handle: &Handle, stop: CancellationToken) {
        let work = async {
            let mut waiting = self.waiting.lock().await;
            while let Some((peer, done)) = waiting.recv().await {
                if end(handle, peer).await {
                    // Nobody may be waiting any more.
                    let _ = done.send(());
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

async fn end(handle: &Handle, peer: PeerId) -> bool {
    loop {
        match handle.revoke_pod(peer).await {
            Ok(()) => {
                tracing::info!(%peer, "the membership of a pod that has gone is ended");
                return true;
            }
            Err(error @ ManageError::ListFull) => {
                tracing::error!(%peer, %error, "a pod that has gone is a member until its certificate ends");
                return false;
            }
            Err(error) => tracing::warn!(%peer, %error, "a membership could not be ended yet"),
        }
        sleep(AGAIN).await;
    }
}

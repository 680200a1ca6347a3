//! What engines of jobs wrote, asked of their agents over the hop.

use super::Error;
use axum::{body::Body, response::Response};
use dunlin_node::{Handle, hop};
use dunlin_protocol::id::PeerId;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;

/// Longest question to an agent about its logs.
const QUERY_BYTES: usize = 256;
/// Until the head of an agent's answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The agents of this cluster, as long as this process is in the mesh. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Agents(Arc<Mutex<Option<Handle>>>);

impl Agents {
    /// Reaches them through `node` from now on.
    pub fn through(&self, node: Option<Handle>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// The output of a replica's engine as it comes, by a question as `/mesh/logs` takes it.
    pub(super) async fn logs(&self, peer: PeerId, query: &str) -> Result<Response, Error> {
        if query.len() > QUERY_BYTES {
            return Err(Error::Wrong(format!("a question of {} bytes about logs", query.len())));
        }
        let node = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let node = node.ok_or_else(|| Error::Cluster("the orchestrator is not in the mesh".to_owned()))?;
        let unreached = |cause: String| Error::Cluster(format!("the replica's agent {peer} can't be asked: {cause}"));
        let request = http::Request::builder().uri(format!("/mesh/logs?{query}")).body(hop::Body::empty());
        let request = request.map_err(|error| Error::Wrong(error.to_string()))?;
        let asked = async {
            node.connect(peer).await.map_err(|error| unreached(error.to_string()))?;
            node.hop().send(peer, request).await.map_err(|error| unreached(error.to_string()))
        };
        let answer = timeout(ANSWER, asked).await.map_err(|_| unreached("no answer".to_owned()))??;
        Ok(answer.map(Body::new))
    }
}

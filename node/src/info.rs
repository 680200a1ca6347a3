//! What a member says of itself over the hop: who joins late learns from it what gossip said before.

use crate::{directory, directory::SharedDirectory, hop, hop::Hop};
use dunlin_protocol::{
    announcement::{self, SignedAnnouncement},
    codec,
    id::{PeerId, Roles},
    limits,
};
use http_body_util::{BodyExt, Limited};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Path on the hop.
pub const PATH: &str = "/mesh/info";
/// Longest time for a pull.
const DEADLINE: Duration = Duration::from_secs(5);
/// Times that a peer is asked, and the pause between them.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Largest answer: every replica of a peer announced at its largest would be more, and then the first ones count.
const BYTES: usize = 8 * limits::ANNOUNCEMENT_BYTES;

/// A member's view of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Roles that its process plays.
    pub roles: Roles,
    /// Version of the executable.
    pub version: String,
    /// Epoch of its process.
    pub epoch: u64,
    /// Its replicas, as announced last.
    pub announcements: Vec<SignedAnnouncement>,
}

#[derive(Serialize, Deserialize)]
enum Wire {
    V1(Info),
}

impl Info {
    /// As answered on the hop. Announcements that do not fit are left out, the last first.
    ///
    /// # Errors
    /// Does not fit even without announcements.
    pub fn encode(mut self) -> Result<Vec<u8>, codec::Error> {
        loop {
            match codec::encode(&Wire::V1(self.clone()), BYTES) {
                Err(_) if self.announcements.pop().is_some() => {}
                encoded => return encoded,
            }
        }
    }

    /// From the hop; nothing in it is verified.
    ///
    /// # Errors
    /// Not such an answer.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        let Wire::V1(info) = codec::decode(bytes, BYTES)?;
        Ok(info)
    }
}

/// Why an answer of the hop could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Send(#[from] hop::SendError),
    #[error("answered with status {0}")]
    Status(http::StatusCode),
    #[error("the answer broke off or is too large: {0}")]
    Body(hop::BoxError),
    #[error(transparent)]
    Codec(#[from] codec::Error),
    #[error("request: {0}")]
    Request(#[from] http::Error),
}

/// One whole small answer to a request with a body.
pub(crate) async fn ask(
    hop: &Hop,
    peer: PeerId,
    method: http::Method,
    path: &str,
    body: hop::Body,
    limit: usize,
) -> Result<Vec<u8>, Error> {
    send(hop, peer, http::Request::builder().method(method).uri(path).body(body)?, limit).await
}

/// One whole small answer to any request.
pub(crate) async fn send(
    hop: &Hop,
    peer: PeerId,
    request: http::Request<hop::Body>,
    limit: usize,
) -> Result<Vec<u8>, Error> {
    let answer = async {
        let response = hop.send(peer, request).await?;
        if response.status() != http::StatusCode::OK {
            return Err(Error::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), limit).collect().await.map_err(Error::Body)?;
        Ok(body.to_bytes().to_vec())
    };
    tokio::time::timeout(DEADLINE, answer).await.map_err(|_| Error::Timeout)?
}

/// Fetches what a member says of itself into the directory.
#[derive(Clone)]
pub(crate) struct Puller {
    pub(crate) hop: Hop,
    pub(crate) directory: SharedDirectory,
}

impl Puller {
    pub(crate) async fn pull(self, peer: PeerId) {
        for _ in 0..ATTEMPTS {
            match self.try_pull(peer).await {
                Ok(replicas) => {
                    tracing::debug!(%peer, replicas, "asked a peer what it serves");
                    return;
                }
                // It is asked again when it connects again.
                Err(Error::Send(hop::SendError::NotConnected(_))) => return,
                Err(error) => tracing::debug!(%peer, %error, "peer did not say what it serves"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn try_pull(&self, peer: PeerId) -> Result<usize, Error> {
        let request = http::Request::get(PATH).body(hop::Body::empty())?;
        let info = Info::decode(&send(&self.hop, peer, request, BYTES).await?)?;
        let mut taken = 0;
        for signed in info.announcements.iter().take(directory::REPLICAS_PER_PEER) {
            match announcement::verify(signed) {
                // A member speaks for itself here.
                Ok(verified) if verified.replica.peer == peer => {
                    self.directory.apply(directory::Event::Announcement(verified), Instant::now());
                    taken += 1;
                }
                Ok(_) | Err(_) => tracing::info!(%peer, "announcement refused"),
            }
        }
        Ok(taken)
    }
}

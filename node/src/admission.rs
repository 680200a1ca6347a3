//! Admission: what happens on a connection after Noise or TLS and before the swarm hears of it.
//!
//! The dialer opens the first substream and shows its certificate; the listener checks it, and only then shows its own.
//! Whoever has no valid certificate of this mesh is disconnected, so that no behaviour of the swarm ever meets a
//! stranger. Joining with an invitation happens here too: answered, then the connection is closed.

pub mod pending;
mod wire;

use crate::{
    clock,
    issuer::{self, Issuing},
    members::Members,
    pods::PodAdmission,
};
use dunlin_protocol::{
    certificate::{Chain, Membership},
    hello::{self, Hello, Papers, PodRequest, Refusal, Reply, Verdict},
    id::PeerId,
    invitation::JoinRequest,
};
use libp2p::core::{ConnectedPoint, Endpoint, muxing::StreamMuxerBox, muxing::SubstreamBox};
use std::{io, sync::Arc, time::Duration, time::Instant};

/// From the end of the handshake to admission.
pub const DEADLINE: Duration = Duration::from_secs(3);
/// How long a refused peer is given to read why, and hang up.
const LINGER: Duration = Duration::from_millis(500);

/// Bounds on admission. Tests shorten the deadline; how many may be on their way is [`pending`]'s to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// From the end of the handshake to admission. An incoming connection has as long again for its handshake.
    pub deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: DEADLINE }
    }
}

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It broke, or the other side hung up.
    #[error("the connection was lost before admission: {0}")]
    Connection(#[from] io::Error),
    /// The other side did not say enough in time.
    #[error("not admitted within {0:?}")]
    Deadline(Duration),
    /// The other side said something else.
    #[error(transparent)]
    Frame(#[from] hello::Error),
    /// This peer refused the other one.
    #[error("refused peer {peer}: {cause}")]
    RefusedPeer {
        /// The other side.
        peer: PeerId,
        /// What it was told.
        refusal: Refusal,
        /// For the log of this side.
        cause: String,
    },
    /// The other side refused this peer.
    #[error("peer {peer} refused this one: {refusal}")]
    RefusedByPeer {
        /// The other side.
        peer: PeerId,
        /// What it said.
        refusal: Refusal,
    },
    /// The other side answered another question.
    #[error("peer {0} answered something that was not asked")]
    Unexpected(PeerId),
    /// No failure: the peer redeemed an invitation, and comes back as a member.
    #[error("peer {0} joined the mesh, and comes back as a member")]
    Joined(PeerId),
}

impl Error {
    /// The admission error inside what the swarm reports of a failed connection, if it is one.
    #[must_use]
    pub fn find(error: &io::Error) -> Option<&Self> {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error.get_ref()?);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// What the transport calls fails with this: `either`, which libp2p wraps errors in, hides the error itself and shows
/// only its source.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotAdmitted(#[source] pub(crate) Error);

/// Decides who gets in. Cheap to clone; the transport clones it for each connection.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    members: Members,
    issuing: Issuing,
    pods: Option<PodAdmission>,
    settings: Settings,
}

type Connection = (PeerId, StreamMuxerBox);

impl Admission {
    /// Admission of `members`' mesh; with an issuer, of those who are invited too.
    #[must_use]
    pub fn new(members: Members, issuing: impl Into<Issuing>, settings: Settings) -> Self {
        Self::with_pods(members, issuing, None, settings)
    }

    /// The same that admits pods by their tokens too: an orchestrator's.
    #[must_use]
    pub fn with_pods(
        members: Members,
        issuing: impl Into<Issuing>,
        pods: Option<PodAdmission>,
        settings: Settings,
    ) -> Self {
        Self(Arc::new(Inner { members, issuing: issuing.into(), pods, settings }))
    }

    pub(crate) fn settings(&self) -> Settings {
        self.0.settings
    }

    /// Admits the peer at the other end of a connection, or not.
    pub(crate) async fn admit(
        self,
        (peer, mut muxer): Connection,
        point: ConnectedPoint,
    ) -> Result<Connection, NotAdmitted> {
        let inner = self.0;
        let deadline = inner.settings.deadline;
        // Under hole punching the listener's side may dial: the role decides, not who called.
        let outcome = match point {
            ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. } => {
                within(deadline, inner.knock(peer, &mut muxer)).await
            }
            _ => within(deadline, inner.answer(peer, &mut muxer)).await,
        };
        inner.note(&outcome);
        match outcome {
            Ok(()) => Ok((peer, muxer)),
            Err(error) => {
                if matches!(error, Error::RefusedPeer { .. } | Error::Joined(_)) {
                    linger(&mut muxer).await;
                }
                Err(NotAdmitted(error))
            }
        }
    }
}

impl Inner {
    /// The opener's side.
    async fn knock(&self, peer: PeerId, muxer: &mut StreamMuxerBox) -> Result<(), Error> {
        let stream = wire::open(muxer).await?;
        wire::drive(muxer, self.ask(peer, stream)).await?
    }

    async fn ask(&self, peer: PeerId, mut stream: SubstreamBox) -> Result<(), Error> {
        wire::write(&mut stream, &Hello::Member(self.papers())).await?;
        let papers = match wire::read(&mut stream).await? {
            Reply::Member(papers) => papers,
            Reply::Refused(refusal) => return Err(Error::RefusedByPeer { peer, refusal }),
            Reply::Joined(_) => return Err(Error::Unexpected(peer)),
        };
        let checked = self.check(peer, &papers);
        let verdict = match &checked {
            Ok(_) => Verdict::Admitted,
            Err((refusal, _)) => Verdict::Refused(*refusal),
        };
        wire::write(&mut stream, &verdict).await?;
        wire::finish(&mut stream).await?;
        let membership = checked.map_err(|(refusal, cause)| Error::RefusedPeer { peer, refusal, cause })?;
        self.members.insert(membership, papers.revocations);
        Ok(())
    }

    /// The other side.
    async fn answer(&self, peer: PeerId, muxer: &mut StreamMuxerBox) -> Result<(), Error> {
        let stream = wire::accept(muxer).await?;
        wire::drive(muxer, self.reply(peer, stream)).await?
    }

    async fn reply(&self, peer: PeerId, mut stream: SubstreamBox) -> Result<(), Error> {
        let hello = match wire::read(&mut stream).await {
            Ok(hello) => hello,
            Err(Error::Frame(error)) => return Err(self.refuse_frame(peer, stream, error).await),
            Err(error) => return Err(error),
        };
        let papers = match hello {
            Hello::Member(papers) => papers,
            Hello::Join(request) => return Err(welcome(peer, stream, self.redeem(peer, request).await).await),
            Hello::Pod(request) => return Err(welcome(peer, stream, self.admit_pod(peer, &request).await).await),
        };
        let membership = match self.check(peer, &papers) {
            Ok(membership) => membership,
            Err((refusal, cause)) => {
                say_last(&mut stream, &Reply::Refused(refusal)).await?;
                return Err(Error::RefusedPeer { peer, refusal, cause });
            }
        };
        // Closing this half now lets the opener see the end with the reply, and finish after one round trip.
        say_last(&mut stream, &Reply::Member(self.papers())).await?;
        match wire::read(&mut stream).await? {
            Verdict::Admitted => {}
            Verdict::Refused(refusal) => return Err(Error::RefusedByPeer { peer, refusal }),
        }
        wire::finish(&mut stream).await?;
        self.members.insert(membership, papers.revocations);
        Ok(())
    }

    /// Tells a dunlin of another version why; strangers are told nothing.
    async fn refuse_frame(&self, peer: PeerId, mut stream: SubstreamBox, error: hello::Error) -> Error {
        let Some(refusal) = error.refusal() else { return error.into() };
        match say_last(&mut stream, &Reply::Refused(refusal)).await {
            Ok(()) => Error::RefusedPeer { peer, refusal, cause: error.to_string() },
            Err(error) => error,
        }
    }

    /// A certificate for a pod that shows its token.
    async fn admit_pod(&self, peer: PeerId, request: &PodRequest) -> Result<Chain, (Refusal, String)> {
        let (Some(pods), Some(issuer)) = (&self.pods, self.issuing.get()) else {
            return Err((
                Refusal::NoPods,
                "asked to admit a pod, but this peer is no orchestrator in charge".to_owned(),
            ));
        };
        let standing = pods.examine(peer, request, &self.members.mesh()).await?;
        let revocations = self.members.revocations();
        // Waits for the disk.
        let issue = move || issuer.admit_pod(peer, standing, &revocations, clock::unix_s());
        issued(peer, tokio::task::spawn_blocking(issue).await)
    }

    async fn redeem(&self, peer: PeerId, request: JoinRequest) -> Result<Chain, (Refusal, String)> {
        let Some(issuer) = self.issuing.get() else {
            return Err((Refusal::NotAnIssuer, "asked to redeem an invitation, but this peer issues none".to_owned()));
        };
        let (known, revocations) = (self.members.get(&peer), self.members.revocations());
        // Waits for the disk.
        let redeem = move || issuer.redeem(peer, &request, known.as_deref(), &revocations, clock::unix_s());
        issued(peer, tokio::task::spawn_blocking(redeem).await)
    }

    fn papers(&self) -> Papers {
        Papers { chain: Chain::clone(&self.members.own_chain()), revocations: self.members.revocations().version() }
    }

    /// Whether the papers make `peer`, which the connection has proved, a member.
    fn check(&self, peer: PeerId, papers: &Papers) -> Result<Membership, (Refusal, String)> {
        let membership = papers
            .chain
            .verify(clock::unix_s(), &self.members.mesh())
            .map_err(|error| (Refusal::from(&error), error.to_string()))?;
        if membership.peer != peer {
            return Err((Refusal::WrongPeer, format!("its certificate is peer {}'s", membership.peer)));
        }
        if self.members.is_revoked(&membership) {
            return Err((Refusal::Revoked, "its membership was revoked".to_owned()));
        }
        Ok(membership)
    }

    /// Logs, and keeps the no-dial list.
    fn note(&self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => {}
            Err(Error::Joined(peer)) => tracing::info!(%peer, "a peer joined the mesh"),
            Err(Error::RefusedPeer { peer, refusal, cause }) => {
                tracing::info!(%peer, cause, "refused a peer");
                self.members.note_refused(*peer, *refusal, Instant::now());
            }
            Err(Error::RefusedByPeer { peer, refusal }) => {
                // The node says once, and for all of them, that it was revoked.
                match refusal {
                    Refusal::Revoked => tracing::debug!(%peer, %refusal, "a peer refused this one"),
                    _ => tracing::warn!(%peer, %refusal, "a peer refused this one"),
                }
                self.members.note_refused_by(*peer, *refusal, Instant::now());
            }
            Err(error) => tracing::debug!(%error, "a connection was not admitted"),
        }
    }
}

/// What came of issuing, for the peer and for the log.
fn issued(
    peer: PeerId,
    issued: Result<Result<Chain, issuer::Error>, tokio::task::JoinError>,
) -> Result<Chain, (Refusal, String)> {
    match issued {
        Ok(Ok(chain)) => Ok(chain),
        Ok(Err(error)) => {
            if !matches!(error, issuer::Error::Refused(_)) {
                tracing::error!(%peer, %error, "a peer that may join got no certificate");
            }
            Err((error.refusal(), error.to_string()))
        }
        Err(error) => Err((Refusal::Internal, error.to_string())),
    }
}

/// Answers who wants to join. The connection ends either way.
async fn welcome(peer: PeerId, mut stream: SubstreamBox, outcome: Result<Chain, (Refusal, String)>) -> Error {
    let (reply, outcome) = match outcome {
        Ok(chain) => (Reply::Joined(chain), Error::Joined(peer)),
        Err((refusal, cause)) => (Reply::Refused(refusal), Error::RefusedPeer { peer, refusal, cause }),
    };
    match say_last(&mut stream, &reply).await {
        Ok(()) => outcome,
        Err(error) => error,
    }
}

async fn say_last<T: serde::Serialize>(stream: &mut SubstreamBox, message: &T) -> Result<(), Error> {
    wire::write(stream, message).await?;
    wire::close(stream).await
}

async fn within<T>(deadline: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(deadline, work).await.unwrap_or(Err(Error::Deadline(deadline)))
}

/// Lets the other side read what was said last. It hangs up when it has; dropping the connection before would take the
/// message along.
pub(crate) async fn linger(muxer: &mut StreamMuxerBox) {
    let _ = tokio::time::timeout(LINGER, wire::closed(muxer)).await;
}

/// Asks the issuer at the other end of a connection for a certificate.
pub(crate) async fn request_join(peer: PeerId, muxer: &mut StreamMuxerBox, request: Hello) -> Result<Chain, Error> {
    let mut stream = wire::open(muxer).await?;
    wire::drive(muxer, async move {
        wire::write(&mut stream, &request).await?;
        match wire::read(&mut stream).await? {
            Reply::Joined(chain) => Ok(chain),
            Reply::Refused(refusal) => Err(Error::RefusedByPeer { peer, refusal }),
            Reply::Member(_) => Err(Error::Unexpected(peer)),
        }
    })
    .await?
}

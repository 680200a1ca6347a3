//! Joining a mesh: with an invitation, asking the issuer that it names, or as a pod, asking an orchestrator; once, over any
//! of their addresses.

use crate::{admission, clock, transport};
use dunlin_protocol::{
    certificate::{self, Chain, Membership},
    hello::{Hello, PodRequest, Refusal},
    id::{MeshId, Name, PeerId},
    invitation::{self, Token},
};
use futures::{StreamExt, stream::FuturesUnordered};
use libp2p::{
    Multiaddr, Transport,
    core::{
        Endpoint,
        transport::{DialOpts, PortUse},
    },
    identity::Keypair,
    multiaddr::Protocol,
};
use std::{fmt, io, time::Duration};

/// From the first dial to the certificate.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// Why nobody joined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a token, or a damaged one.
    #[error(transparent)]
    Token(#[from] invitation::Error),
    /// Made without addresses.
    #[error("the invitation names no address of its issuer; make a new one on a node that is running")]
    NoAddress,
    /// An orchestrator's address without its peer id could be anybody's.
    #[error("the orchestrator's address {0} has to end with /p2p/PEER_ID")]
    NoPeer(Multiaddr),
    /// Nobody answered.
    #[error("the issuer {issuer} was not reached; is it running, and can this machine connect to it?{attempts}")]
    Unreachable {
        /// The issuer.
        issuer: PeerId,
        /// What happened at each address.
        attempts: Attempts,
    },
    /// The issuer said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The issuer answered with a certificate that does not hold for this peer: its clock or its key is wrong.
    #[error("the issuer's certificate does not hold: {0}")]
    Certificate(#[from] certificate::Error),
    /// No transport could be made.
    #[error(transparent)]
    Transport(#[from] transport::Error),
}

/// What happened at each address, one line each when displayed.
#[derive(Debug, Default)]
pub struct Attempts(pub Vec<(Multiaddr, String)>);

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(address, error)| write!(f, "\n  {address}: {error}"))
    }
}

/// Redeems `token` for the peer of `keypair`. All addresses are tried at the same time; the issuer answers the same peer
/// with the same certificate however often it asks. Nothing is stored here.
///
/// # Errors
/// Says whether the issuer was not reached, or why it refused.
pub async fn join(token: &Token, keypair: &Keypair, name: Option<Name>) -> Result<(Chain, Membership), Error> {
    join_within(token, keypair, name, DEADLINE).await
}

/// [`join`] with another deadline.
///
/// # Errors
/// As [`join`].
pub async fn join_within(
    token: &Token,
    keypair: &Keypair,
    name: Option<Name>,
    deadline: Duration,
) -> Result<(Chain, Membership), Error> {
    let invitation = token.invitation()?;
    if token.addresses().is_empty() {
        return Err(Error::NoAddress);
    }
    let request = Hello::Join(token.request(keypair.public().to_peer_id(), name)?);
    let places: Vec<_> = token.addresses().iter().map(|address| (address.clone(), invitation.issuer)).collect();
    ask(&places, &request, &invitation.mesh, keypair, deadline).await
}

/// Joins `mesh` as a pod, with the token that its kubelet gave it for that, for the peer of `keypair`. `orchestrators` end with
/// `/p2p`: what answers there otherwise sees no token. Nothing is stored here.
///
/// # Errors
/// Says whether no orchestrator was reached, or why one refused.
pub async fn join_as_pod(
    mesh: MeshId,
    token: &str,
    orchestrators: &[Multiaddr],
    keypair: &Keypair,
    deadline: Duration,
) -> Result<(Chain, Membership), Error> {
    let place = |address: &Multiaddr| match address.iter().last() {
        Some(Protocol::P2p(peer)) => Ok((address.clone(), peer)),
        _ => Err(Error::NoPeer(address.clone())),
    };
    let places = orchestrators.iter().map(place).collect::<Result<Vec<_>, _>>()?;
    if places.is_empty() {
        return Err(Error::NoAddress);
    }
    let request = Hello::Pod(PodRequest { mesh, token: token.to_owned() });
    ask(&places, &request, &mesh, keypair, deadline).await
}

/// Asks at all places at once; the first answer counts.
async fn ask(
    places: &[(Multiaddr, PeerId)],
    request: &Hello,
    mesh: &MeshId,
    keypair: &Keypair,
    deadline: Duration,
) -> Result<(Chain, Membership), Error> {
    let mut transport = transport::secured(keypair)?;
    let mut failed = Attempts::default();
    let mut attempts = FuturesUnordered::new();
    for (address, issuer) in places {
        match transport.dial(without_peer(address), DialOpts { role: Endpoint::Dialer, port_use: PortUse::New }) {
            Ok(dialled) => attempts.push(attempt(address.clone(), dialled, *issuer, request.clone(), deadline)),
            Err(error) => failed.0.push((address.clone(), error.to_string())),
        }
    }
    let mut refused = None;
    while let Some((address, answer)) = attempts.next().await {
        match answer {
            Ok(chain) => {
                let membership = chain.verify(clock::unix_s(), mesh)?;
                if membership.peer != keypair.public().to_peer_id() {
                    return Err(certificate::Error::WrongSubject(membership.peer).into());
                }
                return Ok((chain, membership));
            }
            Err(Failure::Admission(admission::Error::RefusedByPeer { refusal, .. })) => {
                if refusal.is_lasting() {
                    return Err(Error::Refused(refusal));
                }
                // Of several orchestrators, one may know better.
                refused = Some(refusal);
            }
            Err(other) => failed.0.push((address, other.to_string())),
        }
    }
    match (refused, places.first()) {
        (Some(refusal), _) => Err(Error::Refused(refusal)),
        (None, Some((_, issuer))) => Err(Error::Unreachable { issuer: *issuer, attempts: failed }),
        (None, None) => Err(Error::NoAddress),
    }
}

/// Why one address gave nothing.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Dial(#[from] io::Error),
    #[error(transparent)]
    Admission(#[from] admission::Error),
    #[error("another peer answers there ({0})")]
    AnotherPeer(PeerId),
    #[error("no answer within {0:?}")]
    Deadline(Duration),
}

/// Dials one address and asks there.
async fn attempt(
    address: Multiaddr,
    dialled: impl Future<Output = io::Result<transport::Connection>>,
    issuer: PeerId,
    request: Hello,
    deadline: Duration,
) -> (Multiaddr, Result<Chain, Failure>) {
    let asked = async {
        let (peer, mut muxer) = dialled.await?;
        if peer != issuer {
            return Err(Failure::AnotherPeer(peer));
        }
        Ok(admission::request_join(peer, &mut muxer, request).await?)
    };
    let answer = tokio::time::timeout(deadline, asked).await.unwrap_or(Err(Failure::Deadline(deadline)));
    (address, answer)
}

/// Without the `/p2p` part at its end, which is checked after the handshake anyway.
fn without_peer(address: &Multiaddr) -> Multiaddr {
    address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
}

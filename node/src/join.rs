//! Joining a mesh with an invitation: asks the issuer that the token names, once, over any of its addresses.

use crate::{admission, clock, transport};
use dunlin_protocol::{
    certificate::{self, Chain, Membership},
    hello::Refusal,
    id::{Name, PeerId},
    invitation::{self, JoinRequest, Token},
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
    let mut transport = transport::secured(keypair)?;
    let issuer = invitation.issuer;
    let mut failed = Attempts::default();
    let mut attempts = FuturesUnordered::new();
    for address in token.addresses() {
        let request = token.request(keypair.public().to_peer_id(), name.clone())?;
        match transport.dial(without_peer(address), DialOpts { role: Endpoint::Dialer, port_use: PortUse::New }) {
            Ok(dialled) => attempts.push(attempt(address.clone(), dialled, issuer, request, deadline)),
            Err(error) => failed.0.push((address.clone(), error.to_string())),
        }
    }
    while let Some((address, answer)) = attempts.next().await {
        match answer {
            Ok(chain) => {
                let membership = chain.verify(clock::unix_s(), &invitation.mesh)?;
                if membership.peer != keypair.public().to_peer_id() {
                    return Err(certificate::Error::WrongSubject(membership.peer).into());
                }
                return Ok((chain, membership));
            }
            Err(Failure::Admission(admission::Error::RefusedByPeer { refusal, .. })) => {
                return Err(Error::Refused(refusal));
            }
            Err(other) => failed.0.push((address, other.to_string())),
        }
    }
    Err(Error::Unreachable { issuer, attempts: failed })
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
    request: JoinRequest,
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

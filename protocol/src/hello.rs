//! The first words on every connection, before it becomes one: who are you, and who says so.
//!
//! The opener sends a [`Hello`]; the other side answers with a [`Reply`], which names it only if it accepted; the opener
//! ends with a [`Verdict`]. Noise or TLS has proved both peer ids before, so none of this needs a signature of its own.
//! Each message is a frame: [`MAGIC`], the length of the body, the body.

use crate::{
    certificate::{self, Chain},
    codec, delegation,
    id::MeshId,
    invitation::JoinRequest,
    limits,
    revocation::ListVersion,
    signed,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;

/// Starts each frame: tells members from other libp2p peers at the first read. The digit is the version.
pub const MAGIC: [u8; 8] = *b"dunlin/1";
const MAGIC_OF_ANY_VERSION: &[u8] = b"dunlin/";
/// Bytes in front of a body.
pub const HEADER_BYTES: usize = MAGIC.len() + 4;

/// A member's papers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Papers {
    /// Its certificate, with what leads to it.
    pub chain: Chain,
    /// Names the revocation list that it has.
    pub revocations: ListVersion,
}

/// From the opener.
// Lives for one read; boxing the larger variant would gain nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// I am a member.
    Member(Papers),
    /// I was invited. Answered, then the connection is closed.
    Join(JoinRequest),
    /// I am a pod. Answered, then the connection is closed.
    Pod(PodRequest),
}

/// A pod's request to become a member: the token that its kubelet gave it for this mesh.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRequest {
    /// The mesh that it means.
    pub mesh: MeshId,
    /// A ServiceAccount token. At most [`limits::POD_TOKEN_BYTES`].
    pub token: String,
}

/// Whoever has the token may come with it.
impl fmt::Debug for PodRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodRequest").field("mesh", &self.mesh).finish_non_exhaustive()
    }
}

/// The audience of the tokens with which pods join a mesh, so that those for anything else are of no use here, nor these
/// elsewhere.
#[must_use]
pub fn pod_audience(mesh: &MeshId) -> String {
    format!("dunlin.dev/{mesh}")
}

/// To the opener.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// You are let in, and here is who I am.
    Member(Papers),
    /// Here is your certificate.
    Joined(Chain),
    /// No.
    Refused(Refusal),
}

/// From the opener, last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// You are let in as well.
    Admitted,
    /// No.
    Refused(Refusal),
}

/// Why somebody was not let in. Short, and the same for everybody: tells a stranger nothing about the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Not the protocol's messages.
    #[error("the other side did not understand the message")]
    Malformed,
    /// Another version of this protocol.
    #[error("the other side runs another version of dunlin")]
    UnknownVersion,
    /// The certificate is of another mesh.
    #[error("the other side belongs to another mesh")]
    WrongMesh,
    /// The certificate names another peer.
    #[error("the certificate belongs to another peer")]
    WrongPeer,
    /// The certificate has expired.
    #[error("the certificate has expired; join again with a new invitation")]
    Expired,
    /// The certificate was revoked.
    #[error("the membership was revoked; join again with a new invitation")]
    Revoked,
    /// A signature, a right or a bound does not hold.
    #[error("the certificate is not valid")]
    Invalid,
    /// Asked to redeem an invitation, but issues nothing.
    #[error(
        "the other side issues no invitations, or no longer; ask for one on a machine that may issue: where the mesh was created, or a delegate"
    )]
    NotAnIssuer,
    /// The invitation is not one of this issuer's.
    #[error("the issuer does not know this invitation")]
    InvitationUnknown,
    /// The invitation has expired.
    #[error("the invitation has expired; ask for a new one")]
    InvitationExpired,
    /// As many peers as were invited have joined.
    #[error("the invitation has been used up; ask for a new one")]
    InvitationUsedUp,
    /// The invitation was withdrawn.
    #[error("the invitation was withdrawn; ask for a new one")]
    InvitationWithdrawn,
    /// The other side failed.
    #[error("the other side could not answer; its log says why")]
    Internal,
    /// The other side has too much to do.
    #[error("the other side has too much to do; it may be asked again")]
    Busy,
    /// Asked to admit a pod, but knows none.
    #[error("the other side admits no pods: it is no orchestrator, or not the one in charge")]
    NoPods,
    /// The token is not good, or for something else.
    #[error("the pod's token is not accepted: it is not for this mesh, or its pod has gone")]
    TokenRefused,
    /// The pod is nobody's replica, proxy or relay.
    #[error("the orchestrator has no such pod on record, or not yet")]
    PodUnknown,
    /// Another peer has joined as this pod.
    #[error("another peer speaks for this pod already")]
    PodTaken,
    /// The pod may not be what it is to be.
    #[error("the orchestrator may not give this pod its roles or models; its delegation is narrower")]
    NotAllowed,
}

impl Refusal {
    /// Whether asking again soon is useless.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        !matches!(self, Self::Internal | Self::Busy | Self::NoPods | Self::PodUnknown)
    }
}

impl From<&certificate::Error> for Refusal {
    fn from(error: &certificate::Error) -> Self {
        match error {
            certificate::Error::WrongMesh(_) | certificate::Error::Delegation(delegation::Error::WrongMesh(_)) => {
                Self::WrongMesh
            }
            certificate::Error::Expired { .. } => Self::Expired,
            certificate::Error::WrongSubject(_) => Self::WrongPeer,
            certificate::Error::Signed(signed::Error::Codec(_)) => Self::Malformed,
            _ => Self::Invalid,
        }
    }
}

/// Why bytes are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a member's first words.
    #[error("not a dunlin peer")]
    NotDunlin,
    /// A dunlin of another version.
    #[error("another version of dunlin")]
    UnknownVersion,
    /// Too large, or malformed.
    #[error(transparent)]
    Codec(#[from] codec::Error),
}

impl Error {
    /// What to answer; `None` for who would not understand it.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::NotDunlin => None,
            Self::UnknownVersion => Some(Refusal::UnknownVersion),
            Self::Codec(_) => Some(Refusal::Malformed),
        }
    }
}

/// A whole frame around `message`.
///
/// # Errors
/// Over [`limits::HELLO_BYTES`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    let body = codec::encode(message, limits::HELLO_BYTES)?;
    let size = u32::try_from(body.len())
        .map_err(|_| codec::Error::TooLarge { size: body.len(), limit: limits::HELLO_BYTES })?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&size.to_be_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Length of the body behind `header`, checked before any of it is read.
///
/// # Errors
/// Not a frame of this version, or over [`limits::HELLO_BYTES`].
pub fn body_length(header: &[u8; HEADER_BYTES]) -> Result<usize, Error> {
    let (magic, length) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        let of_dunlin = magic.starts_with(MAGIC_OF_ANY_VERSION);
        return Err(if of_dunlin { Error::UnknownVersion } else { Error::NotDunlin });
    }
    let length = length.iter().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte));
    if length > limits::HELLO_BYTES {
        return Err(codec::Error::TooLarge { size: length, limit: limits::HELLO_BYTES }.into());
    }
    Ok(length)
}

/// The message in the body of a frame.
///
/// # Errors
/// Malformed.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    Ok(codec::decode(body, limits::HELLO_BYTES)?)
}

#[cfg(test)]
mod tests;

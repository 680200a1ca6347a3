//! Invitations: one token that lets somebody join.
//!
//! The token holds an Ed25519 seed whose public half the issuer has signed together with what the invitation gives.
//! The seed never travels: the joiner proves to know it by signing its own peer id and the issuer's, so that neither
//! the issuer's host nor anybody between learns something that could be used again.

use crate::{
    certificate::{BoundsError, check_bounds},
    codec,
    id::{MeshId, Name, PeerId, Roles},
    limits,
    pattern::Models,
    signed::{self, Signed, Statement},
};
use data_encoding::BASE32_NOPAD;
use libp2p_identity::{Keypair, PublicKey, ed25519};
use multiaddr::Multiaddr;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// What every printed token starts with; the digit is the version of the format.
pub const PREFIX: &str = "dunlin1";
const ANY_VERSION_PREFIX: &str = "dunlin";
/// Big-endian length of the body, in front of it.
const LENGTH_BYTES: usize = 2;
/// Head of the body's SHA-256, behind it.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// What an invitation gives, and to how many. Signed by the mesh key or by a delegated issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// The mesh.
    pub mesh: MeshId,
    /// The peer that redeems it, and counts.
    pub issuer: PeerId,
    /// Public half of the token's seed: the invitation's name.
    pub key: [u8; 32],
    /// Roles of the members-to-be.
    pub roles: Roles,
    /// Models that they may serve.
    pub models: Models,
    /// Unix seconds by the issuer's clock, which alone judges it.
    pub not_after: u64,
    /// How many peers may join with it.
    pub uses: u32,
}

impl Statement for Invitation {
    const DOMAIN: &'static str = "/dunlin/invitation/1";
    const LIMIT: usize = limits::DELEGATION_BYTES - 80;
}

/// Shows knowledge of the token's seed, for this joiner and this issuer only. Signed with the seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinProof {
    /// Who wants to join.
    pub joiner: PeerId,
    /// Whom it asks.
    pub issuer: PeerId,
}

impl Statement for JoinProof {
    const DOMAIN: &'static str = "/dunlin/join/1";
    const LIMIT: usize = 160;
}

/// What a joiner sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The invitation, as in the token.
    pub invitation: Signed<Invitation>,
    /// Knowledge of its seed.
    pub proof: Signed<JoinProof>,
    /// The display name that the joiner would like.
    pub name: Option<Name>,
}

/// Why a text is not a token, or a request to join is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No token at all.
    #[error("this is not an invitation: one starts with {PREFIX}")]
    NotAToken,
    /// Of a format that this version does not know.
    #[error("this invitation was made by another version of dunlin; update the older side")]
    UnknownVersion,
    /// The end is missing.
    #[error("the invitation is cut off: {have} of its {want} characters are there; copy it whole")]
    Truncated {
        /// Characters given, without the prefix.
        have: usize,
        /// Characters that it should have.
        want: usize,
    },
    /// Longer than it says: two tokens, or text pasted behind it.
    #[error(
        "something follows the invitation: it has {want} characters, and {have} are there; copy only the invitation"
    )]
    TooLong {
        /// Characters given, without the prefix.
        have: usize,
        /// Characters that it should have.
        want: usize,
    },
    /// A character was changed.
    #[error("the invitation is damaged (a character was changed or is missing); copy it again")]
    Damaged,
    /// Bad signature or encoding.
    #[error("the invitation is not valid: {0}")]
    Signed(#[from] signed::Error),
    /// Lists that are too long.
    #[error("the invitation is not valid: {0}")]
    Bounds(#[from] BoundsError),
    /// More addresses than allowed.
    #[error("an invitation with {0} addresses; at most {max} are allowed", max = limits::INVITATION_ADDRESSES)]
    TooManyAddresses(usize),
    /// The parts of the token, or of a request, do not belong together.
    #[error("the invitation's parts do not belong together")]
    Mismatch,
}

impl From<codec::Error> for Error {
    fn from(error: codec::Error) -> Self {
        Self::Signed(error.into())
    }
}

/// An invitation with the seed that gives the right to use it. Whoever sees it can join: `Debug` shows no seed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    addresses: Vec<Multiaddr>,
    seed: [u8; 32],
    invitation: Signed<Invitation>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The key pair of a token's seed.
fn seed_key(seed: &[u8; 32]) -> Result<Keypair, Error> {
    let mut seed = *seed;
    Keypair::ed25519_from_bytes(&mut seed).map_err(|_| Error::Mismatch)
}

/// Public half of a seed, for [`Invitation::key`].
///
/// # Errors
/// Never for 32 bytes.
pub fn public_half(seed: &[u8; 32]) -> Result<[u8; 32], Error> {
    let key = seed_key(seed)?.public().try_into_ed25519().map_err(|_| Error::Mismatch)?;
    Ok(key.to_bytes())
}

impl Token {
    /// Puts a token together and checks it as its reader will.
    ///
    /// # Errors
    /// Parts that do not belong together, or too much of something.
    pub fn new(seed: [u8; 32], invitation: Signed<Invitation>, addresses: Vec<Multiaddr>) -> Result<Self, Error> {
        let token = Self { addresses, seed, invitation };
        token.check()?;
        Ok(token)
    }

    fn check(&self) -> Result<(), Error> {
        if self.addresses.len() > limits::INVITATION_ADDRESSES {
            return Err(Error::TooManyAddresses(self.addresses.len()));
        }
        let claimed = self.invitation.peek()?;
        let by_mesh = signed::mesh_key(&claimed.mesh).and_then(|key| self.invitation.verify(&key));
        if by_mesh.is_err() {
            self.invitation.verify(&signed::public_key(&claimed.issuer)?)?;
        }
        check_bounds(&claimed.models, &[])?;
        if public_half(&self.seed)? != claimed.key {
            return Err(Error::Mismatch);
        }
        Ok(())
    }

    /// The invitation.
    ///
    /// # Errors
    /// Never for a token that was made or parsed.
    pub fn invitation(&self) -> Result<Invitation, Error> {
        Ok(self.invitation.peek()?)
    }

    /// Where the issuer may be reached.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// The request of `joiner`.
    ///
    /// # Errors
    /// Never for a token that was made or parsed.
    pub fn request(&self, joiner: PeerId, name: Option<Name>) -> Result<JoinRequest, Error> {
        let proof = JoinProof { joiner, issuer: self.invitation()?.issuer };
        Ok(JoinRequest {
            invitation: self.invitation.clone(),
            proof: Signed::sign(&proof, &seed_key(&self.seed)?)?,
            name,
        })
    }

    /// The printed form: [`PREFIX`] and lower-case base32, so that mail, chat and shells leave it alone.
    ///
    /// # Errors
    /// Over [`limits::TOKEN_CHARS`].
    pub fn to_text(&self) -> Result<String, Error> {
        let too_large = |size| Error::from(codec::Error::TooLarge { size, limit: limits::TOKEN_CHARS });
        let body = codec::encode(self, limits::TOKEN_CHARS / 2)?;
        let length = u16::try_from(body.len()).map_err(|_| too_large(body.len()))?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&checksum(&body));
        Ok(PREFIX.to_owned() + &BASE32_NOPAD.encode(&bytes).to_lowercase())
    }

    /// Reads a pasted token. White space, quotes, and line-continuation characters anywhere are skipped, case is not
    /// looked at.
    ///
    /// # Errors
    /// Says whether it is no token, cut off, damaged, or not valid.
    pub fn parse(text: &str) -> Result<Self, Error> {
        // Ten times the longest token leaves room for any amount of wrapping.
        if text.len() > limits::TOKEN_CHARS * 10 {
            return Err(Error::NotAToken);
        }
        let clean: String = text.chars().filter(|&c| !is_pasted_noise(c)).map(|c| c.to_ascii_lowercase()).collect();
        let Some(encoded) = clean.strip_prefix(PREFIX) else {
            let other = clean
                .strip_prefix(ANY_VERSION_PREFIX)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            return Err(if other { Error::UnknownVersion } else { Error::NotAToken });
        };
        let encoded = encoded.to_ascii_uppercase();
        let token: Self = codec::decode(&decode_body(&encoded)?, limits::TOKEN_CHARS / 2)?;
        token.check()?;
        Ok(token)
    }
}

pub(crate) fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest: [u8; 32] = Sha256::digest(body).into();
    std::array::from_fn(|i| digest[i])
}

/// What mail programs, chats, shells and word processors put around or into a token.
pub(crate) fn is_pasted_noise(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c, '"' | '\'' | '`' | '\\' | '<' | '>' | '\u{2018}'..='\u{201f}' | '\u{200b}'..='\u{200d}' | '\u{feff}' | '\u{ab}' | '\u{bb}')
}

/// The body between length and checksum.
fn decode_body(encoded: &str) -> Result<Vec<u8>, Error> {
    // Four characters carry 20 bits: the length is readable however short the rest is.
    let head = encoded.get(..4).ok_or(Error::Truncated { have: encoded.len(), want: 4 })?;
    let mut length = 0_usize;
    for c in head.bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'2'..=b'7' => c - b'2' + 26,
            _ => return Err(Error::Damaged),
        };
        length = length << 5 | usize::from(digit);
    }
    let length = length >> 4;
    let want = BASE32_NOPAD.encode_len(LENGTH_BYTES + length + CHECKSUM_BYTES);
    let have = encoded.chars().count();
    if want > limits::TOKEN_CHARS {
        return Err(Error::Damaged);
    }
    match have {
        _ if have < want => return Err(Error::Truncated { have, want }),
        _ if have > want => return Err(Error::TooLong { have, want }),
        _ => {}
    }
    let bytes = BASE32_NOPAD.decode(encoded.as_bytes()).map_err(|_| Error::Damaged)?;
    let (body, sum) = bytes[LENGTH_BYTES..].split_at(length);
    if sum != checksum(body) {
        return Err(Error::Damaged);
    }
    Ok(body.to_vec())
}

impl JoinRequest {
    /// The invitation, if `signer` (the issuer's signing key) made it, `issuer` is the one to redeem it, and `joiner`
    /// knows its seed. Expiry and uses are the issuer's to judge.
    ///
    /// # Errors
    /// Any of it does not hold.
    pub fn verify(&self, joiner: &PeerId, issuer: &PeerId, signer: &PublicKey) -> Result<Invitation, Error> {
        let invitation = self.invitation.verify(signer)?;
        check_bounds(&invitation.models, &[])?;
        let key = ed25519::PublicKey::try_from_bytes(&invitation.key).map_err(|_| Error::Mismatch)?;
        let proof = self.proof.verify(&key.into())?;
        if proof.joiner != *joiner || proof.issuer != *issuer || invitation.issuer != *issuer {
            return Err(Error::Mismatch);
        }
        Ok(invitation)
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! A statement and the Ed25519 signature of the peer that makes it.
//!
//! The bytes that were signed travel as they are and are verified before they are decoded, so that no second encoding
//! can differ from the first.

use crate::{
    codec,
    id::{MeshId, PeerId},
};
use libp2p_identity::{Keypair, PublicKey, ed25519};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::marker::PhantomData;

/// Says which kind of statement was signed, so that one kind can never be passed off as another.
pub trait Statement: Serialize + DeserializeOwned {
    /// Domain separation, with a version.
    const DOMAIN: &'static str;
    /// Largest encoding of the statement itself, bytes.
    const LIMIT: usize;
}

/// Why a signed statement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The statement could not be read.
    #[error(transparent)]
    Codec(#[from] codec::Error),
    /// The signature is not the signer's over this statement.
    #[error("the signature does not match")]
    Signature,
    /// The peer id does not contain an Ed25519 public key.
    #[error("peer {0} has no Ed25519 key in its id")]
    NoKey(PeerId),
    /// The mesh id is not an Ed25519 public key.
    #[error("mesh id {0} is not an Ed25519 public key")]
    MeshKey(MeshId),
}

/// The bytes of a `T` and a signature over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed<T> {
    payload: Vec<u8>,
    signature: Vec<u8>,
    #[serde(skip)]
    kind: PhantomData<fn() -> T>,
}

fn message(domain: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(domain.len() + 1 + payload.len());
    message.extend_from_slice(domain.as_bytes());
    message.push(0);
    message.extend_from_slice(payload);
    message
}

/// The Ed25519 key inside a peer id (identity multihash: peers of a mesh all have such ids).
///
/// # Errors
/// [`Error::NoKey`] for hashed ids and other key types.
pub fn public_key(peer: &PeerId) -> Result<PublicKey, Error> {
    let hash = peer.as_ref();
    // Code 0 is the identity hash: the digest is the key itself, in its protobuf form.
    if hash.code() != 0 {
        return Err(Error::NoKey(*peer));
    }
    let key = PublicKey::try_decode_protobuf(hash.digest()).map_err(|_| Error::NoKey(*peer))?;
    match key.clone().try_into_ed25519() {
        Ok(_) => Ok(key),
        Err(_) => Err(Error::NoKey(*peer)),
    }
}

/// The key whose public half is the mesh's id.
///
/// # Errors
/// [`Error::MeshKey`] when the id is no point of the curve.
pub fn mesh_key(mesh: &MeshId) -> Result<PublicKey, Error> {
    ed25519::PublicKey::try_from_bytes(&mesh.0).map(PublicKey::from).map_err(|_| Error::MeshKey(*mesh))
}

impl<T: Statement> Signed<T> {
    /// Signs `statement` with an Ed25519 `key`.
    ///
    /// # Errors
    /// The statement is over its limit, or the key cannot sign.
    pub fn sign(statement: &T, key: &Keypair) -> Result<Self, Error> {
        let payload = codec::encode(statement, T::LIMIT)?;
        let signature = key.sign(&message(T::DOMAIN, &payload)).map_err(|_| Error::Signature)?;
        Ok(Self { payload, signature, kind: PhantomData })
    }

    /// The statement, if `key` signed it.
    ///
    /// # Errors
    /// Wrong signature, or not a well-formed `T`.
    pub fn verify(&self, key: &PublicKey) -> Result<T, Error> {
        if !key.verify(&message(T::DOMAIN, &self.payload), &self.signature) {
            return Err(Error::Signature);
        }
        self.peek()
    }

    /// An order over signed statements that means nothing and is the same everywhere.
    pub(crate) fn rank(&self) -> impl Ord + '_ {
        (&self.payload, &self.signature)
    }

    /// The statement with its signature unchecked: only to learn who should have signed it.
    ///
    /// # Errors
    /// Not a well-formed `T`.
    pub fn peek(&self) -> Result<T, Error> {
        Ok(codec::decode(&self.payload, T::LIMIT)?)
    }
}

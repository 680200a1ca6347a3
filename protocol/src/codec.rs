//! The one place that encodes and decodes what travels between peers.
//!
//! bincode 1.3.3, fixed-width integers, little endian, a size limit for each kind of message, trailing bytes refused.
//! The format does not describe itself: fields are only ever appended under a new version of the enclosing enum.

use bincode::Options;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Why bytes could not be decoded, or a value not encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More bytes than this kind of message may have.
    #[error("message of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The bytes are not such a message.
    #[error("malformed message: {0}")]
    Malformed(String),
}

fn options(limit: usize) -> impl Options {
    bincode::DefaultOptions::new().with_fixint_encoding().with_limit(limit as u64)
}

/// Encodes `value` into at most `limit` bytes.
///
/// # Errors
/// [`Error::TooLarge`] when it does not fit.
pub fn encode<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, Error> {
    match options(limit).serialize(value) {
        Ok(bytes) => Ok(bytes),
        Err(error) => match *error {
            bincode::ErrorKind::SizeLimit => {
                let size = options(usize::MAX).serialized_size(value).unwrap_or(u64::MAX);
                Err(Error::TooLarge { size: usize::try_from(size).unwrap_or(usize::MAX), limit })
            }
            other => Err(Error::Malformed(other.to_string())),
        },
    }
}

/// Decodes a whole message of at most `limit` bytes.
///
/// # Errors
/// [`Error::TooLarge`] before anything is read, [`Error::Malformed`] for anything that is not exactly one `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, Error> {
    if bytes.len() > limit {
        return Err(Error::TooLarge { size: bytes.len(), limit });
    }
    options(limit).deserialize(bytes).map_err(|error| Error::Malformed(error.to_string()))
}

/// A kind of message of which there is one version so far. A second one is appended, in an enum of the message's own.
#[derive(Serialize, Deserialize)]
enum Versioned<T> {
    V1(T),
}

/// [`encode`] for a kind of message of which there is one version so far.
///
/// # Errors
/// As [`encode`].
pub fn encode_v1<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, Error> {
    encode(&Versioned::V1(value), limit)
}

/// [`decode`] for a kind of message of which there is one version so far: another is refused as malformed.
///
/// # Errors
/// As [`decode`].
pub fn decode_v1<T: DeserializeOwned>(bytes: &[u8], limit: usize) -> Result<T, Error> {
    let Versioned::V1(value) = decode(bytes, limit)?;
    Ok(value)
}

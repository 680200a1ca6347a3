//! The text of a key, and how it is checked.

use super::Error;
use dunlin_protocol::key::KeyKind;
use rand::TryRng;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const PREFIX: &str = "sk-dunlin-";
/// What opens the admin API looks different, so that nobody gives it to a client by mistake.
const ADMIN_PREFIX: &str = "admin-dunlin-";
const ID_BYTES: usize = 5;
const SECRET_BYTES: usize = 32;
/// Longest text that is looked at.
const LONGEST: usize = 128;

/// A key's two parts, in base32: letters and digits only, so that a double click selects each whole.
pub(super) struct Token {
    /// Says which key it is.
    pub(super) id: String,
    secret: String,
    prefix: &'static str,
}

impl Token {
    /// A new key from the system's randomness.
    pub(super) fn random(kind: KeyKind) -> Result<Self, Error> {
        let mut bytes = [0; ID_BYTES + SECRET_BYTES];
        rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
        let (id, secret) = bytes.split_at(ID_BYTES);
        let prefix = match kind {
            KeyKind::Client => PREFIX,
            KeyKind::Admin => ADMIN_PREFIX,
        };
        Ok(Self { id: base32(id), secret: base32(secret), prefix })
    }

    /// What is kept.
    pub(super) fn digest(&self) -> [u8; 32] {
        digest(&self.secret)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}-{}", self.prefix, self.id, self.secret)
    }
}

/// Id and secret of a key's text.
pub(super) fn parse(key: &str) -> Option<(&str, &str)> {
    let key = key.trim();
    if key.len() > LONGEST {
        return None;
    }
    key.strip_prefix(PREFIX).or_else(|| key.strip_prefix(ADMIN_PREFIX))?.split_once('-')
}

/// Whether `secret` has this digest, in a time that doesn't depend on how much of it is right.
pub(super) fn matches(secret: &str, kept: &[u8; 32]) -> bool {
    digest(secret).ct_eq(kept).into()
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::with_capacity(bytes.len() * 8 / 5 + 1);
    let (mut buffer, mut bits) = (0u32, 0);
    for &byte in bytes {
        buffer = (buffer << 8) | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(ALPHABET[(buffer >> bits) as usize & 31].into());
        }
        buffer &= 0xff;
    }
    if bits > 0 {
        text.push(ALPHABET[(buffer << (5 - bits)) as usize & 31].into());
    }
    text
}

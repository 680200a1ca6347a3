//! Statements about who may use the endpoints of a mesh: keys, the tenants that they belong to, and what models cost.
//!
//! Whoever may keep keys ([`Membership::keeps_keys`]) signs them; every proxy takes them in, in any order and from
//! anybody, since each carries its signer's certificate. They are versioned, and a key that was revoked stays so.

use crate::{
    certificate::{self, BoundsError, Chain, Membership, check_bounds},
    codec,
    id::{MeshId, PeerId},
    limits,
    pattern::Models,
    signed::{self, Signed, Statement},
};
use libp2p_identity::Keypair;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::cmp::Ordering;

/// Parts into which all statements fall by the hash of what they are about, so that two sides find what differs.
pub const BUCKETS: usize = 256;

/// What a key opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// The endpoint.
    #[default]
    Client,
    /// The admin API, and nothing else.
    Admin,
}

/// How much one key may use, over all proxies together. `None`: as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests in any 60 seconds.
    pub requests_per_minute: Option<u32>,
    /// Tokens, of prompts and answers, in any 60 seconds.
    pub tokens_per_minute: Option<u32>,
    /// Requests at the same time.
    pub concurrent_requests: Option<u32>,
    /// Tokens in a calendar month, UTC.
    pub monthly_tokens: Option<u64>,
    /// Millionths of whatever prices are in, in a calendar month, UTC.
    pub monthly_cost_micros: Option<u64>,
}

/// A key, but for its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Names it; a part of its text.
    pub id: String,
    /// What it opens.
    pub kind: KeyKind,
    /// SHA-256 of the secret.
    pub digest: [u8; 32],
    /// For people.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// Models that may be asked for, by the names that clients use.
    pub models: Models,
    /// How much.
    pub limits: Limits,
    /// Who waits behind whom: higher goes first, 0 is usual.
    pub priority: i8,
    /// For people and their programs.
    pub tags: Vec<String>,
    /// When it was made, unix seconds.
    pub created: u64,
    /// From when on it opens nothing, unix seconds.
    pub expires: Option<u64>,
    /// When it was revoked, unix seconds.
    pub revoked: Option<u64>,
    /// Whether revoking it ends the answers that are under way.
    pub ends_streams: bool,
}

/// Whoever keys belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Names it.
    pub name: String,
    /// For people.
    pub note: String,
    /// The most that its keys may ask for.
    pub models: Models,
    /// When it was made, unix seconds.
    pub created: u64,
    /// Since when its keys open nothing, unix seconds. Can be taken back.
    pub suspended: Option<u64>,
    /// When it was removed, unix seconds: its keys never open anything again.
    pub removed: Option<u64>,
}

/// What models cost, in millionths of one unit of money for a million tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// A pattern over model names; of several that match, the longest counts.
    pub models: String,
    /// Of prompts.
    pub prompt_micros: u64,
    /// Of answers.
    pub completion_micros: u64,
    /// Of the part of prompts that came from a cache.
    pub cached_micros: u64,
    /// Taken away.
    pub removed: bool,
}

/// What a statement is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum About {
    /// A key.
    Key(Key),
    /// A tenant.
    Tenant(Tenant),
    /// A price.
    Price(Price),
}

impl About {
    /// Names what it is about among all statements.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Key(key) => format!("k/{}", key.id),
            Self::Tenant(tenant) => format!("t/{}", tenant.name),
            Self::Price(price) => format!("p/{}", price.models),
        }
    }

    /// Whether nothing can ever be said against it.
    fn is_final(&self) -> bool {
        match self {
            Self::Key(key) => key.revoked.is_some(),
            Self::Tenant(tenant) => tenant.removed.is_some(),
            Self::Price(_) => false,
        }
    }
}

/// One statement, whole: each replaces the one before about the same thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatement {
    /// The mesh.
    pub mesh: MeshId,
    /// Later replaces earlier; what is final replaces what is not, whatever the versions.
    pub version: u64,
    /// What is said.
    pub about: About,
}

impl Statement for KeyStatement {
    const DOMAIN: &'static str = "/dunlin/key/1";
    const LIMIT: usize = limits::KEY_STATEMENT_BYTES;
}

/// Why a statement was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad signature or encoding.
    #[error(transparent)]
    Signed(#[from] signed::Error),
    /// The signer's certificate does not hold.
    #[error("the signer's certificate: {0}")]
    Certificate(#[from] certificate::Error),
    /// The signer may not.
    #[error("peer {0} may not keep keys")]
    NotAllowed(PeerId),
    /// A statement of another mesh.
    #[error("statement of mesh {0}")]
    WrongMesh(MeshId),
    /// More or longer texts than allowed.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// Something that names nothing.
    #[error("{0} is empty, or holds characters that it may not")]
    Name(&'static str),
    /// Lists that are too long.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
}

impl From<codec::Error> for Error {
    fn from(error: codec::Error) -> Self {
        Self::Signed(error.into())
    }
}

impl KeyStatement {
    /// Whether every text and list is within its bounds.
    ///
    /// # Errors
    /// Says which is not.
    pub fn check(&self) -> Result<(), Error> {
        match &self.about {
            About::Key(key) => {
                is_word(&key.id, limits::KEY_ID_BYTES, "the id of a key")?;
                is_text(&key.name, limits::KEY_NAME_BYTES, "the name of a key")?;
                is_word(&key.tenant, limits::WORD_BYTES, "the name of a tenant")?;
                if key.tags.len() > limits::KEY_TAGS {
                    return Err(Error::TooLong("the list of tags"));
                }
                key.tags.iter().try_for_each(|tag| is_text(tag, limits::WORD_BYTES, "a tag"))?;
                Ok(check_bounds(&key.models, &[])?)
            }
            About::Tenant(tenant) => {
                is_word(&tenant.name, limits::WORD_BYTES, "the name of a tenant")?;
                is_text(&tenant.note, limits::KEY_NAME_BYTES, "the note of a tenant")?;
                Ok(check_bounds(&tenant.models, &[])?)
            }
            About::Price(price) if price.models.is_empty() => Err(Error::Name("the pattern of a price")),
            About::Price(price) => is_text(&price.models, limits::PATTERN_BYTES, "the pattern of a price"),
        }
    }

    /// Which of two statements about the same thing counts: the greater. The same on every machine.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        let rank = |of: &Self| (of.about.is_final(), of.version);
        // Two that were made at the same time: any order that all agree on.
        rank(self).cmp(&rank(other)).then_with(|| self.fingerprint().cmp(&other.fingerprint()))
    }

    /// Names the content, whoever signed it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        // A statement within its bounds always encodes; one without sorts first.
        let bytes = codec::encode(self, Self::LIMIT).unwrap_or_default();
        first_eight(&Sha256::digest(bytes))
    }
}

fn first_eight(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The part that statements about `name` ([`About::name`]) fall into.
#[must_use]
pub fn bucket(name: &str) -> u8 {
    Sha256::digest(name).first().copied().unwrap_or(0)
}

fn is_text(text: &str, limit: usize, what: &'static str) -> Result<(), Error> {
    if text.len() > limit {
        return Err(Error::TooLong(what));
    }
    if text.chars().any(char::is_control) { Err(Error::Name(what)) } else { Ok(()) }
}

/// Letters, digits and `-_.`: such a word is a path segment, a label and a column without any quoting.
fn is_word(text: &str, limit: usize, what: &'static str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.len() > limit {
        return Err(Error::TooLong(what));
    }
    if text.is_empty() || !text.chars().all(plain) { Err(Error::Name(what)) } else { Ok(()) }
}

/// A statement with its signature and the certificate of its signer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedKeyStatement {
    /// As it was when the statement was signed.
    pub chain: Chain,
    /// The statement.
    pub statement: Signed<KeyStatement>,
}

impl SignedKeyStatement {
    /// Signs with the identity key of the member that `chain` is about.
    ///
    /// # Errors
    /// Out of bounds, or the key cannot sign. Whether the member may is asked by [`Self::verify`].
    pub fn sign(statement: &KeyStatement, chain: Chain, identity: &Keypair) -> Result<Self, Error> {
        statement.check()?;
        Ok(Self { chain, statement: Signed::sign(statement, identity)? })
    }

    /// What is said, and by whom, at `now` (unix seconds). A signer's later certificate counts as well: `known` looks it
    /// up, for those whose certificate of then has ended. Revocations are not looked at here.
    ///
    /// # Errors
    /// Any signature, right or bound that does not hold.
    pub fn verify(
        &self,
        now: u64,
        mesh: &MeshId,
        known: impl FnOnce(&PeerId) -> Option<Membership>,
    ) -> Result<(KeyStatement, Membership), Error> {
        let signer = match self.chain.verify(now, mesh) {
            Ok(signer) => signer,
            Err(error @ certificate::Error::Expired { .. }) => {
                let subject = self.chain.certificate.peek()?.subject;
                known(&subject).filter(|member| member.valid_at(now)).ok_or(error)?
            }
            Err(error) => return Err(error.into()),
        };
        if !signer.keeps_keys() {
            return Err(Error::NotAllowed(signer.peer));
        }
        let statement = self.statement.verify(&signed::public_key(&signer.peer)?)?;
        if statement.mesh != *mesh {
            return Err(Error::WrongMesh(statement.mesh));
        }
        statement.check()?;
        Ok((statement, signer))
    }

    /// Bytes for gossip and for the disk.
    ///
    /// # Errors
    /// Too large.
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::SIGNED_KEY_BYTES)
    }

    /// From there; nothing in it is verified.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::SIGNED_KEY_BYTES)
    }
}

/// What proxies say to each other about statements, on the hop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyMessage {
    /// These count now: take them in, and say so once they are on disk.
    Push(Vec<SignedKeyStatement>),
    /// Asks for the answer [`KeyMessage::Buckets`].
    Compare,
    /// A fingerprint of each of the [`BUCKETS`]; equal where all statements are.
    Buckets(Vec<u64>),
    /// Asks for the statements of these buckets.
    Fetch(Vec<u8>),
    /// Those of the first so many that were asked for.
    Statements {
        /// How many buckets are complete.
        buckets: u16,
        /// All their statements.
        statements: Vec<SignedKeyStatement>,
    },
    /// What was pushed is on disk here, but for so many that were refused.
    Taken {
        /// Not verified, or outdated.
        refused: u32,
    },
}

impl KeyMessage {
    /// Bytes for the hop.
    ///
    /// # Errors
    /// Over [`limits::KEY_MESSAGE_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, codec::Error> {
        codec::encode_v1(self, limits::KEY_MESSAGE_BYTES)
    }

    /// From the hop; nothing in it is verified.
    ///
    /// # Errors
    /// Malformed, too large, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, codec::Error> {
        codec::decode_v1(bytes, limits::KEY_MESSAGE_BYTES)
    }
}

#[cfg(test)]
pub(crate) mod tests;

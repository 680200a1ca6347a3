//! Identifiers as checked types: what cannot be constructed need not be checked again.

use crate::limits;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, sync::Arc};

pub use libp2p_identity::PeerId;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The empty text.
    #[error("{what} is empty")]
    Empty {
        /// Kind of identifier.
        what: &'static str,
    },
    /// Longer than allowed.
    #[error("{what} has {size} bytes; at most {limit} are allowed")]
    TooLong {
        /// Kind of identifier.
        what: &'static str,
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A character that this identifier may not have.
    #[error("{what} contains {found:?}, which is not allowed")]
    Character {
        /// Kind of identifier.
        what: &'static str,
        /// First offending character.
        found: char,
    },
    /// Not one of the known words.
    #[error("unknown role {found:?}; choose from: {choices}")]
    UnknownRole {
        /// What was given.
        found: String,
        /// All roles, comma-separated.
        choices: &'static str,
    },
    /// Not 64 hexadecimal digits.
    #[error("a mesh id is 64 hexadecimal digits")]
    MeshId,
}

fn checked(what: &'static str, text: &str, limit: usize, allowed: impl Fn(char) -> bool) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::Empty { what });
    }
    if text.len() > limit {
        return Err(Error::TooLong { what, size: text.len(), limit });
    }
    match text.chars().find(|&c| !allowed(c)) {
        Some(found) => Err(Error::Character { what, found }),
        None => Ok(()),
    }
}

/// A checked text: the macro gives each kind its rule and the same conversions.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text`.
            ///
            /// # Errors
            /// Says which rule the text breaks.
            pub fn new(text: &str) -> Result<Self, Error> {
                checked($what, text, $limit, $allowed)?;
                Ok(Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self, Error> {
                Self::new(&text)
            }
        }
        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text_id!(
    /// A model as a client names it, for example `Qwen/Qwen3-8B`. 1 to 256 bytes, no control characters.
    ModelId, "model id", limits::MODEL_ID_BYTES, |c| !c.is_control()
);
text_id!(
    /// A job, `cluster/namespace/name`.
    JobId, "job id", limits::JOB_ID_BYTES, |c| !c.is_control() && !c.is_whitespace()
);
text_id!(
    /// A runtime of the catalogue, for example `vllm`.
    RuntimeName, "runtime name", limits::RUNTIME_NAME_BYTES,
    |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
);
text_id!(
    /// A display name that an operator gave to a peer. Not unique, trusted for nothing.
    Name, "name", limits::NAME_BYTES, |c| !c.is_control()
);

/// The public half of a mesh key. Two peers belong together when they name the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MeshId(pub [u8; 32]);

impl MeshId {
    /// The mesh of this Ed25519 public key.
    #[must_use]
    pub fn of(key: &libp2p_identity::ed25519::PublicKey) -> Self {
        Self(key.to_bytes())
    }
}
impl fmt::Display for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}
impl fmt::Debug for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl FromStr for MeshId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).map_err(|_| Error::MeshId)?;
        Ok(Self(bytes.try_into().map_err(|_| Error::MeshId)?))
    }
}

/// What a member does in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Stands beside engines and answers for them.
    Agent,
    /// Offers the endpoint and sends inference requests.
    Proxy,
    /// Owns jobs.
    Orchestrator,
    /// Relays connections between members that cannot reach each other.
    Relay,
    /// May create, change and end jobs, in the namespaces that its certificate names.
    Operator,
}

impl Role {
    /// All roles, in their order of declaration.
    pub const ALL: [Self; 5] = [Self::Agent, Self::Proxy, Self::Orchestrator, Self::Relay, Self::Operator];

    /// Lower-case word, as in topics and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Proxy => "proxy",
            Self::Orchestrator => "orchestrator",
            Self::Relay => "relay",
            Self::Operator => "operator",
        }
    }
}
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
impl FromStr for Role {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| Error::UnknownRole {
            found: text.chars().take(limits::NAME_BYTES).collect(),
            choices: "agent, proxy, orchestrator, relay, operator",
        })
    }
}

/// A set of roles.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Roles(u16);

impl Roles {
    /// No role: such a member may look, and nothing else.
    pub const NONE: Self = Self(0);

    /// Whether `role` is in the set.
    #[must_use]
    pub fn contains(self, role: Role) -> bool {
        self.0 & (1 << role as u16) != 0
    }
    /// Whether every role of `other` is in the set.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
    /// Whether the two sets share a role.
    #[must_use]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// The set with `role` added.
    #[must_use]
    pub fn with(self, role: Role) -> Self {
        Self(self.0 | (1 << role as u16))
    }
    /// The roles in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// The known roles in the set. Bits of roles that a newer version knows are skipped.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |&role| self.contains(role))
    }
}
impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        roles.into_iter().fold(Self::NONE, Self::with)
    }
}
impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, role) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(role.as_str())?;
        }
        Ok(())
    }
}
impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// One replica: a peer, and which of its engines (numbered in the order of its configuration).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReplicaId {
    /// The agent that answers for the replica.
    pub peer: PeerId,
    /// Which of the agent's engines.
    pub index: u16,
}
impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.peer, self.index)
    }
}
impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Orders what one peer says about itself: the epoch grows with each start of the process, the sequence with each
/// message. No clock of another machine is ever compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Start of the process that spoke: max(stored + 1, unix seconds), on disk before its first use.
    pub epoch: u64,
    /// Counts messages within the epoch.
    pub seq: u64,
}

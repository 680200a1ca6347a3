//! Why keys are not made, changed or read.

use super::{KEYS, NAME_CHARS, TENANTS, wire};
use crate::database;

/// Why keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite refused.
    #[error(
        "key database {path}: {source}{}",
        database::advice(
            source,
            "the other endpoints of the mesh fill it again, and keys that only this one knew are gone"
        )
    )]
    Database {
        /// The file.
        path: String,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file's mode could not be set.
    #[error("key database {path}: {source}{}", database::advice_on_file(source))]
    File {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// No key has this id.
    #[error("no key has the id {0:?}; `dunlin keys list` shows all")]
    Unknown(String),
    /// No tenant has this name.
    #[error("there is no tenant {0:?}; `dunlin tenants create` makes one, `dunlin tenants list` shows all")]
    UnknownTenant(String),
    /// No price has this pattern.
    #[error("there is no price for {0:?}; `dunlin prices list` shows all")]
    UnknownPrice(String),
    /// There is one already.
    #[error("there is a tenant {0:?} already, or was; `dunlin tenants set` changes one")]
    TenantExists(String),
    /// It has keys.
    #[error("tenant {tenant:?} has {keys} keys in force; revoke them first, or remove it with its keys")]
    TenantHasKeys {
        /// Its name.
        tenant: String,
        /// How many.
        keys: usize,
    },
    /// What is final does not change.
    #[error("{0} was revoked or removed, which is final; make another one")]
    Final(String),
    /// The name is too long.
    #[error("the name of a key may have at most {NAME_CHARS} characters")]
    Name,
    /// Something else that may not be.
    #[error("{0}")]
    Invalid(String),
    /// The mesh is full.
    #[error("there are {KEYS} keys already; no more fit")]
    TooMany,
    /// More tenants or prices than fit.
    #[error("there are {TENANTS} tenants or prices already; no more fit")]
    TooManyTenants,
    /// This machine's word about keys does not count.
    #[error(
        "this machine may not make or change keys; run the command where the mesh was made, or invite a machine for it \
         with `dunlin invite --keys`"
    )]
    NotAllowed,
    /// The key is of an older version and only this proxy knows it.
    #[error("key {0} is known to this proxy only and can be revoked, not changed; make a new one for all proxies")]
    OnlyHere(String),
    /// The statement can't be made.
    #[error(transparent)]
    Statement(#[from] wire::Error),
    /// The system gave no randomness.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

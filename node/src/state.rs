//! The state directory: who this peer is, and what must survive a restart. One process at a time holds it.
//!
//! The directory has mode 0700, its files 0600. Whoever copies it is this peer until the peer is revoked.
//! Everything here blocks on the disk: call it at the start, or through `spawn_blocking`.

mod file;
pub mod issuer_db;
mod lock;

use dunlin_protocol::{
    certificate::Chain,
    codec,
    delegation::Delegation,
    id::{MeshId, PeerId},
    limits,
    revocation::{self, RevocationList, SignedRevocation},
    signed::Signed,
};
use issuer_db::{IssuerDb, Owner};
use libp2p::{Multiaddr, identity::Keypair};
use lock::Lock;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Peers whose addresses are kept for the next start.
pub const KNOWN_PEERS: usize = 64;
/// Addresses kept of each.
pub const KNOWN_ADDRESSES: usize = 8;

/// Larger files are not ours.
const FILE_BYTES: usize = limits::REVOCATION_LIST_BYTES;
const DIRECTORY_MODE: u32 = 0o700;

const IDENTITY: &str = "identity.key";
const MESH_KEY: &str = "mesh.key";
const CERTIFICATE: &str = "certificate";
const DELEGATION: &str = "delegation";
const EPOCH: &str = "epoch";
const REVOCATIONS: &str = "revocations";
const KNOWN_PEERS_FILE: &str = "known_peers.json";
const ISSUER_DB: &str = "issuer.db";
const FAILED_JOIN: &str = "failed_join.json";

/// Why the state directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it.
    #[error("{} is in use by {}; stop that process, or choose another directory with --home", path.display(), holder(*pid))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, where it said so.
        pid: Option<u32>,
    },
    /// The operating system refused.
    #[error("{}: {cause}{}", path.display(), remedy(cause))]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What it said.
        cause: std::io::Error,
    },
    /// There is no such directory, and it can't be made, or it is something else.
    #[error(
        "{} can't be used as state directory: {cause}; choose a directory of your own with --home DIR (DUNLIN_HOME)",
        path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// A file is damaged.
    #[error("{} is damaged ({cause}); restore it from a backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Would overwrite a key.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// Something is too large to be stored.
    #[error(transparent)]
    Codec(#[from] codec::Error),
    /// The issuer's database.
    #[error(transparent)]
    Database(#[from] issuer_db::Error),
}

/// What to do about it, where that is known.
fn remedy(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free some space there",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            "; make it writable for this user, or choose another directory with --home DIR (DUNLIN_HOME)"
        }
        _ => "",
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// A peer that was connected once, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPeer {
    /// The peer.
    pub peer: PeerId,
    /// Where it was reached.
    pub addresses: Vec<Multiaddr>,
}

/// A `dunlin join` that failed on a machine of no mesh. Kept until there is a membership, so that the next start does not
/// make another mesh in silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedJoin {
    /// The mesh that was to be joined, hexadecimal, where the token could be read.
    pub mesh: Option<String>,
    /// When, unix seconds.
    pub at: u64,
    /// Why it failed, for people.
    pub cause: String,
}

/// The state directory, held. Cheap to clone; released with the last clone.
#[derive(Debug, Clone)]
pub struct StateDir(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    _lock: Lock,
    /// Held by whoever writes a file: two threads must not create an identity, take an epoch, or write the same file
    /// beside the one that it is to replace, at the same time.
    writing: Mutex<()>,
}

impl StateDir {
    /// Opens the directory, making it if needed, and holds it against other processes.
    ///
    /// # Errors
    /// [`Error::InUse`] with the holder's process id; or the operating system refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_path_buf();
        let io = |cause| Error::Directory { path: path.clone(), cause };
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&path).map_err(io)?;
        let mode = fs::metadata(&path).map_err(io)?.permissions().mode();
        if mode & 0o077 != 0
            && let Err(error) = fs::set_permissions(&path, fs::Permissions::from_mode(DIRECTORY_MODE))
        {
            // Volumes of containers often belong to root. The files themselves are closed to others anyway.
            tracing::warn!(path = %path.display(), %error, "state directory is open to other users");
        }
        let lock = Lock::take(&path)?;
        Ok(Self(Arc::new(Inner { path, _lock: lock, writing: Mutex::new(()) })))
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }

    fn writing(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_key(&self, name: &str) -> Result<Option<Keypair>, Error> {
        let path = self.file(name);
        let Some(bytes) = file::read(&path, FILE_BYTES)? else { return Ok(None) };
        // The cause is not told: it could quote the key.
        let damaged = |_| Error::Damaged { path, cause: "not an Ed25519 key".to_owned() };
        Keypair::ed25519_from_bytes(bytes).map(Some).map_err(damaged)
    }

    fn write_new_key(&self, name: &str, key: &Keypair) -> Result<(), Error> {
        let path = self.file(name);
        if path.exists() {
            return Err(Error::Exists(path));
        }
        let damaged = || Error::Damaged { path: path.clone(), cause: "not an Ed25519 key".to_owned() };
        let key = key.clone().try_into_ed25519().map_err(|_| damaged())?;
        file::write(&path, key.secret().as_ref())
    }

    /// This peer's key: the one on disk, or a new one on the first call ever.
    ///
    /// # Errors
    /// Cannot be read or written; a damaged file is never replaced.
    pub fn identity(&self) -> Result<Keypair, Error> {
        let _writing = self.writing();
        if let Some(key) = self.read_key(IDENTITY)? {
            return Ok(key);
        }
        let key = Keypair::generate_ed25519();
        self.write_new_key(IDENTITY, &key)?;
        Ok(key)
    }

    /// The mesh key, on the machine that keeps it.
    ///
    /// # Errors
    /// Cannot be read.
    pub fn mesh_key(&self) -> Result<Option<Keypair>, Error> {
        self.read_key(MESH_KEY)
    }

    /// Stores a new mesh key.
    ///
    /// # Errors
    /// [`Error::Exists`]: a mesh key is never overwritten. Cannot be written.
    pub fn store_mesh_key(&self, key: &Keypair) -> Result<(), Error> {
        let _writing = self.writing();
        self.write_new_key(MESH_KEY, key)
    }

    /// This peer's certificate chain, not verified; `None` before it joined a mesh.
    ///
    /// # Errors
    /// Cannot be read, or damaged.
    pub fn chain(&self) -> Result<Option<Chain>, Error> {
        let path = self.file(CERTIFICATE);
        let Some(bytes) = file::read(&path, FILE_BYTES)? else { return Ok(None) };
        Chain::decode(&bytes).map(Some).map_err(|cause| Error::Damaged { path, cause: cause.to_string() })
    }

    /// Stores this peer's certificate chain in place of the one before. No join has failed then.
    ///
    /// # Errors
    /// Cannot be written.
    pub fn store_chain(&self, chain: &Chain) -> Result<(), Error> {
        let _writing = self.writing();
        file::write(&self.file(CERTIFICATE), &chain.encode()?)?;
        file::remove(&self.file(FAILED_JOIN))
    }

    /// The last `dunlin join`, where it failed and there is no membership since. A damaged note counts as none.
    ///
    /// # Errors
    /// Cannot be read.
    pub fn failed_join(&self) -> Result<Option<FailedJoin>, Error> {
        let bytes = file::read(&self.file(FAILED_JOIN), FILE_BYTES)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Keeps a failed join for [`StateDir::failed_join`].
    ///
    /// # Errors
    /// Cannot be written.
    pub fn store_failed_join(&self, failed: &FailedJoin) -> Result<(), Error> {
        let path = self.file(FAILED_JOIN);
        let bytes = serde_json::to_vec_pretty(failed)
            .map_err(|cause| Error::Damaged { path: path.clone(), cause: cause.to_string() })?;
        let _writing = self.writing();
        file::write(&path, &bytes)
    }

    /// Removes the mesh key. Whether another copy exists is the caller's to know.
    ///
    /// # Errors
    /// Cannot be removed.
    pub fn remove_mesh_key(&self) -> Result<(), Error> {
        let _writing = self.writing();
        file::remove(&self.file(MESH_KEY))
    }

    /// This peer's delegation, not verified; `None` where it has none.
    ///
    /// # Errors
    /// Cannot be read, or damaged.
    pub fn delegation(&self) -> Result<Option<Signed<Delegation>>, Error> {
        let path = self.file(DELEGATION);
        let Some(bytes) = file::read(&path, FILE_BYTES)? else { return Ok(None) };
        let damaged = |cause: codec::Error| Error::Damaged { path, cause: cause.to_string() };
        codec::decode(&bytes, limits::DELEGATION_BYTES).map(Some).map_err(damaged)
    }

    /// Stores this peer's delegation in place of the one before.
    ///
    /// # Errors
    /// Cannot be written.
    pub fn store_delegation(&self, delegation: &Signed<Delegation>) -> Result<(), Error> {
        let _writing = self.writing();
        file::write(&self.file(DELEGATION), &codec::encode(delegation, limits::DELEGATION_BYTES)?)
    }

    /// Takes identity, certificate and delegation from another folder, which may be read-only, unless what is here is of the
    /// same peer and at least as new. Returns whether it did.
    ///
    /// # Errors
    /// [`Error::Exists`]: the mesh key lies here, whose identity is not given up. Something there is missing or damaged; a
    /// folder can't be read or written.
    pub fn adopt(&self, from: &Path) -> Result<bool, Error> {
        if self.file(MESH_KEY).exists() {
            return Err(Error::Exists(self.file(MESH_KEY)));
        }
        let read = |name: &str| {
            let path = from.join(name);
            let missing = || Error::Io { path: path.clone(), cause: ErrorKind::NotFound.into() };
            file::read(&path, FILE_BYTES)?.ok_or_else(missing)
        };
        let (identity, certificate, delegation) = (read(IDENTITY)?, read(CERTIFICATE)?, read(DELEGATION)?);
        let issued_at = |bytes: &[u8], path: PathBuf| {
            let damaged = |cause: String| Error::Damaged { path, cause };
            let chain = Chain::decode(bytes).map_err(|cause| cause.to_string());
            let certificate = chain.and_then(|chain| chain.certificate.peek().map_err(|cause| cause.to_string()));
            certificate.map(|certificate| certificate.issued_at).map_err(damaged)
        };
        let offered = issued_at(&certificate, from.join(CERTIFICATE))?;
        let _writing = self.writing();
        let same = file::read(&self.file(IDENTITY), FILE_BYTES)?.is_some_and(|here| here == identity);
        let here = file::read(&self.file(CERTIFICATE), FILE_BYTES)?;
        if let Some(here) = here.filter(|_| same)
            && issued_at(&here, self.file(CERTIFICATE))? >= offered
        {
            return Ok(false);
        }
        file::write(&self.file(IDENTITY), &identity)?;
        file::write(&self.file(DELEGATION), &delegation)?;
        file::write(&self.file(CERTIFICATE), &certificate)?;
        Ok(true)
    }

    /// The epoch of this start: larger than every earlier one, and on disk before it is returned. The wall clock
    /// (`now`, unix seconds) keeps it growing when the directory was restored from a backup.
    ///
    /// # Errors
    /// Cannot be read or written, or damaged.
    pub fn next_epoch(&self, now: u64) -> Result<u64, Error> {
        let _writing = self.writing();
        let path = self.file(EPOCH);
        let text = file::read(&path, FILE_BYTES)?.unwrap_or_default();
        let stored = String::from_utf8_lossy(&text).trim().parse::<u64>().unwrap_or_else(|_| {
            if !text.is_empty() {
                tracing::warn!(path = %path.display(), "damaged; epochs go on from the clock");
            }
            0
        });
        let epoch = stored.saturating_add(1).max(now);
        file::write(&path, format!("{epoch}\n").as_bytes())?;
        Ok(epoch)
    }

    /// The revocations that this peer knew, not verified.
    ///
    /// # Errors
    /// Cannot be read, or damaged.
    pub fn revocations(&self) -> Result<Vec<SignedRevocation>, Error> {
        let path = self.file(REVOCATIONS);
        let Some(bytes) = file::read(&path, FILE_BYTES)? else { return Ok(Vec::new()) };
        let damaged = |cause: revocation::Error| Error::Damaged { path, cause: cause.to_string() };
        RevocationList::decode(&bytes).map_err(damaged)
    }

    /// Stores the revocations that this peer knows: what `newest` gives when it is this writer's turn, so that of several
    /// writers none puts an older list in place of a newer one.
    ///
    /// # Errors
    /// Cannot be written.
    pub fn store_revocations(&self, newest: impl FnOnce() -> Arc<RevocationList>) -> Result<(), Error> {
        let _writing = self.writing();
        file::write(&self.file(REVOCATIONS), &newest().encode()?)
    }

    /// Peers to dial at the start. A damaged file counts as empty: it is only a cache.
    ///
    /// # Errors
    /// Cannot be read.
    pub fn known_peers(&self) -> Result<Vec<KnownPeer>, Error> {
        let Some(bytes) = file::read(&self.file(KNOWN_PEERS_FILE), FILE_BYTES)? else { return Ok(Vec::new()) };
        let mut peers: Vec<KnownPeer> = serde_json::from_slice(&bytes).unwrap_or_default();
        bound(&mut peers);
        Ok(peers)
    }

    /// Stores the peers to dial at the next start, the first [`KNOWN_PEERS`] of them.
    ///
    /// # Errors
    /// Cannot be written.
    pub fn store_known_peers(&self, mut peers: Vec<KnownPeer>) -> Result<(), Error> {
        bound(&mut peers);
        let path = self.file(KNOWN_PEERS_FILE);
        let bytes = serde_json::to_vec_pretty(&peers)
            .map_err(|cause| Error::Damaged { path: path.clone(), cause: cause.to_string() })?;
        let _writing = self.writing();
        file::write(&path, &bytes)
    }

    /// The issuer's database for `mesh`, made if there is none.
    ///
    /// # Errors
    /// Empty, or another peer's or mesh's: it is never taken for a new one. Cannot be opened.
    pub fn issuer_db(&self, mesh: &MeshId) -> Result<IssuerDb, Error> {
        let owner = Owner { mesh: *mesh, peer: self.identity()?.public().to_peer_id() };
        let _writing = self.writing();
        let path = self.file(ISSUER_DB);
        if !path.exists() {
            // Whole or not there, whatever happens meanwhile.
            file::make(&path, |beside| Ok(IssuerDb::create(beside, &owner)?))?;
        }
        Ok(IssuerDb::open(&path, &owner)?)
    }
}

fn bound(peers: &mut Vec<KnownPeer>) {
    peers.truncate(KNOWN_PEERS);
    for known in peers {
        known.addresses.truncate(KNOWN_ADDRESSES);
    }
}

#[cfg(test)]
mod tests;

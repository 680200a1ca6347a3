//! A file while it is fetched: its content under a name of its own, the record of its pieces, and the lock of whoever
//! is at work on it.

use crate::{Error, fetch::OWN_FOLDER, listing::Check, pieces::Pieces};
use data_encoding::HEXLOWER;
use rustix::fs::{FlockOperation, flock};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::spawn_blocking, time::sleep};

/// Between two looks whether another process is done.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Pieces that are synced together.
const SAFE_AT_ONCE: usize = 16;
/// Differs after each start of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// What is hashed at once, bytes.
const HASHED_AT_ONCE: usize = 1 << 20;
/// Largest record that makes sense, bytes: one line for each piece of a file of some terabytes.
const RECORD_BYTES: u64 = 8 << 20;

/// The lock on one file. Ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Locked {
    _file: File,
    pub(crate) paths: Paths,
}

/// Where the parts of one file's fetching lie.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    pub(crate) target: PathBuf,
    part: PathBuf,
    record: PathBuf,
    done: PathBuf,
}

impl Paths {
    /// Waits until nobody else is at work on the file.
    pub(crate) async fn lock(folder: &Path, name: &str, waits: impl Fn()) -> Result<Locked, Error> {
        let own = folder.join(OWN_FOLDER);
        fs::create_dir_all(&own).map_err(Error::disk(&own))?;
        let target = folder.join(name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(Error::disk(parent))?;
        }
        let key = HEXLOWER.encode(&Sha256::digest(name)[..16]);
        let beside = |kind: &str| own.join(format!("{key}.{kind}"));
        let lock = beside("lock");
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&lock).map_err(Error::disk(&lock))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    waits();
                    sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(Error::Disk { path: lock, error: error.into() }),
            }
        }
        let paths = Self { target, part: beside("part"), record: beside("pieces"), done: beside("done") };
        Ok(Locked { _file: file, paths })
    }

    /// Size of what lies there under the file's name.
    pub(crate) fn size(&self) -> Option<u64> {
        fs::metadata(&self.target).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
    }

    /// Whether what lies there was fetched as this version, and checked.
    pub(crate) fn is_done(&self, size: u64, version: &str) -> bool {
        self.size() == Some(size)
            && fs::read_to_string(&self.done).is_ok_and(|text| text == Pieces::header(size, version))
    }

    pub(crate) fn note_done(&self, size: u64, version: &str) -> Result<(), Error> {
        fs::write(&self.done, Pieces::header(size, version)).map_err(Error::disk(&self.done))
    }

    /// Opens what an earlier run left of this version, or begins anew.
    pub(crate) fn open(&self, size: u64, version: &str) -> Result<(Part, Pieces), Error> {
        let disk = Error::disk(&self.part);
        let content =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&self.part).map_err(disk)?;
        let boot = boot();
        let is_whole = content.metadata().is_ok_and(|metadata| metadata.len() == size);
        let pieces = is_whole.then(|| Pieces::read(&read_bounded(&self.record), size, version, &boot)).flatten();
        let record = match &pieces {
            Some(_) => OpenOptions::new().append(true).open(&self.record),
            None => {
                // In this order: a record never speaks of content that isn't there.
                let begin = || {
                    content.set_len(0)?;
                    content.set_len(size)?;
                    let mut record = File::create(&self.record)?;
                    record.write_all(Pieces::header(size, version).as_bytes())?;
                    io::Result::Ok(record)
                };
                begin()
            }
        };
        let mut record = record.map_err(Error::disk(&self.record))?;
        record.write_all(Pieces::run(&boot).as_bytes()).map_err(Error::disk(&self.record))?;
        let (content, record) = (Arc::new(content), Arc::new(record));
        let part = Part { content, record, path: self.part.clone(), unsafe_yet: Mutex::default() };
        Ok((part, pieces.unwrap_or_else(|| Pieces::none(size))))
    }

    /// Forgets what was fetched so far.
    pub(crate) fn discard(&self) {
        // What can't be removed is overwritten by the next run, or refused by it.
        let _ = fs::remove_file(&self.record);
        let _ = fs::remove_file(&self.part);
    }

    /// The content gets its name.
    pub(crate) fn finish(&self, size: u64, version: &str) -> Result<(), Error> {
        fs::rename(&self.part, &self.target).map_err(Error::disk(&self.target))?;
        if let Some(folder) = self.target.parent() {
            // Some file systems can't; the name is then as safe as they make it.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        self.note_done(size, version)?;
        let _ = fs::remove_file(&self.record);
        Ok(())
    }
}

/// Where nothing tells, no two runs are of the same boot.
fn boot() -> String {
    let told = fs::read_to_string(BOOT).map(|id| id.trim().to_owned());
    told.unwrap_or_else(|_| format!("unknown-{}", std::process::id()))
}

fn read_bounded(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(RECORD_BYTES).read_to_string(&mut text));
    if read.is_ok() { text } else { String::new() }
}

/// A file's content before it has its name.
#[derive(Debug)]
pub(crate) struct Part {
    content: Arc<File>,
    record: Arc<File>,
    path: PathBuf,
    /// Pieces that a power cut would take.
    unsafe_yet: Mutex<Vec<usize>>,
}

impl Part {
    /// Writes at a place. Disks may be slow: not on the runtime's thread.
    pub(crate) async fn write(&self, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        let content = Arc::clone(&self.content);
        self.blocking(move || content.write_all_at(&bytes, at)).await
    }

    /// A piece is here. From time to time all of them are made safe: a sync for each would slow fast networks down.
    pub(crate) async fn note(&self, index: usize) -> Result<(), Error> {
        let due = {
            let mut pieces = self.unsafe_yet.lock().unwrap_or_else(PoisonError::into_inner);
            pieces.push(index);
            if pieces.len() >= SAFE_AT_ONCE { std::mem::take(&mut *pieces) } else { Vec::new() }
        };
        let (content, record) = (Arc::clone(&self.content), Arc::clone(&self.record));
        self.blocking(move || {
            (&*record).write_all(Pieces::here(index).as_bytes())?;
            if due.is_empty() {
                return Ok(());
            }
            content.sync_data()?;
            (&*record).write_all(due.into_iter().map(Pieces::safe).collect::<String>().as_bytes())
        })
        .await
    }

    /// All that was written is safe.
    pub(crate) async fn sync(&self) -> Result<(), Error> {
        let content = Arc::clone(&self.content);
        self.blocking(move || content.sync_all()).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        spawn_blocking(work).await.map_err(io::Error::other).and_then(|done| done).map_err(Error::disk(&self.path))
    }

    /// What is wrong with the content, if anything.
    pub(crate) async fn check(&self, check: &Check) -> Result<Option<String>, Error> {
        verify(&self.path, check).await
    }
}

/// What is wrong with the content of a file, if anything.
pub(crate) async fn verify(path: &Path, check: &Check) -> Result<Option<String>, Error> {
    let (file, check) = (path.to_owned(), check.clone());
    let hashed = spawn_blocking(move || match check {
        Check::None => Ok(None),
        Check::Sha256(wanted) => Ok(differs(&wanted, &hash(&file, Sha256::new())?)),
        Check::GitBlob(wanted) => {
            let size = fs::metadata(&file)?.len();
            Ok(differs(&wanted, &hash(&file, Sha1::new().chain_update(format!("blob {size}\0")))?))
        }
    });
    hashed.await.map_err(io::Error::other).and_then(|done| done).map_err(Error::disk(path))
}

fn hash(path: &Path, mut hasher: impl Digest) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; HASHED_AT_ONCE];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(HEXLOWER.encode(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

fn differs(wanted: &str, found: &str) -> Option<String> {
    (wanted != found).then(|| format!("its hash is {found}, not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn content_is_checked_as_hubs_name_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hello");
        fs::write(&file, "hello\n").unwrap();
        // As `git hash-object` and `sha256sum` say.
        let git = Check::GitBlob("ce013625030ba8dba906f756967f9e9ca394464a".to_owned());
        assert_eq!(verify(&file, &git).await.unwrap(), None);
        let sha = Check::Sha256("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".to_owned());
        assert_eq!(verify(&file, &sha).await.unwrap(), None);
        fs::write(&file, "hellO\n").unwrap();
        assert!(verify(&file, &git).await.unwrap().is_some() && verify(&file, &sha).await.unwrap().is_some());
        assert_eq!(verify(&file, &Check::None).await.unwrap(), None);
    }
}

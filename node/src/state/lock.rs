//! The lock that keeps two processes from being the same peer. The kernel releases it when the process ends, however.

use super::Error;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const NAME: &str = "lock";

/// Held as long as it lives.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks `directory`, and writes this process's id where the next one that comes can read it.
    pub(super) fn take(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let io = |cause| Error::Io { path: path.clone(), cause };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Error::InUse { path: directory.to_path_buf(), pid: holder(&mut file) });
            }
            Err(errno) => return Err(io(io::Error::from(errno))),
        }
        file.set_len(0).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file })
    }
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

//! Files that are either the old or the new ones after a crash, and never anybody else's to read.

use super::Error;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

const FILE_MODE: u32 = 0o600;

fn at(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_path_buf();
    move |cause| Error::Io { path: path.clone(), cause }
}

/// The whole file, if it exists.
pub(super) fn read(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, Error> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(at(path))?;
    if bytes.len() > limit {
        return Err(Error::Damaged { path: path.to_path_buf(), cause: format!("more than {limit} bytes") });
    }
    Ok(Some(bytes))
}

/// Puts `bytes` in place of the file: written beside it, synced, renamed, and the directory synced. One caller at a time.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    make(path, |beside| {
        let mut file = OpenOptions::new().write(true).open(beside).map_err(at(beside))?;
        file.write_all(bytes).map_err(at(beside))?;
        file.sync_all().map_err(at(beside))
    })
}

/// Puts the file that `fill` makes of an empty one, which only its owner may read, in the place of `path`.
pub(super) fn make(path: &Path, fill: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    let beside = path.with_extension("new");
    // Left over from a crash, perhaps with other modes.
    remove(&beside)?;
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&beside).map_err(at(&beside))?;
    if let Err(error) = fill(&beside) {
        // On a full disk half a file would be in the way of others. That it can't be removed is nothing new.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    fs::rename(&beside, path).map_err(at(path))?;
    sync_directory(path)
}

/// Removes the file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(path)(error)),
        Ok(()) => sync_directory(path),
    }
}

fn sync_directory(path: &Path) -> Result<(), Error> {
    let directory = path.parent().unwrap_or(path);
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(at(directory))
}

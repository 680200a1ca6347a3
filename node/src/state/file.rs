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
    let beside = path.with_extension("new");
    // Left over from a crash, perhaps with other modes.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&beside)(error)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&beside).map_err(at(&beside))?;
    file.write_all(bytes).map_err(at(&beside))?;
    file.sync_all().map_err(at(&beside))?;
    fs::rename(&beside, path).map_err(at(path))?;
    let directory = path.parent().unwrap_or(path);
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(at(directory))
}

/// Makes an empty file that only its owner may read, if there is none.
pub(super) fn create_private(path: &Path) -> Result<(), Error> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path).map(drop).map_err(at(path))
}

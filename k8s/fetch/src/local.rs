//! Folders and files of this machine: volumes that are mounted.

use crate::{
    Error,
    listing::{Check, FILES, FileSpec, Origin},
};
use std::{fs, path::Path};

/// Folders in one another.
const DEPTH: usize = 16;

/// Every file below a folder, or the one file.
pub(crate) fn list(path: &Path) -> Result<Vec<FileSpec>, Error> {
    let metadata = fs::metadata(path).map_err(Error::disk(path))?;
    let mut files = Vec::new();
    if metadata.is_file() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        files.push(spec(path, name, metadata.len()));
    } else {
        walk(path, "", DEPTH, &mut files)?;
    }
    Ok(files)
}

fn spec(path: &Path, name: String, size: u64) -> FileSpec {
    FileSpec { name, from: Origin::Local(path.to_owned()), size: Some(size), check: Check::None, tag: None }
}

fn walk(folder: &Path, below: &str, depth: usize, files: &mut Vec<FileSpec>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::disk(folder))? {
        let path = entry.map_err(Error::disk(folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let hidden_by_kubelet = name.starts_with("..") || name == "lost+found";
        if hidden_by_kubelet || (below.is_empty() && name == crate::fetch::OWN_FOLDER) {
            continue;
        }
        let name = format!("{below}{name}");
        let metadata = fs::metadata(&path).map_err(Error::disk(&path))?;
        if metadata.is_file() {
            files.push(spec(&path, name, metadata.len()));
        } else if metadata.is_dir() && depth > 0 {
            walk(&path, &format!("{name}/"), depth - 1, files)?;
        }
        if files.len() > FILES {
            return Err(Error::TooMany { source_name: folder.display().to_string(), limit: FILES });
        }
    }
    Ok(())
}

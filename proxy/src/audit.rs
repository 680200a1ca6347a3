//! Who changed what: a line for each change of keys, tenants and prices, on disk before the change is answered.

use dunlin_node::clock;
use serde::Serialize;
use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// A file that has become so large is put aside, in place of the one put aside before.
const BYTES: u64 = 64 << 20;

/// The file. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Arc<Inner>);

struct Inner {
    path: PathBuf,
    file: Mutex<File>,
}

/// Who made a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Actor {
    /// Whoever may open the control socket.
    Socket,
    /// A key of the admin API.
    Key(Box<str>),
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket => f.write_str("socket"),
            Self::Key(id) => write!(f, "key {id}"),
        }
    }
}

#[derive(Serialize)]
struct Line<'a, T> {
    at: u64,
    by: String,
    did: &'a str,
    to: T,
}

impl Audit {
    /// Opens the file, made (mode 0600) when it is not there. Blocks on the disk.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = Mutex::new(append(path)?);
        Ok(Self(Arc::new(Inner { path: path.to_owned(), file })))
    }

    /// Writes a line. Blocks on the disk.
    ///
    /// # Errors
    /// The disk refuses.
    pub(crate) fn note(&self, by: &Actor, did: &str, to: impl Serialize) -> io::Result<()> {
        let line = Line { at: clock::unix_s(), by: by.to_string(), did, to };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        let mut file = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.len() > BYTES {
            std::fs::rename(&self.0.path, self.0.path.with_extension("jsonl.1"))?;
            *file = append(&self.0.path)?;
        }
        file.write_all(&text)?;
        file.sync_data()
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        Audit::open(&path).unwrap().note(&Actor::Socket, "key created", "a\nb").unwrap();
        Audit::open(&path).unwrap().note(&Actor::Key("id".into()), "key revoked", "c").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[1]["by"], &lines[1]["did"]), (&"key id".into(), &"key revoked".into()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

//! The files of a source, and which of them are wanted.

use crate::{
    Error, Source, bucket,
    client::{Client, Credentials},
    fetch::Order,
    hub, local,
};
use dunlin_protocol::pattern::Pattern;
use std::path::{Component, Path, PathBuf};
use url::Url;

/// Files of one source.
pub const FILES: usize = 20_000;
/// Longest name of one, bytes: what file systems take in all its folders.
const NAME_BYTES: usize = 1024;

/// One file to be fetched.
#[derive(Debug, Clone)]
pub struct FileSpec {
    /// Its name below the folder, with slashes.
    pub name: String,
    /// Where it is.
    pub from: Origin,
    /// Its size, bytes; `None` where only its server knows.
    pub size: Option<u64>,
    /// How it is known to be right.
    pub check: Check,
    /// A strong entity tag, quotes included, that its server heeds in `if-match`.
    pub tag: Option<String>,
}

/// Where a file is.
#[derive(Debug, Clone)]
pub enum Origin {
    /// On a server.
    Web {
        /// Where.
        url: Url,
        /// As whom.
        credentials: Credentials,
    },
    /// On this machine.
    Local(PathBuf),
}

/// How a file is known to be right, beside its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Its source says no hash.
    None,
    /// SHA-256, hex in lower case.
    Sha256(String),
    /// The id that git gives it: SHA-1 over a header and the content, hex in lower case.
    GitBlob(String),
}

/// What is wanted of an order's source.
pub(crate) async fn list(order: &Order, client: &Client) -> Result<Vec<FileSpec>, Error> {
    let files = match &order.source {
        Source::HuggingFace(repository) => hub::huggingface(client, order, repository).await?,
        Source::ModelScope(repository) => hub::modelscope(client, order, repository).await?,
        Source::Bucket { store, bucket, prefix } => bucket::list(client, order, *store, bucket, prefix).await?,
        Source::Http { url, sha256 } => vec![single(url, sha256.clone())],
        Source::Local(path) => local::list(path)?,
    };
    wanted(files, order)
}

fn single(url: &Url, sha256: Option<String>) -> FileSpec {
    let last = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let name = percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned();
    let from = Origin::Web { url: url.clone(), credentials: Credentials::None };
    FileSpec { name, from, size: None, check: sha256.map_or(Check::None, Check::Sha256), tag: None }
}

fn wanted(files: Vec<FileSpec>, order: &Order) -> Result<Vec<FileSpec>, Error> {
    let source_name = order.source.to_string();
    let found = files.len();
    let matches = |patterns: &[Pattern], file: &FileSpec| patterns.iter().any(|pattern| pattern.matches(&file.name));
    let mut files: Vec<FileSpec> = files
        .into_iter()
        .filter(|file| order.allow.is_empty() || matches(&order.allow, file))
        .filter(|file| !matches(&order.ignore, file))
        .collect();
    if files.len() > FILES {
        return Err(Error::TooMany { source_name, limit: FILES });
    }
    if files.is_empty() {
        let hint = match found {
            0 => String::new(),
            found => format!(": none of its {found} files is left by --allow and --ignore"),
        };
        return Err(Error::Nothing { source_name, hint });
    }
    if let Some(file) = files.iter().find(|file| !is_inside(&file.name)) {
        return Err(Error::Name { source_name, name: file.name.chars().take(200).collect() });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    Ok(files)
}

/// Whether a name stays below a folder, whatever the folder, and off what is kept there about the fetching.
fn is_inside(name: &str) -> bool {
    let normal = |component: Component<'_>| matches!(component, Component::Normal(_));
    let clean = name.split('/').all(|word| !word.is_empty() && word != "." && word != "..");
    let own = name.split('/').next() == Some(crate::fetch::OWN_FOLDER);
    clean
        && !own
        && name.len() <= NAME_BYTES
        && !name.contains(['\\', '\0'])
        && Path::new(name).components().all(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for good in ["config.json", "a/b/c.safetensors", "..a", "a b", "ü"] {
            assert!(is_inside(good), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\\b", "a\0b", ".dunlin-fetch/x"] {
            assert!(!is_inside(bad), "{bad:?}");
        }
    }
}

//! An order, from its source's listing to the last file.

use crate::{
    Endpoints, Error, Progress, Secrets, Source,
    client::Client,
    file::Run,
    listing::{FileSpec, Origin, list},
};
use dunlin_protocol::pattern::Pattern;
use futures::{StreamExt, TryStreamExt, stream};
use rustix::fs::statvfs;
use std::{io, path::PathBuf};
use tokio::sync::Semaphore;

/// What is kept in the folder about the fetching itself: locks, parts, records.
pub const OWN_FOLDER: &str = ".dunlin-fetch";
/// Files at once: while one is hashed, others come.
const FILES_AT_ONCE: usize = 4;
/// Connections at most.
pub const CONNECTIONS: usize = 64;
/// Left free on a file system beside what is fetched, bytes.
const LEFT_FREE: u64 = 64 << 20;

/// What is to be fetched.
#[derive(Debug, Clone)]
pub struct Order {
    /// From where.
    pub source: Source,
    /// Into which folder. `None` for a source on this machine that is to be used where it is.
    pub into: Option<PathBuf>,
    /// When there are any, only files that match one.
    pub allow: Vec<Pattern>,
    /// No file that matches one.
    pub ignore: Vec<Pattern>,
    /// Connections at once, from 1 to [`CONNECTIONS`].
    pub connections: usize,
    /// What opens doors.
    pub secrets: Secrets,
    /// Where hubs and buckets are.
    pub endpoints: Endpoints,
}

/// What there is in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The folder.
    pub folder: PathBuf,
    /// Files of the source in it.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Fetches what is not there yet. Dropped or killed at any time, the next call goes on.
///
/// # Errors
/// See [`Error`].
pub async fn fetch(order: &Order, client: &Client, progress: &Progress) -> Result<Fetched, Error> {
    let files = list(order, client).await?;
    let known: u64 = files.iter().filter_map(|file| file.size).fold(0, u64::saturating_add);
    progress.expect(files.len(), known);
    let Some(folder) = &order.into else {
        return in_place(order, files, progress);
    };
    std::fs::create_dir_all(folder).map_err(Error::disk(folder))?;
    let limit = order.connections.clamp(1, CONNECTIONS);
    let connections = Semaphore::new(limit);
    let run = Run { folder, client, progress, connections: &connections, limit };
    check_room(folder, &files)?;
    stream::iter(&files).map(|file| run.bring(file)).buffer_unordered(FILES_AT_ONCE).try_collect::<()>().await?;
    let seen = progress.seen();
    Ok(Fetched { folder: folder.clone(), files: files.len(), bytes: seen.bytes })
}

/// Files on a volume are used where they lie.
fn in_place(order: &Order, files: Vec<FileSpec>, progress: &Progress) -> Result<Fetched, Error> {
    let Source::Local(path) = &order.source else {
        let problem = "it has to be fetched into a folder".to_owned();
        return Err(Error::Source { given: order.source.to_string(), problem });
    };
    let mut bytes = 0;
    for file in &files {
        if let Origin::Local(path) = &file.from {
            // Whether it can be read is what counts.
            std::fs::File::open(path).map_err(Error::disk(path))?;
        }
        bytes += file.size.unwrap_or_default();
        progress.got(file.size.unwrap_or_default());
        progress.file_done();
    }
    Ok(Fetched { folder: path.clone(), files: files.len(), bytes })
}

/// Better at once than after an hour.
fn check_room(folder: &std::path::Path, files: &[FileSpec]) -> Result<(), Error> {
    let Ok(stat) = statvfs(folder) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let own = folder.join(OWN_FOLDER);
    let here = |path: PathBuf| std::fs::metadata(path).map_or(0, |metadata| blocks(&metadata));
    let named: u64 = files.iter().map(|file| here(folder.join(&file.name))).sum();
    let parts = std::fs::read_dir(own).into_iter().flatten().flatten().map(|entry| here(entry.path())).sum::<u64>();
    let known: u64 = files.iter().filter_map(|file| file.size).fold(0, u64::saturating_add);
    let needed = known.saturating_sub(named.saturating_add(parts));
    if needed > 0 && needed.saturating_add(LEFT_FREE) > free {
        let text = format!("{needed} bytes are to come, and there is room for {free}: give the volume more room");
        return Err(Error::Disk { path: folder.to_owned(), error: io::Error::new(io::ErrorKind::StorageFull, text) });
    }
    Ok(())
}

/// Bytes that a file really takes.
fn blocks(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(metadata) * 512
}

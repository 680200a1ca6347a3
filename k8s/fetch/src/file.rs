//! One file, from wherever it is to its name in the folder.

use crate::{
    Error,
    client::{Ask, Client, Credentials, Failure, Patience, content_range, next_data, validator},
    listing::{Check, FileSpec, Origin},
    part::{Locked, Part, Paths, verify},
    pieces::Pieces,
    progress::Progress,
};
use futures::{StreamExt, TryStreamExt, stream};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH, IF_RANGE, LAST_MODIFIED},
    response::Parts,
};
use hyper::body::Incoming;
use std::{
    fs::File,
    io::Read,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Semaphore;
use url::Url;

/// What is written at once, bytes.
const WRITTEN_AT_ONCE: usize = 1 << 20;
/// A file whose hash is wrong is fetched so often.
const FETCHES: u32 = 2;

/// What all files of a run share.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) client: &'a Client,
    pub(crate) progress: &'a Progress,
    /// Connections at once, over all files.
    pub(crate) connections: &'a Semaphore,
    pub(crate) limit: usize,
}

/// How far some pieces side by side have come.
#[derive(Debug)]
struct Cursor<'a> {
    pieces: &'a Pieces,
    /// The piece that ends next.
    next: usize,
    /// The byte that comes next, and the one after the last.
    first: u64,
    end: u64,
}

impl Cursor<'_> {
    /// The next piece, if it is whole.
    fn passed(&mut self) -> Option<usize> {
        let (first, end) = self.pieces.range(self.next);
        if first >= end || end > self.first {
            return None;
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

/// A file on a server, as far as its head tells.
#[derive(Debug)]
struct Remote<'a> {
    url: &'a Url,
    credentials: &'a Credentials,
    size: u64,
    /// What tells this version from others.
    version: String,
    /// Has the server give this version only.
    conditions: HeaderMap,
    ranged: bool,
    /// Where redirects led last: what is signed there is good for a while.
    direct: Mutex<Option<Url>>,
}

impl Remote<'_> {
    fn direct(&self) -> MutexGuard<'_, Option<Url>> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request for bytes from `first` to before `end`, and whether it goes where redirects led before.
    fn ask(&self, first: u64, end: u64) -> (Ask, bool) {
        let direct = self.direct().clone();
        let went_before = direct.is_some();
        let mut ask = match direct {
            // Its query is the credentials there.
            Some(url) if url.origin() != self.url.origin() => Ask::new(url, Credentials::None),
            direct => Ask::new(direct.unwrap_or_else(|| self.url.clone()), self.credentials.clone()),
        };
        ask.range = Some((first, end - 1));
        ask.conditions.clone_from(&self.conditions);
        (ask, went_before)
    }
}

impl Run<'_> {
    /// Brings one file, unless it is there.
    pub(crate) async fn bring(&self, spec: &FileSpec) -> Result<(), Error> {
        let waits = || self.progress.problem(Some(format!("{}: another process is at work on it", spec.name)));
        let locked = Paths::lock(self.folder, &spec.name, waits).await?;
        self.progress.problem(None);
        match &spec.from {
            Origin::Local(path) => self.copy(&locked, spec, path).await?,
            Origin::Web { url, credentials } => self.load(&locked, spec, url, credentials).await?,
        }
        self.progress.file_done();
        Ok(())
    }

    async fn load(&self, locked: &Locked, spec: &FileSpec, url: &Url, credentials: &Credentials) -> Result<(), Error> {
        let paths = &locked.paths;
        let remote = self.look(spec, url, credentials).await?;
        let Remote { size, version, .. } = &remote;
        if spec.size.is_none() {
            self.progress.grew(*size);
        }
        if paths.is_done(*size, version) || self.is_there(paths, &spec.check, *size).await? {
            paths.note_done(*size, version)?;
            self.progress.got(*size);
            return Ok(());
        }
        for fetches in 1.. {
            let (part, pieces) = paths.open(*size, version)?;
            self.progress.got(pieces.bytes());
            if remote.ranged {
                self.pieces(&remote, &part, &pieces).await?;
            } else {
                self.stream(&remote, &part, &pieces).await?;
            }
            part.sync().await?;
            let Some(problem) = part.check(&spec.check).await? else { break };
            paths.discard();
            self.progress.lost(*size);
            if fetches >= FETCHES {
                return Err(Error::Damaged { name: spec.name.clone(), problem });
            }
            tracing::warn!(file = spec.name, problem, "damaged; it is fetched once more");
        }
        paths.finish(*size, version)
    }

    /// Whether a file that nobody noted lies there already, and is right. Without a hash its size has to do.
    async fn is_there(&self, paths: &Paths, check: &Check, size: u64) -> Result<bool, Error> {
        Ok(paths.size() == Some(size) && verify(&paths.target, check).await?.is_none())
    }

    /// What is known of the file without its content.
    async fn look<'a>(&self, spec: &FileSpec, url: &'a Url, credentials: &'a Credentials) -> Result<Remote<'a>, Error> {
        let known = match (&spec.check, &spec.tag) {
            (Check::Sha256(hash) | Check::GitBlob(hash), _) => Some((hash.clone(), HeaderMap::new())),
            (Check::None, Some(tag)) => {
                HeaderValue::from_str(tag).ok().map(|value| (tag.clone(), HeaderMap::from_iter([(IF_MATCH, value)])))
            }
            (Check::None, None) => None,
        };
        if let (Some((version, conditions)), Some(size)) = (known, spec.size) {
            return Ok(Remote { url, credentials, size, version, conditions, ranged: true, direct: Mutex::default() });
        }
        let mut ask = Ask::new(url.clone(), credentials.clone());
        ask.range = Some((0, 0));
        let _connection = self.connections.acquire().await;
        let on_problem = |problem| self.progress.problem(problem);
        let found = match self.client.insist(&ask, &on_problem, head).await {
            // What a server with ranges says of an empty file.
            Err(Error::Refused { status: Some(416), .. }) => {
                ask.range = None;
                self.client.insist(&ask, &on_problem, head).await?
            }
            other => other?,
        };
        let headers = &found.headers;
        let text = |name: HeaderName| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let ranges = content_range(headers).filter(|_| found.status == StatusCode::PARTIAL_CONTENT);
        let size = ranges.map(|(_, _, size)| size).or_else(|| text(CONTENT_LENGTH)?.parse().ok());
        let Some(size) = size else {
            let problem =
                "its server does not say how large it is, so that nobody could tell whether all has come".to_owned();
            return Err(Error::Refused { url: crate::source::bare(url), problem, status: None });
        };
        if let Some(wanted) = spec.size.filter(|wanted| *wanted != size) {
            let problem = format!("it has {size} bytes, not {wanted}");
            return Err(Error::Damaged { name: spec.name.clone(), problem });
        }
        let version = text(ETAG).or_else(|| text(LAST_MODIFIED));
        let version = match (&spec.check, version) {
            (Check::Sha256(hash) | Check::GitBlob(hash), _) => hash.clone(),
            (Check::None, version) => version.unwrap_or("-").chars().filter(|c| !c.is_control()).take(200).collect(),
        };
        let validator = validator(headers).filter(|_| spec.check == Check::None);
        // Parts of versions that can't be told from each other must not be put together.
        let ranged = ranges.is_some() && (validator.is_some() || spec.check != Check::None);
        let conditions = validator.into_iter().map(|validator| (IF_RANGE, validator)).collect();
        Ok(Remote { url, credentials, size, version, conditions, ranged, direct: Mutex::default() })
    }

    async fn pieces(&self, remote: &Remote<'_>, part: &Part, pieces: &Pieces) -> Result<(), Error> {
        let missing = stream::iter(pieces.missing());
        let bring = |(next, end): (usize, usize)| async move {
            let _connection = self.connections.acquire().await;
            let at = Cursor { pieces, next, first: pieces.range(next).0, end: pieces.range(end - 1).1 };
            self.run(remote, part, at).await
        };
        missing.map(bring).buffer_unordered(self.limit).try_collect().await
    }

    /// Some pieces side by side; what came before a connection broke need not come again.
    async fn run(&self, remote: &Remote<'_>, part: &Part, mut at: Cursor<'_>) -> Result<(), Error> {
        let mut patience = Patience::default();
        let on_problem = |problem| self.progress.problem(problem);
        while at.first < at.end {
            let (ask, went_before) = remote.ask(at.first, at.end);
            let before = at.first;
            match self.range(remote, &ask, part, &mut at).await? {
                Ok(()) => on_problem(None),
                Err(_) if went_before && at.first == before => *remote.direct() = None,
                Err(failure) => {
                    if at.first > before {
                        patience.renew();
                    }
                    patience.after(remote.url, failure, &on_problem).await?;
                }
            }
        }
        Ok(())
    }

    /// One answer, as far as it goes. The outer error is this machine's.
    async fn range(
        &self,
        remote: &Remote<'_>,
        ask: &Ask,
        part: &Part,
        at: &mut Cursor<'_>,
    ) -> Result<Result<(), Failure>, Error> {
        let (answer, url) = match self.client.once(ask).await {
            Ok(answered) => answered,
            Err(failure) => return Ok(Err(failure)),
        };
        let wanted = Some((at.first, at.end - 1, remote.size));
        if answer.status() != StatusCode::PARTIAL_CONTENT || content_range(answer.headers()) != wanted {
            let problem = "it has changed meanwhile, or its server no longer gives parts of it; run this again";
            return Ok(Err(Failure::lasting(problem)));
        }
        if url != *remote.url {
            *remote.direct() = Some(url);
        }
        self.take(answer.into_body(), part, at).await
    }

    /// Writes a body down. What exceeds its end is an error, as is what is missing.
    async fn take(&self, mut body: Incoming, part: &Part, at: &mut Cursor<'_>) -> Result<Result<(), Failure>, Error> {
        let mut buffer = Vec::with_capacity(WRITTEN_AT_ONCE);
        let ended = loop {
            match next_data(&mut body).await {
                Ok(Some(data)) => {
                    buffer.extend_from_slice(&data);
                    if at.first + buffer.len() as u64 > at.end {
                        return Ok(Err(Failure::passing("more came than was asked for")));
                    }
                    if buffer.len() >= WRITTEN_AT_ONCE {
                        let full = std::mem::replace(&mut buffer, Vec::with_capacity(WRITTEN_AT_ONCE));
                        self.write(part, at, full).await?;
                    }
                }
                Ok(None) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        self.write(part, at, buffer).await?;
        Ok(match ended {
            Ok(()) if at.first < at.end => Err(Failure::passing("the answer ended too soon")),
            ended => ended,
        })
    }

    async fn write(&self, part: &Part, at: &mut Cursor<'_>, bytes: Vec<u8>) -> Result<(), Error> {
        let count = bytes.len() as u64;
        part.write(at.first, bytes).await?;
        at.first += count;
        self.progress.got(count);
        while let Some(whole) = at.passed() {
            part.note(whole).await?;
        }
        Ok(())
    }

    /// From a server that gives all or nothing: from its beginning each time.
    async fn stream(&self, remote: &Remote<'_>, part: &Part, pieces: &Pieces) -> Result<(), Error> {
        let _connection = self.connections.acquire().await;
        let mut patience = Patience::default();
        let on_problem = |problem| self.progress.problem(problem);
        let ask = Ask::new(remote.url.clone(), remote.credentials.clone());
        self.progress.lost(pieces.bytes());
        loop {
            let mut at = Cursor { pieces, next: 0, first: 0, end: remote.size };
            let taken = match self.client.once(&ask).await {
                Ok((answer, _)) => self.take(answer.into_body(), part, &mut at).await?,
                Err(failure) => Err(failure),
            };
            match taken {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    self.progress.lost(at.first);
                    patience.after(remote.url, failure, &on_problem).await?;
                }
            }
        }
    }

    async fn copy(&self, locked: &Locked, spec: &FileSpec, from: &Path) -> Result<(), Error> {
        let paths = &locked.paths;
        let size = spec.size.unwrap_or_default();
        let modified = std::fs::metadata(from).and_then(|metadata| metadata.modified()).map_err(Error::disk(from))?;
        let version = format!("{modified:?}").replace(char::is_whitespace, "");
        if paths.is_done(size, &version) {
            self.progress.got(size);
            return Ok(());
        }
        let (part, pieces) = paths.open(size, &version)?;
        self.progress.got(pieces.bytes());
        for index in pieces.missing().into_iter().flat_map(|(first, end)| first..end) {
            let (first, end) = pieces.range(index);
            let source = from.to_owned();
            let read = tokio::task::spawn_blocking(move || read_piece(&source, first, end));
            let bytes = read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(Error::disk(from))?;
            self.progress.got(end - first);
            part.write(first, bytes).await?;
            part.note(index).await?;
        }
        part.sync().await?;
        paths.finish(size, &version)
    }
}

/// What is known before the first byte; the rest is not waited for.
async fn head(answer: http::Response<Incoming>) -> Result<Parts, Failure> {
    Ok(answer.into_parts().0)
}

fn read_piece(path: &Path, first: u64, end: u64) -> std::io::Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(first))?;
    let mut bytes = Vec::new();
    file.take(end - first).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != end - first {
        return Err(std::io::Error::other("it has become shorter meanwhile"));
    }
    Ok(bytes)
}

//! A body that is passed on while it arrives and kept until it is answered, so that another replica may get the whole of
//! it: its beginning in memory, the rest in a temporary file without a name.

mod reader;

use crate::{
    auth::Tenant,
    request::{
        body::{self, Progress, Share, Shares},
        form::{self, Field, Form},
    },
};
use bytes::{Bytes, BytesMut};
use dunlin_node::hop;
use dunlin_protocol::id::ModelId;
use http_body::Body;
use http_body_util::BodyExt;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

/// Bytes at the beginning of an upload that stay in memory.
const MEMORY: usize = 1 << 20;
/// Bytes that are written to the file at once.
const WRITTEN: usize = 256 << 10;
/// Slowest upload that is waited for in all, bytes per second.
const SLOWEST: u64 = 16 * 1024;

/// What uploads may take.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// One upload, bytes.
    pub(crate) body: u64,
    /// Longest pause between two pieces.
    pub(crate) pause: Duration,
    /// Memory for the beginnings.
    pub(crate) memory: Shares,
    /// Disk for the rest of all of them.
    pub(crate) disk: Shares,
    /// Where the files lie.
    pub(crate) folder: PathBuf,
}

/// One upload. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Upload(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    file: OnceLock<Arc<File>>,
    /// Told of each change.
    changed: watch::Sender<()>,
    /// Its length, where the client says so beforehand.
    announced: Option<u64>,
}

#[derive(Debug)]
struct State {
    beginning: BytesMut,
    memory: Share,
    disk: Share,
    /// Bytes that are in the file.
    in_file: u64,
    model: Option<Field>,
    /// So far the body is known to hold no `model` but the one that is known.
    settled: u64,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

/// What of an upload can be read now.
#[derive(Debug, Clone, Copy)]
struct Readable {
    /// Bytes that are there.
    length: u64,
    end: Option<End>,
}

impl Upload {
    /// Of `tenant`, whose body has so many bytes if it says so.
    ///
    /// # Errors
    /// It is too large, or there is no room for one more.
    pub(crate) fn new(tenant: &Tenant, announced: Option<u64>, bounds: &Bounds) -> Result<Self, body::Error> {
        if announced.is_some_and(|length| length > bounds.body) {
            return Err(body::Error::TooLarge(usize::try_from(bounds.body).unwrap_or(usize::MAX)));
        }
        let memory = bounds.memory.open(tenant.clone()).ok_or(body::Error::NoRoom)?;
        let disk = bounds.disk.open(tenant.clone()).ok_or(body::Error::NoDisk)?;
        let (model, settled, end) = (None, 0, None);
        let state = State { beginning: BytesMut::new(), memory, disk, in_file: 0, model, settled, end };
        let (state, file, changed) = (Mutex::new(state), OnceLock::new(), watch::Sender::new(()));
        Ok(Self(Arc::new(Inner { state, file, changed, announced })))
    }

    /// Takes `body` to its end. Whoever reads the upload sees it break if this does not succeed, or is dropped.
    ///
    /// # Errors
    /// A bound is passed, the client went away, or the form is wrong: then also when the model isn't `expected`.
    pub(crate) async fn receive<B>(
        &self,
        body: &mut B,
        mut form: Form,
        expected: Option<&ModelId>,
        bounds: &Bounds,
    ) -> Result<(), Error>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let unless_whole = Breaks(self);
        let in_all = Instant::now() + Duration::from_secs(60 + bounds.body / SLOWEST);
        let mut progress = Progress::new(bounds.pause, Instant::now());
        let mut pending = BytesMut::new();
        let mut length = 0u64;
        loop {
            let frame = timeout_at(progress.deadline().min(in_all), body.frame()).await;
            let now = Instant::now();
            if (progress.is_stuck(now) || now >= in_all) && !matches!(frame, Ok(None)) {
                return Err(body::Error::TooSlow.into());
            }
            let piece = match frame {
                Err(_) => continue,
                Ok(None) => break,
                Ok(Some(frame)) => frame.map_err(|_| body::Error::Broken)?.into_data(),
            };
            let Ok(piece) = piece else { continue };
            progress.came(piece.len(), now);
            length += piece.len() as u64;
            if length > bounds.body {
                return Err(body::Error::TooLarge(usize::try_from(bounds.body).unwrap_or(usize::MAX)).into());
            }
            // Before anybody can read the piece.
            self.look(&mut form, &piece, expected)?;
            let rest = self.remember(piece)?;
            pending.extend_from_slice(&rest);
            if pending.len() >= WRITTEN {
                self.write(pending.split().freeze(), &bounds.folder).await?;
            }
            self.0.changed.send_replace(());
        }
        form.finish()?;
        if form.model().is_none() && expected.is_none() {
            return Err(form::Error::NoModel.into());
        }
        self.write(pending.freeze(), &bounds.folder).await?;
        self.state().end = Some(End::Whole);
        drop(unless_whole);
        Ok(())
    }

    fn look(&self, form: &mut Form, piece: &[u8], expected: Option<&ModelId>) -> Result<(), form::Error> {
        form.push(piece)?;
        let mut state = self.state();
        state.settled = form.settled();
        if state.model.is_none()
            && let Some(field) = form.model()
        {
            if expected.is_some_and(|expected| *expected != field.model) {
                return Err(form::Error::AnotherModel);
            }
            state.model = Some(field.clone());
        }
        Ok(())
    }

    /// Keeps what fits in memory, and returns the rest.
    fn remember(&self, mut piece: Bytes) -> Result<Bytes, body::Error> {
        let mut state = self.state();
        let room = MEMORY - state.beginning.len();
        let kept = piece.split_to(room.min(piece.len()));
        if !state.memory.grow(kept.len()) {
            return Err(body::Error::NoRoom);
        }
        if !state.disk.grow(piece.len()) {
            return Err(body::Error::NoDisk);
        }
        state.beginning.extend_from_slice(&kept);
        Ok(piece)
    }

    async fn write(&self, bytes: Bytes, folder: &std::path::Path) -> Result<(), body::Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.state().in_file;
        let (known, folder, length) = (self.0.file.get().cloned(), folder.to_owned(), bytes.len() as u64);
        let written = spawn_blocking(move || -> io::Result<Arc<File>> {
            let file = match known {
                Some(file) => file,
                None => Arc::new(tempfile::tempfile_in(folder)?),
            };
            file.write_all_at(&bytes, at)?;
            Ok(file)
        });
        let file = match written.await {
            Ok(Ok(file)) => file,
            Ok(Err(error)) => {
                tracing::error!(%error, "an upload can't be written to the disk");
                return Err(body::Error::Disk);
            }
            // The process is ending.
            Err(_) => return Err(body::Error::Broken),
        };
        self.0.file.get_or_init(|| file);
        self.state().in_file += length;
        Ok(())
    }

    /// The model that the form names, once that has come; `None` when the upload broke off before.
    pub(crate) async fn model(&self) -> Option<ModelId> {
        let mut changes = self.0.changed.subscribe();
        loop {
            {
                let state = self.state();
                if let Some(field) = &state.model {
                    return Some(field.model.clone());
                }
                if state.end.is_some() {
                    return None;
                }
            }
            // The sender is ours: it lives as long as we do.
            changes.changed().await.ok()?;
        }
    }

    /// Ends when no more comes.
    pub(crate) async fn arrived(&self) {
        let mut changes = self.0.changed.subscribe();
        while self.state().end.is_none() && changes.changed().await.is_ok() {}
    }

    /// Bytes that have come.
    pub(crate) fn len(&self) -> u64 {
        self.readable().length
    }

    /// The whole upload from its beginning, as it comes; with `name` for what stands in its field `model`.
    pub(crate) fn body(&self, name: Option<&ModelId>) -> hop::Body {
        hop::Body::stream(reader::Reader::new(self.clone(), name.map(|name| Bytes::from(name.as_str().to_owned()))))
    }

    fn readable(&self) -> Readable {
        let state = self.state();
        Readable { length: state.beginning.len() as u64 + state.in_file, end: state.end }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it is left half done by a panic elsewhere: it is set in one step.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks an upload as broken unless it is whole.
struct Breaks<'a>(&'a Upload);

impl Drop for Breaks<'_> {
    fn drop(&mut self) {
        self.0.state().end.get_or_insert(End::Broken);
        self.0.0.changed.send_replace(());
    }
}

/// Why an upload did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Body(#[from] body::Error),
    #[error(transparent)]
    Form(#[from] form::Error),
}

#[cfg(test)]
mod tests;

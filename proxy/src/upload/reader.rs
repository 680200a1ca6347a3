//! Reads an upload from its beginning, waiting for what has not come yet.

use super::{End, MEMORY, Readable, Upload};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use std::{
    io,
    ops::Range,
    os::unix::fs::FileExt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{sync::watch, task::spawn_blocking};

/// Bytes that are read at once.
const PIECE: u64 = 64 << 10;

/// The upload did not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the client did not send all of it")]
    Broken,
    #[error("it can't be read from the disk again: {0}")]
    Disk(#[from] io::Error),
}

/// One reader.
pub(super) struct Reader {
    upload: Upload,
    /// Goes out for the value of `model`.
    name: Option<Bytes>,
    at: u64,
    ended: bool,
    step: BoxFuture<'static, Result<Step, Error>>,
}

/// What comes of a look.
enum Step {
    /// Goes out; the reader stands at this place then.
    Piece(Bytes, u64),
    End,
}

impl Reader {
    pub(super) fn new(upload: Upload, name: Option<Bytes>) -> Self {
        let step = Box::pin(next(upload.clone(), name.clone(), 0));
        Self { upload, name, at: 0, ended: false, step }
    }

    /// Bytes that will have gone out at the end, where that is known.
    fn length(&self) -> Option<u64> {
        let Readable { length, end } = self.upload.readable();
        let whole = if end == Some(End::Whole) { Some(length) } else { self.upload.0.announced }?;
        let Some(name) = &self.name else { return Some(whole) };
        let value = self.upload.state().model.as_ref()?.at.clone();
        Some(whole - (value.end - value.start) + name.len() as u64)
    }

    /// The same of what has gone out: each piece stands before or behind the value.
    fn sent(&self) -> u64 {
        let Some(name) = &self.name else { return self.at };
        match self.upload.state().model.as_ref().map(|field| field.at.clone()) {
            Some(value) if self.at >= value.end => self.at - (value.end - value.start) + name.len() as u64,
            _ => self.at,
        }
    }
}

impl Body for Reader {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        match ready!(this.step.as_mut().poll(cx)) {
            Ok(Step::Piece(piece, at)) => {
                this.at = at;
                this.step = Box::pin(next(this.upload.clone(), this.name.clone(), at));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Ok(Step::End) => {
                this.ended = true;
                Poll::Ready(None)
            }
            Err(error) => {
                this.ended = true;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.length().map_or_else(SizeHint::default, |length| SizeHint::with_exact(length.saturating_sub(self.sent())))
    }
}

/// What is at `at`, once it is there.
async fn next(upload: Upload, name: Option<Bytes>, at: u64) -> Result<Step, Error> {
    let mut changes: watch::Receiver<()> = upload.0.changed.subscribe();
    loop {
        match look(&upload, name.as_ref(), at) {
            Look::Name(after) => return Ok(Step::Piece(name.unwrap_or_default(), after)),
            Look::Read(range) => {
                let end = range.end;
                return Ok(Step::Piece(read(&upload, range).await?, end));
            }
            Look::End(End::Whole) => return Ok(Step::End),
            Look::End(End::Broken) => return Err(Error::Broken),
            Look::Wait => {}
        }
        if changes.changed().await.is_err() {
            return Err(Error::Broken);
        }
    }
}

enum Look {
    /// The name goes out; the reader goes on behind the value.
    Name(u64),
    Read(Range<u64>),
    End(End),
    Wait,
}

fn look(upload: &Upload, name: Option<&Bytes>, at: u64) -> Look {
    let Readable { length, end } = upload.readable();
    let (value, settled) = {
        let state = upload.state();
        (state.model.as_ref().map(|field| field.at.clone()), state.settled)
    };
    let mut until = length;
    if name.is_some() {
        match value {
            // The value may have come whole while its end has not been written.
            Some(value) if at == value.start => return Look::Name(value.end),
            Some(value) if at < value.start => until = until.min(value.start),
            Some(_) => {}
            // What may be the beginning of the value waits for its end.
            None if end.is_none() => until = until.min(settled),
            None => {}
        }
    }
    match end {
        // What a broken upload still has is of no use.
        Some(End::Broken) => Look::End(End::Broken),
        _ if at < until => Look::Read(at..until.min(at + PIECE)),
        Some(End::Whole) if at >= length => Look::End(End::Whole),
        _ => Look::Wait,
    }
}

/// Bytes that are there.
async fn read(upload: &Upload, range: Range<u64>) -> Result<Bytes, Error> {
    let in_memory = {
        let state = upload.state();
        let start = usize::try_from(range.start).unwrap_or(usize::MAX);
        let end = usize::try_from(range.end).unwrap_or(usize::MAX);
        let piece = state.beginning.get(start..end.min(state.beginning.len())).filter(|piece| !piece.is_empty());
        piece.map(Bytes::copy_from_slice)
    };
    let from_memory = in_memory.as_ref().map_or(0, Bytes::len) as u64;
    if from_memory == range.end - range.start {
        return Ok(in_memory.unwrap_or_default());
    }
    let Some(file) = upload.0.file.get().map(Arc::clone) else { return Err(Error::Broken) };
    let start = range.start + from_memory - MEMORY as u64;
    let length = usize::try_from(range.end - range.start - from_memory).unwrap_or(0);
    let read = spawn_blocking(move || -> io::Result<BytesMut> {
        let mut piece = BytesMut::zeroed(length);
        file.read_exact_at(&mut piece, start)?;
        Ok(piece)
    });
    let from_file = read.await.map_err(|_| Error::Broken)??;
    Ok(match in_memory {
        Some(beginning) => [beginning.as_ref(), &from_file[..]].concat().into(),
        None => from_file.freeze(),
    })
}

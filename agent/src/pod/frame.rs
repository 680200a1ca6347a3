//! Messages over a Unix socket, both ways.

use bytes::Bytes;
use dunlin_protocol::{
    codec,
    limits::POD_FRAME_BYTES,
    pod::{self, PREAMBLE_BYTES, Unspoken},
};
use futures::{SinkExt, StreamExt};
use serde::{Serialize, de::DeserializeOwned};
use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

/// Both preambles, and one message that is written. The other end is a process of the same pod.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Lost, or not there.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other end is somebody else.
    #[error(transparent)]
    Unspoken(#[from] Unspoken),
    /// A message that can't be read.
    #[error(transparent)]
    Message(#[from] codec::Error),
    /// The other end doesn't read, or says nothing.
    #[error("the other end of the socket has been silent for {} s", DEADLINE.as_secs())]
    Silent,
}

/// What is read.
#[derive(Debug)]
pub struct Reader(FramedRead<OwnedReadHalf, LengthDelimitedCodec>);

/// What is written.
#[derive(Debug)]
pub struct Writer(FramedWrite<OwnedWriteHalf, LengthDelimitedCodec>);

fn frames() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(POD_FRAME_BYTES).new_codec()
}

/// Swaps preambles over a new connection.
///
/// # Errors
/// The other end is not Dunlin, or of a version that isn't known, or silent.
pub async fn greet(stream: UnixStream) -> Result<(Reader, Writer), Error> {
    let (mut read, mut write) = stream.into_split();
    let greeting = async {
        write.write_all(&pod::preamble()).await?;
        let mut theirs = [0; PREAMBLE_BYTES];
        read.read_exact(&mut theirs).await?;
        io::Result::Ok(theirs)
    };
    let theirs = timeout(DEADLINE, greeting).await.map_err(|_| Error::Silent)??;
    pod::agree(&theirs)?;
    Ok((Reader(FramedRead::new(read, frames())), Writer(FramedWrite::new(write, frames()))))
}

impl Reader {
    /// The next message; `None` when the other end has closed. Cancel-safe.
    ///
    /// # Errors
    /// The connection is lost, or the message is too large or none.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let Some(frame) = self.0.next().await else { return Ok(None) };
        Ok(Some(codec::decode(&frame?, POD_FRAME_BYTES)?))
    }

    /// The first message, which comes soon.
    ///
    /// # Errors
    /// As [`Self::next`], or it doesn't come.
    pub async fn first<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let first = timeout(DEADLINE, self.next()).await.map_err(|_| Error::Silent)??;
        first.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

impl Writer {
    /// Writes a message.
    ///
    /// # Errors
    /// The connection is lost, or the other end does not read.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Error> {
        let bytes = codec::encode(message, POD_FRAME_BYTES)?;
        timeout(DEADLINE, self.0.send(Bytes::from(bytes))).await.map_err(|_| Error::Silent)??;
        Ok(())
    }
}

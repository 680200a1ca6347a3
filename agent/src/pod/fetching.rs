//! The loader of weights tells the agent of its pod how far it has come.

use super::frame::{self, Writer};
use dunlin_protocol::pod::{FetchProgress, Opening};
use std::path::Path;
use tokio::net::UnixStream;

/// A connection to the agent of the pod.
#[derive(Debug)]
pub struct Teller {
    writer: Writer,
    /// Kept open: an agent that says something one day must not make this end fail.
    _reader: frame::Reader,
}

impl Teller {
    /// Connects to the agent that listens at `socket`, with the first news.
    ///
    /// # Errors
    /// There is none.
    pub async fn connect(socket: &Path, progress: FetchProgress) -> Result<Self, frame::Error> {
        let (reader, mut writer) = frame::greet(UnixStream::connect(socket).await?).await?;
        writer.send(&Opening::Fetch(progress)).await?;
        Ok(Self { writer, _reader: reader })
    }

    /// Tells the news.
    ///
    /// # Errors
    /// The agent has gone, or does not listen.
    pub async fn tell(&mut self, progress: &FetchProgress) -> Result<(), frame::Error> {
        self.writer.send(progress).await
    }
}

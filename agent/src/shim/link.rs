//! The connection to the agent: made again whenever it is lost.

use super::backlog::Backlog;
use crate::pod::frame::{self, Reader, Writer, greet};
use dunlin_protocol::pod::{EngineProcess, EngineState, FromShim, Opening, ToShim};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
    time::sleep,
};

/// Between two tries to connect: grows to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the shim hears.
#[derive(Debug)]
pub(super) enum Heard {
    /// There is an agent.
    Connected,
    /// There is none any more.
    Lost,
    /// It said something.
    Said(ToShim),
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: PathBuf,
    pub(super) instance: u64,
    pub(super) backlog: Arc<Backlog>,
}

impl Link {
    /// Tells an agent the newest of `states` and the engine's output; goes on until the shim ends.
    pub(super) async fn run(self, mut states: watch::Receiver<EngineState>, heard: mpsc::Sender<Heard>) {
        let mut pause = FIRST_PAUSE;
        let mut said = false;
        loop {
            match self.connect(&mut states).await {
                Ok((reader, writer)) => {
                    (pause, said) = (FIRST_PAUSE, false);
                    if heard.send(Heard::Connected).await.is_err() {
                        return;
                    }
                    if let Err(error) = self.talk(reader, writer, &mut states, &heard).await {
                        tracing::warn!(%error, "lost touch with the agent");
                    }
                    if heard.send(Heard::Lost).await.is_err() {
                        return;
                    }
                }
                Err(error) if !said => {
                    tracing::warn!(%error, socket = %self.socket.display(), "no agent at the socket yet");
                    said = true;
                }
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect(&self, states: &mut watch::Receiver<EngineState>) -> Result<(Reader, Writer), frame::Error> {
        let (reader, mut writer) = greet(UnixStream::connect(&self.socket).await?).await?;
        let state = states.borrow_and_update().clone();
        writer.send(&Opening::Engine { instance: self.instance, state }).await?;
        self.backlog.rewind();
        Ok((reader, writer))
    }

    async fn talk(
        &self,
        mut reader: Reader,
        mut writer: Writer,
        states: &mut watch::Receiver<EngineState>,
        heard: &mpsc::Sender<Heard>,
    ) -> Result<(), frame::Error> {
        loop {
            tokio::select! {
                message = reader.next::<ToShim>() => match message? {
                    None => return Ok(()),
                    Some(ToShim::Kept(number)) => self.backlog.forget(number),
                    // Bounded: a shim that does not heed its agent stops listening to it.
                    Some(message) => drop(heard.send(Heard::Said(message)).await),
                },
                changed = states.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let state = states.borrow_and_update().clone();
                    // An engine's last words come before the news of its end.
                    if !matches!(state.process, EngineProcess::Running { .. }) {
                        self.send_lines(&mut writer).await?;
                    }
                    writer.send(&FromShim::State(state)).await?;
                }
                () = self.backlog.written() => self.send_lines(&mut writer).await?,
            }
        }
    }

    async fn send_lines(&self, writer: &mut Writer) -> Result<(), frame::Error> {
        while let Some(lines) = self.backlog.take() {
            writer.send(&FromShim::Output(lines)).await?;
        }
        Ok(())
    }
}

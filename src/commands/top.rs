//! `dunlin top`: the mesh as it works, once a second, in a terminal.

mod sample;
mod state;
mod view;

use super::connect;
use crate::{args::TopArgs, exit::Failure};
use anyhow::{Result, bail};
use crossterm::event::{Event, EventStream, KeyEventKind};
use futures::StreamExt;
use ratatui::DefaultTerminal;
use sample::Sample;
use state::{State, Wish};
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
    time,
};

/// The screen is drawn at least so often: ages grow without news.
const REDRAW: Duration = Duration::from_secs(1);
/// Looks that wait to be shown.
const LOOKS: usize = 2;

pub(crate) async fn run(args: TopArgs, home: &Path) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(Failure::Usage(
            "`dunlin top` draws on a terminal, and this is none; for programs there are `dunlin status --output json`, \
             `dunlin peers --output json`, and the endpoint's /metrics"
                .into()
        ));
    }
    // What can fail at once does so before the screen is taken.
    let mut state = State::new();
    state.look(sample::take(&mut connect(home).await?).await?);
    let (looks, mut incoming) = mpsc::channel(LOOKS);
    let mut looking = JoinSet::new();
    looking.spawn(look(home.to_owned(), args.interval, looks));
    let mut screen = Screen::take()?;
    show(&mut screen.0, state, &mut incoming).await
}

/// Looks again and again, also at a node that went away and comes back.
async fn look(home: PathBuf, interval: Duration, looks: mpsc::Sender<Result<Sample>>) {
    let mut client = None;
    loop {
        time::sleep(interval).await;
        let seen = async {
            let mut connected = match client.take() {
                Some(connected) => connected,
                None => connect(&home).await?,
            };
            let sample = sample::take(&mut connected).await?;
            client = Some(connected);
            Ok(sample)
        };
        if looks.send(seen.await).await.is_err() {
            return;
        }
    }
}

/// Draws until somebody has seen enough.
async fn show(
    terminal: &mut DefaultTerminal,
    mut state: State,
    looks: &mut mpsc::Receiver<Result<Sample>>,
) -> Result<()> {
    let mut events = EventStream::new();
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let mut redraw = time::interval(REDRAW);
    let [terminate, interrupt, hangup] = &mut ends;
    let ended = async {
        let wait = async |end: &mut std::io::Result<tokio::signal::unix::Signal>| match end {
            Ok(end) => end.recv().await,
            Err(_) => std::future::pending().await,
        };
        tokio::select! {
            _ = wait(terminate) => {}
            _ = wait(interrupt) => {}
            _ = wait(hangup) => {}
        }
    };
    tokio::pin!(ended);
    loop {
        terminal.draw(|frame| view::draw(frame, &state, Instant::now()))?;
        tokio::select! {
            () = &mut ended => return Ok(()),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    if state.key(key) == Wish::Quit {
                        return Ok(());
                    }
                }
                // A resize is drawn at once; the rest is nothing to us.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            Some(seen) = looks.recv() => match seen {
                Ok(sample) => state.look(sample),
                Err(error) => state.fail(error.to_string().lines().next().unwrap_or_default().to_owned()),
            },
            _ = redraw.tick() => {}
        }
    }
}

/// The terminal, taken for drawing. Given back when this is dropped, and by a panic before it says why.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self> {
        Ok(Self(ratatui::try_init()?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = ratatui::try_restore();
    }
}

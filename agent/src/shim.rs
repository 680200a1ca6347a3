//! `dunlin engine -- CMD`: the first process of an engine's container. It starts the engine and passes on what it writes,
//! on its own outputs and to the agent in the sidecar, which says when the engine is started again and when it may end.
//!
//! `life` decides (pure); this file does.

mod backlog;
mod child;
mod life;
mod link;
mod reap;

use crate::{shim::child::Engine, supervise::describe};
use backlog::Backlog;
use dunlin_protocol::pod::EngineState;
use life::{Act, Life};
use link::Heard;
use rand::{RngExt, rngs::SmallRng};
use rustix::process::Signal;
use std::{future::pending, io, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Words of the agent that wait to be heeded.
const HEARD: usize = 16;
/// Time for the last output to reach the agent.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What the shim is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The agent's socket.
    pub socket: PathBuf,
    /// The engine's program and arguments; not empty.
    pub command: Vec<String>,
    /// How long it waits for an agent that isn't there before it decides by itself.
    pub alone_after: Duration,
}

/// Signals that go on to the engine as they are. [`SignalKind`]s have no names of their own.
fn passed_on() -> [(SignalKind, Signal); 5] {
    [
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::quit(), Signal::QUIT),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
        (SignalKind::window_change(), Signal::WINCH),
    ]
}

/// What comes from outside.
enum Order {
    Stop,
    PassOn(Signal),
}

/// Runs the engine until a SIGTERM or SIGINT, after which the agent has answered the last request.
///
/// # Errors
/// Signals can't be listened for.
pub async fn run(config: Config) -> io::Result<()> {
    let (orders, mut ordered) = mpsc::channel(HEARD);
    let mut tasks = listen_for_signals(&orders)?;
    reap::adopt_orphans();
    let mut rng: SmallRng = rand::make_rng();
    let mut life = Life::new(config.alone_after, Instant::now());
    let (state, states) = watch::channel(life.state(Instant::now()));
    let backlog = Arc::new(Backlog::default());
    let (heard, mut hearing) = mpsc::channel(HEARD);
    let link = link::Link { socket: config.socket.clone(), instance: rng.random(), backlog: Arc::clone(&backlog) };
    tasks.spawn(link.run(states, heard));
    let mut shim = Shim { config, state, backlog, engine: None };
    loop {
        let next = life.next();
        tokio::select! {
            Some(order) = ordered.recv() => match order {
                Order::Stop => life.stop(Instant::now()),
                Order::PassOn(signal) => shim.signal(signal),
            },
            Some(heard) = hearing.recv() => match heard {
                Heard::Connected => life.connected(Instant::now()),
                Heard::Lost => life.lost(Instant::now()),
                Heard::Said(message) => life.heard(message, Instant::now()),
            },
            ended = shim.ended() => {
                let how = shim.bury(ended).await;
                life.ended(how, &mut rng, Instant::now());
            }
            () = at(next) => {}
        }
        while let Some(act) = life.act(Instant::now()) {
            match act {
                Act::Start => match shim.start() {
                    Ok(pid) => life.started(pid, Instant::now()),
                    Err(how) => life.ended(how, &mut rng, Instant::now()),
                },
                Act::Signal(signal) => shim.signal(signal),
                Act::End => {
                    shim.publish(life.state(Instant::now()));
                    shim.backlog.emptied(LAST_WORDS).await;
                    return Ok(());
                }
            }
        }
        shim.publish(life.state(Instant::now()));
    }
}

fn listen_for_signals(orders: &mpsc::Sender<Order>) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for (kind, passed) in passed_on() {
        let (mut stream, orders) = (signal(kind)?, orders.clone());
        tasks.spawn(async move {
            while stream.recv().await.is_some() && orders.send(Order::PassOn(passed)).await.is_ok() {}
        });
    }
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut stream, orders) = (signal(kind)?, orders.clone());
        tasks.spawn(async move { while stream.recv().await.is_some() && orders.send(Order::Stop).await.is_ok() {} });
    }
    Ok(tasks)
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => pending().await,
    }
}

struct Shim {
    config: Config,
    state: watch::Sender<EngineState>,
    backlog: Arc<Backlog>,
    engine: Option<Engine>,
}

impl Shim {
    /// The error is for people.
    fn start(&mut self) -> Result<u32, String> {
        let engine = Engine::spawn(&self.config.command, &self.backlog).map_err(|error| {
            let program = self.config.command.first().map_or("", String::as_str);
            match error.kind() {
                io::ErrorKind::NotFound => format!("`{program}` was not found in the engine's container"),
                _ => format!("`{program}` could not be started: {error}"),
            }
        })?;
        let pid = engine.pid();
        self.engine = Some(engine);
        Ok(pid)
    }

    fn signal(&self, signal: Signal) {
        if let Some(engine) = &self.engine {
            engine.signal(signal);
        }
    }

    /// Ends with the engine, and reaps what it leaves behind meanwhile. Cancel-safe.
    async fn ended(&mut self) -> io::Result<ExitStatus> {
        let Some(engine) = &mut self.engine else { return pending().await };
        let pid = engine.pid();
        tokio::select! {
            ended = engine.ended() => ended,
            () = reap::orphans(pid) => pending().await,
        }
    }

    /// Takes in its last output; returns how it ended, for people.
    async fn bury(&mut self, ended: io::Result<ExitStatus>) -> String {
        if let Some(engine) = self.engine.take() {
            engine.bury().await;
        }
        ended.map_or_else(|error| error.to_string(), |status| describe(status, false))
    }

    fn publish(&self, state: EngineState) {
        self.state.send_if_modified(|old| {
            let changed = *old != state;
            *old = state;
            changed
        });
    }
}

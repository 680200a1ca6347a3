//! The agent's side of an engine that a shim runs: when it is started and ended, what it wrote, and that the shim may go.

use super::{
    frame,
    reception::{Shim, receive},
};
use crate::{
    engine::EngineUrl,
    output::{
        Output, STARTED,
        capture::{LogFile, write},
    },
    replica::Replica,
    supervise::{Process, backoff, open_log, say},
};
use dunlin_protocol::pod::{EngineProcess, EngineState, FromShim, Lines, Stop, ToShim};
use rand::rngs::SmallRng;
use std::{future::pending, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    net::UnixListener,
    sync::mpsc,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// What an engine gets that hangs to end by itself, milliseconds.
const HUNG_MS: u64 = 5_000;

/// After so long without a shim the engine is looked at as one that somebody else runs.
const UNSHIMMED: Duration = Duration::from_secs(10);

/// What the agent was told about the engine in the other container.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where it listens.
    pub(crate) url: EngineUrl,
    /// Of the agent: log files lie there.
    pub(crate) directory: PathBuf,
    /// Longest that its last requests may take.
    pub(crate) drain: Duration,
}

/// Answers for the engine of `replica` until `shutdown`. The engine runs on: the next agent finds it.
pub(crate) async fn attend(replica: Arc<Replica>, listener: UnixListener, place: Place, shutdown: CancellationToken) {
    let file = open_log(&place.directory, replica.index, &replica.output).await;
    replica.set_process(Process::Waiting);
    let (sender, mut shims) = mpsc::channel(1);
    let mut desk = Desk::new(Arc::clone(&replica), place, file);
    let guests = receive(listener, replica, sender);
    let attending = async {
        let mut next = match timeout(UNSHIMMED, shims.recv()).await {
            Ok(shim) => shim,
            Err(_) => {
                // Weights may be on the way; or the image's own entry point runs, where no command is known.
                desk.replica.set_url(Some(desk.place.url.clone()));
                shims.recv().await
            }
        };
        while let Some(shim) = next.take() {
            next = desk.serve(shim, &mut shims).await;
        }
    };
    tokio::select! {
        () = guests => {}
        () = attending => {}
        () = shutdown.cancelled() => {}
    }
}

struct Desk {
    replica: Arc<Replica>,
    place: Place,
    file: LogFile,
    /// The shim that was served last.
    instance: Option<u64>,
    /// The run of its engine that is known here.
    run: u32,
    /// The number of the line that comes next.
    kept: u64,
    /// Why its engine was told to end, and in which run.
    ordered: Option<(u32, String)>,
    /// No shim was met yet: the output so far is what an earlier agent kept.
    fresh: bool,
    /// Until when the last requests may take, once the pod is to end.
    drain_until: Option<Instant>,
}

/// When the engine is started, if ever.
type Due = Option<(Instant, u32)>;

impl Desk {
    fn new(replica: Arc<Replica>, place: Place, file: LogFile) -> Self {
        let (instance, ordered, drain_until) = (None, None, None);
        Self { replica, place, file, instance, run: 0, kept: 0, ordered, fresh: true, drain_until }
    }

    /// Serves a shim until it goes; returns the next one.
    async fn serve(&mut self, shim: Shim, next: &mut mpsc::Receiver<Shim>) -> Option<Shim> {
        let instance = shim.instance;
        let ended = tokio::select! {
            ended = self.talk(shim) => ended,
            newer = next.recv() => {
                // One shim runs the engine; the container of the older one has ended, whatever its connection says.
                return newer;
            }
        };
        if let Err(error) = ended {
            tracing::warn!(replica = self.replica.index, instance, %error, "lost touch with the engine's shim");
        }
        self.lost().await;
        next.recv().await
    }

    async fn talk(&mut self, mut shim: Shim) -> Result<(), frame::Error> {
        let drain_ms = self.place.drain.as_millis().try_into().unwrap_or(u64::MAX);
        shim.writer.send(&ToShim::Manners { stop: self.stop(), drain_ms }).await?;
        if self.instance != Some(shim.instance) {
            (self.instance, self.run, self.kept, self.ordered) = (Some(shim.instance), 0, 0, None);
        }
        self.replica.forget_restart();
        let mut run = shim.state.run;
        let mut due = self.saw(&shim.state).await;
        loop {
            tokio::select! {
                message = shim.reader.next() => match message? {
                    None => return Ok(()),
                    Some(FromShim::Output(lines)) => {
                        self.keep(lines).await;
                        shim.writer.send(&ToShim::Kept(self.kept)).await?;
                    }
                    Some(FromShim::State(state)) => {
                        due = self.saw(&state).await;
                        run = state.run;
                    }
                },
                next = at(due) => {
                    due = None;
                    if next > 1 {
                        self.replica.count_restart();
                    }
                    shim.writer.send(&ToShim::Start(next)).await?;
                }
                why = self.replica.restart_ordered() => {
                    self.replica.forget_restart();
                    let Stop { signal, grace_ms } = self.stop();
                    let stop = Stop { signal, grace_ms: grace_ms.min(HUNG_MS) };
                    self.ordered = Some((run, why));
                    shim.writer.send(&ToShim::Stop { run, stop }).await?;
                }
                () = drained(&self.replica, self.drain_until) => {
                    self.drain_until = None;
                    self.replica.gone();
                    shim.writer.send(&ToShim::Drained(self.stop())).await?;
                }
            }
        }
    }

    fn stop(&self) -> Stop {
        let drain = self.replica.runtime().drain.clone();
        Stop { signal: drain.signal, grace_ms: drain.grace_s.saturating_mul(1000) }
    }

    /// Takes in where the engine stands; returns when to start it.
    async fn saw(&mut self, state: &EngineState) -> Due {
        let known = std::mem::replace(&mut self.run, state.run);
        if state.stopping && !self.replica.is_ending() {
            tracing::info!(replica = self.replica.index, "the engine's container is to end: finishing its requests");
            self.replica.drain();
            self.drain_until = Some(Instant::now() + self.place.drain);
        }
        let is_running = matches!(state.process, EngineProcess::Running { .. });
        if std::mem::take(&mut self.fresh) && !is_running {
            self.replica.output.begin_run();
        }
        let next = state.run.saturating_add(1);
        match &state.process {
            EngineProcess::Waiting => {
                self.lost().await;
                (!state.stopping).then(|| (Instant::now(), next))
            }
            EngineProcess::Running { pid } => {
                self.running(*pid, known != state.run).await;
                None
            }
            EngineProcess::Ended { how, failures, ago_ms } => {
                let delay = self.ended(how, *failures, state.run).await;
                let left = delay.saturating_sub(Duration::from_millis(*ago_ms));
                (!state.stopping).then(|| (Instant::now() + left, next))
            }
        }
    }

    /// `anew`: it is not known from before.
    async fn running(&self, pid: u32, anew: bool) {
        let replica = &self.replica;
        let process = Process::InContainer { pid };
        if !anew && replica.process().as_ref() == Some(&process) {
            return;
        }
        say(&replica.output, &self.file, &format!("{STARTED}: process {pid} of its container")).await;
        tracing::info!(replica = replica.index, pid, url = %self.place.url, "engine started");
        replica.set_process(process);
        replica.set_url(Some(self.place.url.clone()));
    }

    async fn ended(&mut self, how: &str, failures: u32, run: u32) -> Duration {
        let replica = &self.replica;
        let how = match self.ordered.take_if(|(ordered, _)| *ordered == run) {
            Some((_, why)) => why,
            None => how.to_owned(),
        };
        // The shell's own randomness, for jitter.
        let mut rng: SmallRng = rand::make_rng();
        let delay = backoff::pause(failures, &mut rng);
        replica.process_ended(&how);
        let ended = format!("[dunlin] engine ended: {how}; next start in {:.1} s", delay.as_secs_f64());
        say(&replica.output, &self.file, &ended).await;
        replica.output.begin_run();
        tracing::warn!(replica = replica.index, exit = how, failures, ?delay, "engine ended");
        replica.set_process(Process::restarting(how, failures, delay));
        delay
    }

    /// The shim has gone, and with it, as the first process of its container, the engine.
    async fn lost(&self) {
        if self.replica.process().is_some_and(|process| process.runs()) {
            self.replica.process_ended("its container has ended");
            say(&self.replica.output, &self.file, "[dunlin] the engine's container has ended").await;
            self.replica.output.begin_run();
            self.replica.set_process(Process::Waiting);
        }
    }

    async fn keep(&mut self, Lines { first, lines }: Lines) {
        let output: &Output = &self.replica.output;
        let next = first.saturating_add(lines.len() as u64);
        if first > self.kept && self.kept > 0 {
            say(output, &self.file, &format!("[dunlin] {} lines were lost", first - self.kept)).await;
        }
        let known = usize::try_from(self.kept.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut text = String::new();
        for line in lines.iter().skip(known) {
            output.push(line);
            text.push_str(line);
            text.push('\n');
        }
        write(&self.file, text.as_bytes()).await;
        self.kept = self.kept.max(next);
    }
}

/// Ends when an engine is to be started: its run.
async fn at(due: Due) -> u32 {
    match due {
        Some((when, run)) => {
            sleep_until(when).await;
            run
        }
        None => pending().await,
    }
}

/// Ends when the last request of a replica that is to end was answered, or has had its time.
async fn drained(replica: &Replica, until: Option<Instant>) {
    let Some(until) = until else { return pending().await };
    if timeout_at(until, replica.gate.empty()).await.is_err() {
        tracing::warn!(replica = replica.index, "requests did not end within the drain deadline; they are cut off");
    }
}

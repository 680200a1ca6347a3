//! The life of a launched engine: start, watch, restart, until told to stop.

use super::{
    Process,
    backoff::Backoff,
    child::Child,
    orphan::{Entry, PidFile},
    plan::{Order, Plan, plan},
};
use crate::{
    engine::EngineUrl,
    output::{
        Output, RING_BYTES, STARTED,
        capture::{LogFile, write},
        file::{FILE_BYTES, RotatedFile},
    },
    replica::Replica,
};
use rand::{RngExt, rngs::SmallRng};
use std::{
    path::PathBuf,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

/// What an engine gets that hangs to end by itself.
const HUNG: Duration = Duration::from_secs(5);

/// Keeps the engine of `replica` running until `shutdown`, then ends it. `directory` holds its log and pid file.
pub(crate) async fn supervise(replica: Arc<Replica>, order: Order, directory: PathBuf, shutdown: CancellationToken) {
    let index = replica.index;
    let pid_file = PidFile::new(&directory, index);
    let file = open_log(&directory, index, &replica.output).await;
    replica.output.begin_run();
    // The shell's own randomness, for jitter and marks.
    let mut rng: SmallRng = rand::make_rng();
    let mut backoff = Backoff::default();
    while !shutdown.is_cancelled() {
        let started = Instant::now();
        let mark = format!("{:016x}", rng.random::<u64>());
        replica.set_container(None);
        let exit = match launch(&replica, &order, &mark, &pid_file, &file) {
            Ok(child) => {
                say(&replica.output, &file, &format!("{STARTED}: process {}", child.pid())).await;
                match watch(&replica, child, &shutdown).await {
                    Some(exit) => exit,
                    None => break,
                }
            }
            Err(error) => error,
        };
        replica.process_ended(&exit);
        pid_file.remove();
        let delay = backoff.ended(started.elapsed(), &mut rng);
        let ended = format!("[dunlin] engine ended: {exit}; next start in {:.1} s", delay.as_secs_f64());
        say(&replica.output, &file, &ended).await;
        // From now on that was the previous run: nobody should have to wait for the next to ask for it.
        replica.output.begin_run();
        tracing::warn!(replica = index, exit, failures = backoff.failures(), ?delay, "engine ended");
        replica.set_process(Process::restarting(exit, backoff.failures(), delay));
        tokio::select! {
            () = tokio::time::sleep(delay) => replica.count_restart(),
            () = shutdown.cancelled() => {}
        }
    }
    pid_file.remove();
    replica.set_process(Process::Stopped);
}

/// A line of the agent's own among the engine's.
pub(crate) async fn say(output: &Output, file: &LogFile, line: &str) {
    output.push(line);
    write(file, format!("{line}\n").as_bytes()).await;
}

/// Opens the log file, and remembers how it ended: the last run that an earlier agent saw.
pub(crate) async fn open_log(directory: &std::path::Path, index: u16, output: &Output) -> LogFile {
    let path = directory.join(format!("{index}.log"));
    let opened = RotatedFile::open(path.clone(), FILE_BYTES).await;
    let opened = opened.inspect_err(|error| {
        tracing::warn!(path = %path.display(), %error, "engine output is kept in memory only");
    });
    if let Ok(file) = &opened
        && let Ok((end, written)) = file.end(RING_BYTES as u64).await
    {
        let age = SystemTime::now().duration_since(written).unwrap_or_default();
        let now = std::time::Instant::now();
        output.restore(&end, now.checked_sub(age).unwrap_or(now));
    }
    Arc::new(Mutex::new(opened.ok()))
}

/// Starts the engine. The error is for people.
fn launch(
    replica: &Arc<Replica>,
    order: &Order,
    mark: &str,
    pid_file: &PidFile,
    file: &LogFile,
) -> Result<Child, String> {
    let plan = plan(&replica.runtime(), &replica.configured, order, mark).map_err(|e| e.to_string())?;
    let Plan { port, command, container } = &plan;
    let url = EngineUrl::loopback(*port).map_err(|e| e.to_string())?;
    let child = Child::spawn(&plan, mark, &replica.output, file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("`{}` was not found; install it, or add its folder to PATH", command.program)
        }
        _ => format!("`{}` could not be started: {error}", command.program),
    })?;
    if let Some(entry) = Entry::of(child.pid(), mark.to_owned(), container.clone())
        && let Err(error) = pid_file.write(&entry)
    {
        tracing::warn!(replica = replica.index, %error, "engine is not written down; it would outlive a killed agent");
    }
    tracing::info!(replica = replica.index, program = command.program, pid = child.pid(), port, "engine started");
    replica.set_container(container.clone());
    replica.set_process(Process::Running { pid: child.pid() });
    replica.set_url(Some(url));
    Ok(child)
}

/// How the engine ended by itself; `None` when it was told to.
async fn watch(replica: &Arc<Replica>, mut child: Child, shutdown: &CancellationToken) -> Option<String> {
    replica.forget_restart();
    let ended = tokio::select! {
        ended = child.ended() => ended,
        why = replica.restart_ordered() => {
            let drain = replica.runtime().drain.clone();
            child.stop(drain.signal, HUNG.min(Duration::from_secs(drain.grace_s))).await;
            return Some(why);
        }
        () = shutdown.cancelled() => {
            let drain = replica.runtime().drain.clone();
            child.stop(drain.signal, Duration::from_secs(drain.grace_s)).await;
            return None;
        }
    };
    child.bury().await;
    Some(ended.map_or_else(|error| error.to_string(), |status| describe(status, replica.container().is_some())))
}

/// How a process ended, for people.
pub(crate) fn describe(status: ExitStatus, in_container: bool) -> String {
    // What docker and podman say for themselves.
    match status.code() {
        Some(125) if in_container => return format!("{status} (the container could not be run: see the output)"),
        Some(126 | 127) if in_container => {
            return format!("{status} (the image lacks the program, or it can't be run)");
        }
        _ => {}
    }
    // `llama-server` builds for other CPUs die so at their first instruction.
    if status.code() == Some(132) || status.to_string().contains("SIGILL") {
        return format!("{status} (illegal instruction: this build does not suit this CPU)");
    }
    status.to_string()
}

//! The life of a launched engine: start, watch, restart, until told to stop.

use super::{
    Process,
    backoff::Backoff,
    child::Child,
    orphan::{Entry, PidFile},
    plan::{Plan, plan},
};
use crate::{
    engine::EngineUrl,
    output::{
        capture::LogFile,
        file::{FILE_BYTES, RotatedFile},
    },
    replica::Replica,
};
use rand::{RngExt, rngs::SmallRng};
use std::{path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

/// What an engine gets that hangs to end by itself.
const HUNG: Duration = Duration::from_secs(5);

/// Keeps the engine of `replica` running until `shutdown`, then ends it. `directory` holds its log and pid file.
pub(crate) async fn supervise(
    replica: Arc<Replica>,
    args: Vec<String>,
    directory: PathBuf,
    shutdown: CancellationToken,
) {
    let index = replica.index;
    let pid_file = PidFile::new(&directory, index);
    let file = open_log(&directory, index).await;
    // The shell's own randomness, for jitter and marks.
    let mut rng: SmallRng = rand::make_rng();
    let mut backoff = Backoff::default();
    while !shutdown.is_cancelled() {
        let started = Instant::now();
        let mark = format!("{:016x}", rng.random::<u64>());
        let exit = match launch(&replica, &args, &mark, &pid_file, &file) {
            Ok(child) => match watch(&replica, child, &shutdown).await {
                Some(exit) => exit,
                None => break,
            },
            Err(error) => error,
        };
        replica.process_ended(&exit);
        pid_file.remove();
        let delay = backoff.ended(started.elapsed(), &mut rng);
        replica.output.push(&format!("[dunlin] engine ended: {exit}; next start in {:.1} s", delay.as_secs_f64()));
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

async fn open_log(directory: &std::path::Path, index: u16) -> LogFile {
    let path = directory.join(format!("{index}.log"));
    let opened = RotatedFile::open(path.clone(), FILE_BYTES).await;
    let opened = opened.inspect_err(|error| {
        tracing::warn!(path = %path.display(), %error, "engine output is kept in memory only");
    });
    Arc::new(Mutex::new(opened.ok()))
}

/// Starts the engine. The error is for people.
fn launch(
    replica: &Arc<Replica>,
    args: &[String],
    mark: &str,
    pid_file: &PidFile,
    file: &LogFile,
) -> Result<Child, String> {
    let Plan { port, command } = plan(&replica.runtime(), &replica.configured, args).map_err(|e| e.to_string())?;
    let url = EngineUrl::loopback(port).map_err(|e| e.to_string())?;
    let child = Child::spawn(&command, mark, &replica.output, file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("`{}` was not found; install it, or add its folder to PATH", command.program)
        }
        _ => format!("`{}` could not be started: {error}", command.program),
    })?;
    if let Some(entry) = Entry::of(child.pid(), mark.to_owned())
        && let Err(error) = pid_file.write(&entry)
    {
        tracing::warn!(replica = replica.index, %error, "engine is not written down; it would outlive a killed agent");
    }
    tracing::info!(replica = replica.index, program = command.program, pid = child.pid(), port, "engine started");
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
    Some(ended.map_or_else(|error| error.to_string(), describe))
}

fn describe(status: ExitStatus) -> String {
    // `llama-server` builds for other CPUs die so at their first instruction.
    if status.code() == Some(132) || status.to_string().contains("SIGILL") {
        return format!("{status} (illegal instruction: this build does not suit this CPU)");
    }
    status.to_string()
}

//! The engine as a child process whose output goes two ways.

use super::backlog::Backlog;
use crate::{output::capture::Lines, supervise::child::Group};
use rustix::process::{Pid, Signal};
use std::{
    io,
    os::fd::AsFd,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

/// One read of a pipe: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// Time for the last output to come through after the process has ended, should a grandchild hold the pipe open.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// A running engine, in a process group of its own. Dropping it kills the group.
#[derive(Debug)]
pub(super) struct Engine {
    process: Child,
    group: Group,
    pid: u32,
    pipes: JoinSet<()>,
}

impl Engine {
    pub(super) fn spawn(command: &[String], backlog: &Arc<Backlog>) -> io::Result<Self> {
        let [program, arguments @ ..] = command else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().ok_or_else(|| io::Error::other("it ended at once"))?;
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("not a process id"))?;
        let mut pipes = JoinSet::new();
        if let Some(stdout) = process.stdout.take() {
            pipes.spawn(tee(stdout, own(io::stdout())?, Arc::clone(backlog)));
        }
        if let Some(stderr) = process.stderr.take() {
            pipes.spawn(tee(stderr, own(io::stderr())?, Arc::clone(backlog)));
        }
        Ok(Self { process, group: Group::of(id), pid, pipes })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.group.signal(signal);
    }

    /// Ends with the process. Cancel-safe.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Ends what is left of the group, and takes in the last output.
    pub(super) async fn bury(mut self) {
        self.group.kill();
        self.group.disarm();
        let _ = timeout(LAST_OUTPUT, async { while self.pipes.join_next().await.is_some() {} }).await;
    }
}

/// An output of this process, to be written without standing still.
fn own(output: impl AsFd) -> io::Result<File> {
    Ok(File::from_std(output.as_fd().try_clone_to_owned()?.into()))
}

/// Reads `pipe` to its end, whatever becomes of what is read: an engine whose pipe is full hangs.
async fn tee(mut pipe: impl AsyncRead + Unpin, mut own: File, backlog: Arc<Backlog>) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.take(&buffer[..read], |line| backlog.push(line));
        if own.write_all(&buffer[..read]).await.is_ok() {
            let _ = own.flush().await;
        }
    }
    lines.end(|line| backlog.push(line));
}

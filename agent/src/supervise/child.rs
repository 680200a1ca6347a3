//! A child process in a process group of its own.

use super::{container::Named, orphan::MARK, plan::Plan};
use crate::output::{
    Output,
    capture::{LogFile, capture},
};
use dunlin_protocol::runtime::StopSignal;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{io, process::ExitStatus, process::Stdio, sync::Arc, time::Duration};
use tokio::{process, task::JoinSet, time::timeout};

/// Time for the last output to come through after the process has ended, should a grandchild hold the pipe open.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// A process group that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    id: Pid,
    armed: bool,
    /// A container that a command line in this group runs, and that would outlive it.
    container: Option<Named>,
}

impl Group {
    pub(crate) fn of(id: Pid) -> Self {
        Self { id, armed: true, container: None }
    }

    /// An error means that nobody is left there, which is what signals are for.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.id, signal);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Dropping kills no more: the group is empty, and its id may be somebody else's soon.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.armed {
            self.kill();
            if let Some(container) = &self.container {
                container.end_unseen();
            }
        }
    }
}

/// Kills the group of a launched engine, and its container, for the end of this process without destructors.
pub(crate) fn kill_group(pid: u32, container: Option<&Named>) {
    if let Some(container) = container {
        container.end_unseen();
    }
    if let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that nobody is left there.
        let _ = kill_process_group(id, Signal::KILL);
    }
}

/// A running engine. Dropping it kills the whole group.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    group: Group,
    pid: u32,
    pipes: JoinSet<()>,
}

impl Child {
    pub(crate) fn spawn(plan: &Plan, mark: &str, output: &Arc<Output>, file: &LogFile) -> io::Result<Self> {
        let Plan { command, container, .. } = plan;
        let mut process = process::Command::new(&command.program)
            .args(&command.args)
            .envs(&command.env)
            .env(MARK, mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().ok_or_else(|| io::Error::other("the engine ended at once"))?;
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("not a process id"))?;
        let mut group = Group::of(id);
        group.container.clone_from(container);
        let mut pipes = JoinSet::new();
        if let Some(stdout) = process.stdout.take() {
            pipes.spawn(capture(stdout, Arc::clone(output), Arc::clone(file)));
        }
        if let Some(stderr) = process.stderr.take() {
            pipes.spawn(capture(stderr, Arc::clone(output), Arc::clone(file)));
        }
        Ok(Self { process, group, pid, pipes })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends with the process. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Asks the group to end, and makes it end after `grace`.
    pub(crate) async fn stop(mut self, signal: StopSignal, grace: Duration) {
        self.group.signal(match signal {
            StopSignal::Term => Signal::TERM,
            StopSignal::Int => Signal::INT,
        });
        // The command line passes the signal on, and ends with its container.
        if timeout(grace, self.process.wait()).await.is_err() {
            tracing::warn!(pid = self.pid, grace_s = grace.as_secs(), "engine did not end when asked; killing it");
        }
        self.bury().await;
    }

    /// Ends what is left of the group, and takes in the last output.
    pub(crate) async fn bury(mut self) {
        // The group's id is not used again while any member is left, and without one this does nothing: the window in
        // which it could be somebody else's is that between `wait` and here.
        self.group.kill();
        if let Some(container) = &self.group.container {
            container.end().await;
        }
        self.group.disarm();
        if timeout(LAST_OUTPUT, self.process.wait()).await.is_err() {
            tracing::warn!(pid = self.pid, "engine could not be killed");
        }
        let _ = timeout(LAST_OUTPUT, async { while self.pipes.join_next().await.is_some() {} }).await;
    }
}

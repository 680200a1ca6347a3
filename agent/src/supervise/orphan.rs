//! Engines that outlived their agent. Each running engine stands in a file of the state directory; the next agent there
//! ends it before it starts its own (two engines would not fit on one GPU).
//!
//! A process id alone proves nothing, since ids are used again: the engine's first process must have the start time that
//! was written down, in the same boot. When only its children are left, those carry a mark in their environment.

use super::{
    child::Group,
    container::{self, Named},
};
use futures::future::join_all;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Environment variable that marks an engine and its children.
pub(crate) const MARK: &str = "DUNLIN_ENGINE";
/// What an orphan has for ending by itself.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// A running engine as written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pid: u32,
    /// In clock ticks since boot, field 22 of `/proc/PID/stat`.
    start_time: u64,
    boot: String,
    /// Value of [`MARK`] in its environment.
    mark: String,
    /// The container that it runs.
    #[serde(default)]
    container: Option<Named>,
}

/// The file of one engine.
#[derive(Debug, Clone)]
pub(crate) struct PidFile(PathBuf);

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Process group and start time from `/proc/PID/stat`; nothing for a zombie, which has ended. The second field is a name
/// in parentheses that may hold anything.
fn stat(text: &str) -> Option<(i32, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_ascii_whitespace().collect();
    if *fields.first()? == "Z" {
        return None;
    }
    Some((fields.get(2)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Process group and start time of a process.
fn process(pid: u32) -> Option<(i32, u64)> {
    stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl Entry {
    /// Of a child that was started just now; `None` where the system does not tell.
    pub(crate) fn of(pid: u32, mark: String, container: Option<Named>) -> Option<Self> {
        let (_, start_time) = process(pid)?;
        Some(Self { pid, start_time, boot: boot(), mark, container })
    }

    /// Whether this engine or a child of it still runs.
    fn survives(&self) -> bool {
        if self.boot != boot() {
            return false;
        }
        match process(self.pid) {
            Some((_, start_time)) => start_time == self.start_time,
            None => self.has_marked_member(),
        }
    }

    fn has_marked_member(&self) -> bool {
        let mark = format!("{MARK}={}", self.mark);
        let Ok(all) = fs::read_dir("/proc") else { return false };
        all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).any(|pid| {
            let in_group = process(pid).is_some_and(|(group, _)| u32::try_from(group) == Ok(self.pid));
            in_group
                && fs::read(format!("/proc/{pid}/environ"))
                    .is_ok_and(|environ| environ.split(|&byte| byte == 0).any(|pair| pair == mark.as_bytes()))
        })
    }
}

/// Ends every engine that an earlier agent with this directory left behind, whatever engines this one has. `tools` are
/// the command lines with which this one runs containers: what was written down names those of earlier ones.
pub(crate) async fn reap_all(directory: &Path, mut tools: BTreeSet<String>) {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let pid_files = files.filter(|path| path.extension().is_some_and(|extension| extension == "pid"));
    let pid_files: Vec<_> = pid_files.collect();
    let written_down = pid_files.iter().filter_map(|path| PidFile(path.clone()).read()?.container);
    tools.extend(written_down.map(|container| container.program().to_owned()));
    join_all(pid_files.into_iter().map(|path| async move {
        if let Some(pid) = PidFile(path).reap().await {
            tracing::warn!(pid, "ended an engine that an earlier agent left behind");
        }
    }))
    .await;
    container::reap(directory, tools).await;
}

impl PidFile {
    pub(crate) fn new(directory: &Path, index: u16) -> Self {
        Self(directory.join(format!("{index}.pid")))
    }

    /// Writes the engine down before anything else is done with it.
    pub(crate) fn write(&self, entry: &Entry) -> io::Result<()> {
        let text = serde_json::to_vec(entry)?;
        // Small and local, so that it may be done on the runtime's thread.
        let new = self.0.with_extension("pid.new");
        fs::write(&new, text)?;
        fs::rename(new, &self.0)
    }

    /// The engine has ended, with its group.
    pub(crate) fn remove(&self) {
        // A file that stays names a process that has gone: harmless.
        let _ = fs::remove_file(&self.0);
    }

    fn read(&self) -> Option<Entry> {
        serde_json::from_slice(&fs::read(&self.0).ok()?).ok()
    }

    /// Ends the engine of an earlier agent, if it still runs. Returns its process id.
    async fn reap(&self) -> Option<u32> {
        let entry = self.read()?;
        let id = i32::try_from(entry.pid).ok().and_then(Pid::from_raw);
        let Some(id) = id.filter(|_| entry.survives()) else {
            self.remove();
            return None;
        };
        // Ends with everything killed, even when this is cancelled half-way.
        let mut group = Group::of(id);
        group.signal(Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while entry.survives() && Instant::now() < deadline {
            sleep(POLL).await;
        }
        group.kill();
        group.disarm();
        self.remove();
        Some(entry.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_nasty_name() {
        let text = "42 (a) b (c)) S 1 40 40 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1";
        assert_eq!(stat(text), Some((40, 987_654)));
        assert_eq!(stat("42 (a) S 1"), None);
        assert_eq!(stat(&text.replace(") S ", ") Z ")), None);
        assert_eq!(stat(""), None);
    }

    #[test]
    fn this_process_is_found() {
        let (_, start_time) = process(std::process::id()).unwrap();
        assert!(start_time > 0);
    }

    #[tokio::test]
    async fn a_reused_pid_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::new(dir.path(), 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let right = Entry::of(child.id(), "m".into(), None).unwrap();
        for wrong in [
            Entry { start_time: right.start_time + 1, ..right.clone() },
            Entry { boot: "another".into(), ..right.clone() },
        ] {
            file.write(&wrong).unwrap();
            assert_eq!(file.reap().await, None);
            assert!(child.try_wait().unwrap().is_none());
            assert_eq!(file.read(), None);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_broken_file_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let file = PidFile::new(dir.path(), 3);
        assert_eq!(file.reap().await, None);
        std::fs::write(dir.path().join("3.pid"), b"{").unwrap();
        assert_eq!(file.reap().await, None);
    }
}

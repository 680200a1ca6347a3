//! Processes that end with the test, whatever happens to it.

use rustix::process::{Pid, Signal};
use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Environment variable by which a test's processes are recognised; children inherit it.
pub(crate) const MARK: &str = "E2E_MARK";

/// A child process, and the leader of its process group.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    exit: Option<ExitStatus>,
}

impl Process {
    pub(super) fn start(name: &str, command: Command, mark: &str, log: PathBuf) -> Self {
        let mut command = dies_with_its_parent(command);
        let file = File::create(&log).unwrap();
        command.env(MARK, mark).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("can't start {name}: {error}"));
        Self { name: name.to_owned(), child, log, exit: None }
    }

    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Signals the process itself, not its group.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id()).unwrap();
        rustix::process::kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.exit = Some(self.child.wait().unwrap());
    }

    pub(crate) fn try_exit(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().unwrap();
        }
        self.exit
    }

    /// Its exit status.
    ///
    /// # Panics
    /// It still runs after `deadline`.
    #[track_caller]
    pub(crate) fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        super::wait_for(&what, deadline, || self.try_exit())
    }

    /// Fails the test at once, with what it wrote, when the process has ended.
    #[track_caller]
    pub(crate) fn assert_running(&mut self) {
        if let Some(status) = self.try_exit() {
            panic!("{} ended ({status}):\n{}", self.name, self.output());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.try_exit().is_none() {
            let _ = rustix::process::kill_process_group(Pid::from_raw(self.id()).unwrap(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Lets the kernel end the process when the test runner is killed: no destructor runs then.
fn dies_with_its_parent(command: Command) -> Command {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    let works = || Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).status().is_ok_and(|s| s.success());
    if !AVAILABLE.get_or_init(works) {
        return command;
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// Live processes with this mark in their environment.
pub(super) fn marked(mark: &str) -> Vec<(i32, String)> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    ids.filter_map(|id| {
        // Empty for zombies.
        let environment = std::fs::read(format!("/proc/{id}/environ")).ok()?;
        environment.split(|&b| b == 0).find(|variable| *variable == wanted.as_bytes())?;
        let arguments = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        Some((id, String::from_utf8_lossy(&arguments).replace('\0', " ")))
    })
    .collect()
}

/// Ends them all, those included that were started meanwhile.
pub(super) fn end_marked(mark: &str) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        let alive = marked(mark);
        if alive.is_empty() {
            return;
        }
        for (id, _) in alive {
            if let Some(pid) = Pid::from_raw(id) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

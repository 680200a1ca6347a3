//! One test's folder and processes.

use super::process::{self, Process};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

/// A folder of its own, and a mark in the environment of every process that a test starts, by which all of them, and
/// whatever they started, are found and ended.
pub(crate) struct Sandbox {
    folder: PathBuf,
    mark: String,
    logs: Mutex<Vec<PathBuf>>,
}

/// Lines of each process's log that a failing test prints.
const LOG_LINES: usize = 60;

impl Sandbox {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Short: the path of a Unix socket has to fit into 108 bytes.
        let folder = std::env::temp_dir().join(format!("dunlin-e2e-{mark}"));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, mark, logs: Mutex::default() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Part of the names of whatever else has to be unique on this machine.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    /// Starts `command` in a process group of its own, its output in `NAME.log`.
    pub(crate) fn start(&self, name: &str, command: Command) -> Process {
        let log = self.folder.join(format!("{name}.log"));
        self.logs.lock().unwrap().push(log.clone());
        Process::start(name, command, &self.mark, log)
    }

    /// Command line, environment cleared of what would change a test.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy().into_owned();
            let proxy = name.to_ascii_lowercase().ends_with("_proxy");
            if proxy || name.starts_with("DUNLIN_") || name.starts_with("OPENAI_") {
                command.env_remove(variable);
            }
        }
        if let Ok(filter) = std::env::var("DUNLIN_TEST_LOG") {
            command.env("DUNLIN_LOG", filter);
        }
        command.env(process::MARK, &self.mark);
        command
    }

    /// Processes of this test that are alive, by id and command line.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        process::marked(&self.mark)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        process::end_marked(&self.mark);
        if std::thread::panicking() {
            for log in self.logs.get_mut().unwrap().iter() {
                let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                let text = text.unwrap_or_else(|error| error.to_string());
                let lines: Vec<&str> = text.lines().collect();
                let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
                println!("---- {} (last {LOG_LINES} of {} lines)\n{end}", log.display(), lines.len());
            }
        }
        if std::env::var_os("DUNLIN_TEST_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

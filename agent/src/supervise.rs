//! An engine as a child process: started, watched, restarted, ended, and never left behind.

pub mod backoff;
pub(crate) mod child;
pub(crate) mod container;
pub(crate) mod orphan;
pub(crate) mod plan;
mod run;

pub(crate) use orphan::reap_all;
pub(crate) use plan::Order;
pub(crate) use run::{describe, open_log, say, supervise};

use serde::Serialize;
use std::time::Duration;

/// Where a launched engine's process stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Process {
    /// Not started yet, or between two tries.
    Waiting,
    /// Runs.
    Running {
        /// Its process id, which is its process group as well: of the engine, or of the command line that runs its
        /// container.
        pid: u32,
    },
    /// Runs in another container of the pod.
    InContainer {
        /// Its process id there.
        pid: u32,
    },
    /// Ended unasked, and is started again.
    Restarting {
        /// How it ended.
        exit: String,
        /// Ends in a row, each soon after its start.
        failures: u32,
        /// Seconds until the next start, as of its end.
        delay_s: u64,
    },
    /// Ended [`backoff::CRASH_LOOP`] times in a row soon after its start; still tried again, seldom.
    CrashLoop {
        /// How it ended.
        exit: String,
        /// Ends in a row.
        failures: u32,
        /// Seconds until the next start, as of its end.
        delay_s: u64,
    },
    /// Ended because it was asked to.
    Stopped,
}

impl Process {
    pub(crate) fn restarting(exit: String, failures: u32, delay: Duration) -> Self {
        let delay_s = delay.as_secs();
        if failures >= backoff::CRASH_LOOP {
            Self::CrashLoop { exit, failures, delay_s }
        } else {
            Self::Restarting { exit, failures, delay_s }
        }
    }

    /// Whether it runs, here or in another container.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self, Self::Running { .. } | Self::InContainer { .. })
    }

    /// The process id while it runs on this machine, as far as this process sees.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Running { pid } => Some(*pid),
            _ => None,
        }
    }
}

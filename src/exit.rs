//! Exit codes, for scripts: 0 done, 1 failed, 2 wrong usage, 3 no node is running here, 4 not found, 130 interrupted.

use crate::output;
use std::process::ExitCode;

/// A failure that a script may want to tell from the others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Exit code 3.
    #[error(
        "no node is running with home {home}\n  start one with `dunlin up`, or name another home with --home DIR (DUNLIN_HOME)"
    )]
    NotRunning {
        /// The state directory that was looked at.
        home: String,
    },
    /// Exit code 4.
    #[error("{what} not found{hint}")]
    NotFound {
        /// What was asked for.
        what: String,
        /// What to do next, starting with a line break, or empty.
        hint: String,
    },
    /// Exit code 4.
    #[error(
        "no model is served now\n  start an engine on a machine where `dunlin up` or `dunlin agent` runs; `dunlin doctor` says what is wrong with those that run"
    )]
    NoModel,
    /// Exit code 130, as shells have it of whoever was ended by Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Exit code 2: flags that clap cannot judge by itself.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::NotRunning { .. } => 3,
            Self::NotFound { .. } | Self::NoModel => 4,
            Self::Interrupted => 130,
        }
    }
}

/// Prints an error with its causes on standard error and gives its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let mut text = format!("error: {error}");
    let mut said = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Many errors quote their cause; say each thing once.
        if !said.contains(&cause) {
            text.push_str(&format!("\n  because: {cause}"));
            said.push_str(&cause);
        }
    }
    output::error_line(&text);
    ExitCode::from(error.downcast_ref::<Failure>().map_or(1, Failure::code))
}

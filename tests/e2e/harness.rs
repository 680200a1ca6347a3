//! Starts the real executable, real engines and real clients as processes, and leaves none of them behind.

pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod engine;
pub(crate) mod http;
pub(crate) mod hub;
pub(crate) mod liar;
pub(crate) mod load;
#[cfg(target_os = "linux")]
pub(crate) mod netns;
pub(crate) mod node;
pub(crate) mod odd;
mod played;
pub(crate) mod process;
pub(crate) mod replay;
pub(crate) mod sandbox;
pub(crate) mod terminal;

use std::time::{Duration, Instant};

/// Longest wait for something that takes a second or two on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two looks: each may be a process of its own.
const POLL: Duration = Duration::from_millis(50);

/// Asks until there is an answer.
///
/// # Panics
/// Not within `deadline`; says what was waited for.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < deadline, "waited {deadline:?} in vain for: {what}");
        std::thread::sleep(POLL);
    }
}

/// Says loudly that a test did not run, past the test runner's capture of output.
pub(crate) fn skipped(why: &str) {
    use std::io::Write;
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr().lock(), "\n*** SKIPPED {name}: {why} ***\n");
}

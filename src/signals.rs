//! SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends at once.

use anyhow::Result;
use std::{
    future::{self, Future},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Longest that the end at once may take.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The second signal has come.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Returns, unless the process is about to end by its second signal, which then decides on its exit code.
pub(crate) async fn settle() {
    if AT_ONCE.load(Ordering::Relaxed) {
        future::pending::<()>().await;
    }
}

/// A token that the first signal cancels. The second signal waits for `before_exit`, half a second at most, and ends the
/// process with the code that shells use for it, without running destructors.
pub(crate) fn shutdown<F>(before_exit: impl FnOnce() -> F + Send + 'static) -> Result<CancellationToken>
where
    F: Future<Output = ()> + Send + 'static,
{
    let token = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let first = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => 15,
                _ = interrupt.recv() => 2,
            }
        };
        next().await;
        tracing::info!("ending; once more to end at once");
        first.cancel();
        let number = next().await;
        AT_ONCE.store(true, Ordering::Relaxed);
        // Late words are lost.
        let _ = tokio::time::timeout(LAST_WORDS, before_exit()).await;
        std::process::exit(128 + number);
    });
    Ok(token)
}

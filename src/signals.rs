//! SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends at once.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that the first signal cancels. The second signal calls `before_exit` and ends the process with
/// the code that shells use for it, without running destructors.
pub(crate) fn shutdown(before_exit: impl Fn() + Send + 'static) -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let first = token.clone();
    tokio::spawn(async move {
        let mut received = 0_u8;
        loop {
            let number = tokio::select! {
                _ = terminate.recv() => 15,
                _ = interrupt.recv() => 2,
            };
            received += 1;
            if received > 1 {
                before_exit();
                std::process::exit(128 + number);
            }
            tracing::info!("ending; once more to end at once");
            first.cancel();
        }
    });
    Ok(token)
}

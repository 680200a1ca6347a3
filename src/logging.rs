//! Logs: for a person on a terminal, JSON lines otherwise. `DUNLIN_LOG` filters (`info`, `dunlin_node=debug,info`).

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging to standard error. A service says what it does; a short command speaks only when something is wrong.
pub(crate) fn start(service: bool) {
    let usual = if service { "info,libp2p=error,multistream_select=warn,quinn=warn" } else { "error" };
    let filter = EnvFilter::try_from_env("DUNLIN_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        subscriber.with_target(false).compact().init();
    } else {
        subscriber.json().flatten_event(true).init();
    }
}

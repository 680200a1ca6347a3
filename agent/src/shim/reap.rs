//! The first process of a container inherits every process whose parent has ended, and is the only one to bury it.

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::{fs, future::pending, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// Many processes that end together are buried together.
const TOGETHER: Duration = Duration::from_millis(50);

/// Inherits as the first process of a container does, also where it isn't.
pub(super) fn adopt_orphans() {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        tracing::debug!(%error, "orphans go elsewhere");
    }
}

/// Buries inherited processes until dropped. That of `engine` is waited for elsewhere.
pub(super) async fn orphans(engine: u32) {
    let Ok(mut ended) = signal(SignalKind::child()) else { return pending().await };
    loop {
        bury(engine);
        if ended.recv().await.is_none() {
            return pending().await;
        }
        sleep(TOGETHER).await;
    }
}

fn bury(engine: u32) {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_ascii_whitespace().filter_map(|id| id.parse::<i32>().ok()) {
            if let Some(pid) = Pid::from_raw(child).filter(|_| u32::try_from(child) != Ok(engine)) {
                // Whoever has not ended is left alone.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }
}

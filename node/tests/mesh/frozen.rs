//! A node on a runtime of its own that can be frozen whole: its sockets stay open and nobody reads or writes them, as
//! when a process is stopped or a host vanishes.

use crate::harness::*;
use dunlin_node::Handle;
use std::{sync::mpsc, thread};

pub(crate) struct Frozen {
    pub(crate) handle: Handle,
    freezer: tokio::runtime::Handle,
    ended: Option<tokio_util::sync::CancellationToken>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Freezes until dropped.
pub(crate) struct Ice(#[expect(dead_code)] mpsc::SyncSender<()>);

impl Frozen {
    pub(crate) async fn start(start: impl AsyncFnOnce() -> Member + Send + 'static) -> Self {
        let (tell, told) = tokio::sync::oneshot::channel();
        let ended = tokio_util::sync::CancellationToken::new();
        let end = ended.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let freezer = runtime.handle().clone();
            runtime.block_on(async move {
                let member = start().await;
                assert!(tell.send((member.handle.clone(), freezer)).is_ok());
                end.cancelled().await;
                member.kill();
            });
        });
        let (handle, freezer) = told.await.unwrap();
        Self { handle, freezer, ended: Some(ended), thread: Some(thread) }
    }

    pub(crate) fn freeze(&self) -> Ice {
        let (melt, melted) = mpsc::sync_channel::<()>(0);
        // Blocks the only thread of the runtime.
        self.freezer.spawn(async move {
            let _ = melted.recv();
        });
        Ice(melt)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.ended.take().unwrap().cancel();
        self.thread.take().unwrap().join().unwrap();
    }
}

//! Many streams at once: what they cost in memory.

use crate::{
    Bench,
    child::pause,
    load::{self, Connection},
    mesh::{FAST, SLOW},
};
use anyhow::Result;
use std::{
    net::SocketAddr,
    sync::mpsc::{SyncSender, sync_channel},
    thread::JoinHandle,
    time::Duration,
};
use tokio::task::JoinSet;

/// Streams of the memory measurement.
const STREAMS: usize = 1000;
/// From opening them to looking.
const SETTLE: Duration = Duration::from_secs(12);
/// Longest wait for one stream's headers.
const OPEN: Duration = Duration::from_secs(30);

/// Streams held open by a thread, until the value goes.
pub struct Streams {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Streams {
    /// Streams that flow slowly and are read.
    pub fn flowing(target: SocketAddr, count: usize, key: &str) -> Result<Self> {
        Self::open(target, count, load::request(SLOW, true, 100_000, Some(key)), true)
    }

    /// Streams that come as fast as they can and are never read.
    pub fn stalled(target: SocketAddr, count: usize, key: &str) -> Result<Self> {
        Self::open(target, count, load::request(FAST, true, 1_000_000, Some(key)), false)
    }

    fn open(target: SocketAddr, count: usize, request: Vec<u8>, read: bool) -> Result<Self> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (opened, all_opened) = sync_channel(1);
        let thread = std::thread::spawn(move || hold(target, count, request, read, opened, stopped));
        let outcome: Result<()> = all_opened.recv()?;
        outcome?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hold(
    target: SocketAddr,
    count: usize,
    request: Vec<u8>,
    read: bool,
    opened: SyncSender<Result<()>>,
    stopped: tokio::sync::oneshot::Receiver<()>,
) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let mut idle = Vec::new();
        for _ in 0..count {
            let begun = async {
                let mut connection = Connection::open_small(target).await?;
                connection.begin(&request).await?;
                anyhow::Ok(connection)
            };
            let begun = tokio::time::timeout(OPEN, begun).await.map_err(anyhow::Error::from).flatten();
            match begun {
                Ok(mut connection) if read => {
                    tasks.spawn(async move { connection.drain().await });
                }
                Ok(connection) => idle.push(connection),
                Err(error) => {
                    let _ = opened.send(Err(error));
                    return;
                }
            }
        }
        let _ = opened.send(Ok(()));
        let _ = stopped.await;
    });
}

/// Resident memory of proxy and agent: idle, with many streams, with as many that nobody reads, and afterwards.
pub fn memory(bench: &Bench) -> Result<()> {
    println!("\n## Memory, resident, MB\n");
    println!("| | proxy | agent | target proxy |\n|---|---|---|---|");
    let print = |name: &str, target: &str| -> Result<()> {
        println!("| {name} | {:.1} | {:.1} | {target} |", bench.mesh.proxy.rss_mb()?, bench.agent.rss_mb()?);
        Ok(())
    };
    print("idle", "40")?;
    // Long enough for all buffers on the way to be full, shorter than the hop waits for a stalled reader.
    let settle = SETTLE;
    let flowing = Streams::flowing(bench.mesh.at, STREAMS, &bench.mesh.key)?;
    pause(settle);
    print(&format!("{STREAMS} open streams of 5 tokens/s"), "90")?;
    drop(flowing);
    pause(settle);
    let stalled = Streams::stalled(bench.mesh.at, STREAMS, &bench.mesh.key)?;
    pause(settle);
    print(&format!("{STREAMS} streams that nobody reads"), "150")?;
    drop(stalled);
    pause(settle);
    print("afterwards, idle again", "-")?;
    Ok(())
}

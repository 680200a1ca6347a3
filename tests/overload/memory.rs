//! What processes hold in memory while something goes on.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(500);

/// Resident memory of one process, KiB: at the start, after half of the time, the most, and at the end.
#[derive(Debug, Clone)]
pub(crate) struct Resident {
    name: &'static str,
    start_kib: u64,
    pub(crate) middle_kib: u64,
    most_kib: u64,
    pub(crate) end_kib: u64,
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let Self { name, start_kib, middle_kib, most_kib, end_kib } = self;
        let [start, middle, most, end] = [start_kib, middle_kib, most_kib, end_kib].map(|kib| mib(*kib));
        write!(f, "{name}: {start:.1} MiB at the start, {middle:.1} half way, {most:.1} at most, {end:.1} at the end")
    }
}

/// Of process `id`, KiB.
pub(crate) fn resident_kib(id: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A thread that looks.
pub(crate) struct Memory {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Resident>>,
}

impl Memory {
    /// Looks at `processes`, over `time` or until the end.
    pub(crate) fn watch(processes: Vec<(&'static str, i32)>, time: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            let mut all: Vec<_> = processes
                .iter()
                .map(|(name, id)| {
                    let now = resident_kib(*id);
                    Resident { name, start_kib: now, middle_kib: now, most_kib: now, end_kib: now }
                })
                .collect();
            while !stopped.load(Ordering::Relaxed) {
                for (resident, (_, id)) in all.iter_mut().zip(&processes) {
                    resident.end_kib = resident_kib(*id);
                    resident.most_kib = resident.most_kib.max(resident.end_kib);
                    if start.elapsed() < time / 2 {
                        resident.middle_kib = resident.most_kib;
                    }
                }
                std::thread::sleep(EVERY);
            }
            all
        });
        Self { stop, thread }
    }

    /// What was seen.
    pub(crate) fn finish(self) -> Vec<Resident> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

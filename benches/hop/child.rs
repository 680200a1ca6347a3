//! The processes that are measured: what they use, and that none is left behind.

use anyhow::{Context as _, Result, bail};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child as Process, Command, Stdio},
    time::{Duration, Instant},
};

/// Processor time as the kernel counts it.
const TICKS_PER_SECOND: f64 = 100.0;
/// How long a process may take to listen.
const START: Duration = Duration::from_secs(20);

/// A process that ends with this value.
pub struct Child {
    process: Process,
    name: String,
}

impl Child {
    /// Starts `command`. Its output goes to the terminal when `DUNLIN_BENCH_VERBOSE` is set.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        if std::env::var_os("DUNLIN_BENCH_VERBOSE").is_none() {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let process = command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        Ok(Self { process, name: name.to_owned() })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it listens.
    pub fn listens(&mut self, address: SocketAddr) -> Result<()> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            if let Some(status) = self.process.try_wait()? {
                bail!("{} ended at once: {status}", self.name);
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            pause(Duration::from_millis(10));
        }
        bail!("{} does not listen on {address}", self.name)
    }

    /// Processor seconds used so far, all threads, and those of processes that it started and that run still.
    pub fn cpu_s(&self) -> Result<f64> {
        let mut ticks = ticks(self.id())?;
        for child in std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.id()))?.split_whitespace() {
            ticks += child.parse().ok().and_then(|child| self::ticks(child).ok()).unwrap_or_default();
        }
        Ok(ticks / TICKS_PER_SECOND)
    }

    /// Resident memory, MB (10^6 bytes).
    pub fn rss_mb(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024.0 / 1e6)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// SIGSTOP: silent, and its connections open.
    pub fn stop(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// SIGCONT.
    pub fn go_on(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw).context("no pid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Processor time of one process in the kernel's unit.
fn ticks(process: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the name in parentheses and may hold spaces; utime and stime are the 14th and 15th.
    let (_, fields) = stat.rsplit_once(')').context("unreadable /proc/PID/stat")?;
    Ok(fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?)
}

/// A port that nobody has now.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Sleeps on the bench's main thread, which has no runtime.
#[expect(clippy::disallowed_methods, reason = "there is no runtime here that could be blocked")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

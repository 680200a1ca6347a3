//! The real executables, started as a user starts them and joined by an invitation.

use crate::{
    child::{Child, free_address, pause},
    folder::Folder,
};
use anyhow::{Context as _, Result, bail, ensure};
use dunlin_node::{PeerInfo, control::Client};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The executable under test, built in release with this bench.
pub const DUNLIN: &str = env!("CARGO_BIN_EXE_dunlin");
/// Model that the engine answers without a pause.
pub const FAST: &str = "fast";
/// Model that streams slowly, for streams that stay open.
pub const SLOW: &str = "slow";
/// Longest wait for a model to be served.
const SERVED: Duration = Duration::from_secs(30);

fn dunlin(executable: &Path, home: &Path) -> Command {
    let mut command = Command::new(executable);
    command.env("DUNLIN_HOME", home).env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".into()));
    command
}

/// Runs a command to its end; its standard output, trimmed.
fn answer(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "{command:?} failed: {said} {}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// A demo engine in a process of its own.
pub struct Engine {
    pub child: Child,
    pub at: SocketAddr,
}

impl Engine {
    /// With as many slots as anybody wants. `tokens_per_second` 0 is without limit.
    pub fn start(model: &str, tokens_per_second: u32) -> Result<Self> {
        Self::with_slots(model, tokens_per_second, 60_000)
    }

    /// With so many slots.
    pub fn with_slots(model: &str, tokens_per_second: u32, slots: u32) -> Result<Self> {
        let at = free_address()?;
        let mut command = Command::new(DUNLIN);
        command.args(["demo-engine", "--model", model, "--http", &at.to_string(), "--slots", &slots.to_string()]);
        command.args(["--kv-tokens", "4000000000", "--context", "2000000", "--no-prefix-cache"]);
        command.args(["--tokens-per-second", &tokens_per_second.to_string()]);
        let mut child = Child::start("dunlin demo-engine", &mut command)?;
        child.listens(at)?;
        Ok(Self { child, at })
    }
}

/// A proxy that made the mesh, and agents that joined it.
pub struct Mesh {
    folder: Folder,
    executable: PathBuf,
    pub proxy: Child,
    pub at: SocketAddr,
    pub key: String,
    agents: u32,
}

impl Mesh {
    /// Makes the mesh and starts its proxy.
    pub fn start() -> Result<Self> {
        Self::start_with(DUNLIN.into())
    }

    /// The same with another executable.
    pub fn start_with(executable: PathBuf) -> Result<Self> {
        let folder = Folder::new()?;
        let dunlin = |home: &Path| dunlin(&executable, home);
        let home = folder.0.join("proxy");
        answer(dunlin(&home).args(["mesh", "create", "--name", "proxy"]))?;
        let key = answer(dunlin(&home).args(["keys", "create", "--name", "bench"]))?;
        let at = free_address()?;
        let mut command = dunlin(&home);
        command.args(["proxy", "--http", &at.to_string(), "--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0"]);
        let mut proxy = Child::start("dunlin proxy", &mut command)?;
        proxy.listens(at)?;
        Ok(Self { folder, executable, proxy, at, key, agents: 0 })
    }

    fn proxy_home(&self) -> PathBuf {
        self.folder.0.join("proxy")
    }

    /// Invites an agent and starts it beside `engines`.
    pub fn agent(&mut self, engines: &[&Engine]) -> Result<Child> {
        self.agents += 1;
        let home = self.folder.0.join(format!("agent-{}", self.agents));
        let dunlin = |home: &Path| dunlin(&self.executable, home);
        let token = answer(dunlin(&self.proxy_home()).args(["invite", "--role", "agent"]))?;
        answer(dunlin(&home).args(["join", &token]))?;
        let mut command = dunlin(&home);
        command.args(["agent", "--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0"]);
        for engine in engines {
            command.args(["--engine", &format!("http://{}", engine.at)]);
        }
        Child::start("dunlin agent", &mut command)
    }

    /// Waits until a request for `model` is answered.
    pub fn serves(&self, model: &str) -> Result<()> {
        let deadline = Instant::now() + SERVED;
        let request = crate::load::request(model, false, 1, Some(&self.key));
        let mut last = None;
        while Instant::now() < deadline {
            match crate::load::once(self.at, &request) {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
            pause(Duration::from_millis(5));
        }
        bail!("{model} is not served: {last:?}")
    }

    /// Waits until the proxy knows so many replicas by connection.
    pub fn ready_replicas(&self, count: usize) -> Result<()> {
        let connected = |peers: &[PeerInfo]| {
            let connected = peers.iter().filter(|peer| peer.reachability == "connected");
            connected.map(|peer| peer.replicas.len()).sum::<usize>() >= count
        };
        self.until(Instant::now(), connected).map(drop)
    }

    /// State directory of the agent that was started last.
    pub fn last_agent_home(&self) -> PathBuf {
        self.folder.0.join(format!("agent-{}", self.agents))
    }

    /// What the proxy says of its peers.
    pub fn peers(&self) -> Result<Vec<PeerInfo>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { Ok(Client::connect(&self.proxy_home()).await?.get("/peers").await?) })
    }

    /// What the proxy says of its peers, again and again until `wanted` holds; how long that took.
    pub fn until(&self, since: Instant, wanted: impl Fn(&[PeerInfo]) -> bool) -> Result<Duration> {
        self.until_at(&self.proxy_home(), since, wanted)
    }

    /// The same of another node.
    pub fn until_at(&self, home: &Path, since: Instant, wanted: impl Fn(&[PeerInfo]) -> bool) -> Result<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut client = loop {
                match Client::connect(home).await {
                    Ok(client) => break client,
                    Err(error) => ensure!(since.elapsed() < SERVED, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            loop {
                let peers: Vec<PeerInfo> = client.get("/peers").await?;
                if wanted(&peers) {
                    return Ok(since.elapsed());
                }
                ensure!(since.elapsed() < SERVED, "still not so after {SERVED:?}: {peers:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

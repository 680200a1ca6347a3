//! Engines: the demo engine as a process of its own, and a real llama-server.

use super::{
    PATIENCE, clients::Clients, http::Endpoint, node::executable, process::Process, sandbox::Sandbox, skipped, wait_for,
};
use std::{
    ffi::OsString,
    net::{SocketAddr, TcpListener},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::Command,
};

/// `dunlin demo-engine`.
pub(crate) struct DemoEngine {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl DemoEngine {
    /// Any free port.
    #[track_caller]
    pub(crate) fn start(sandbox: &Sandbox, name: &str, args: &[&str]) -> Self {
        Self::start_at(sandbox, name, "127.0.0.1:0".parse().unwrap(), args)
    }

    #[track_caller]
    pub(crate) fn start_at(sandbox: &Sandbox, name: &str, address: SocketAddr, args: &[&str]) -> Self {
        let address = if address.port() == 0 { free_address() } else { address };
        let mut engine = Self::begin(sandbox, name, sandbox.command(executable()), address, args);
        engine.wait_until_up();
        engine
    }

    /// As `start_at`, at a port of its choice, in a network namespace.
    #[cfg(target_os = "linux")]
    #[track_caller]
    pub(crate) fn start_within(
        sandbox: &Sandbox,
        name: &str,
        namespace: &str,
        address: SocketAddr,
        args: &[&str],
    ) -> Self {
        let mut command = sandbox.command("ip");
        command.args(["netns", "exec", namespace]).arg(executable());
        let mut engine = Self::begin(sandbox, name, command, address, args);
        super::netns::within(namespace, || engine.wait_until_up());
        engine
    }

    fn begin(sandbox: &Sandbox, name: &str, mut command: Command, address: SocketAddr, args: &[&str]) -> Self {
        command.args(["demo-engine", "--http", &address.to_string()]).args(args);
        Self { process: sandbox.start(name, command), address }
    }

    #[track_caller]
    fn wait_until_up(&mut self) {
        wait_for("the demo engine to answer", PATIENCE, || {
            self.process.assert_running();
            self.direct().get("/health").ok()
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The engine itself, past the mesh.
    pub(crate) fn direct(&self) -> Endpoint {
        Endpoint::open(self.address)
    }

    /// One of its metrics, summed over series.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.direct().get("/metrics").unwrap().text();
        let of_name = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with([' ', '{']);
        text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// An address that was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The small model that this repository ships: two megabytes, ready in less than a second, talks like the King James
/// Bible.
pub(crate) fn tiny_model() -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tinykjv-1m.gguf").to_string_lossy().into_owned()
}

/// What makes a `llama-server` command run.
pub(crate) struct Llama {
    folder: PathBuf,
}

impl Llama {
    /// The executable, unless it doesn't run on this processor.
    pub(crate) fn available(clients: &Clients) -> Option<Self> {
        let llama = Self { folder: clients.llama_folder() };
        let output = llama.prepare(Command::new(llama.program())).arg("--version").output().unwrap();
        if output.status.code() == Some(132) || output.status.signal() == Some(4) {
            skipped("this build of llama-server does not suit this machine's processor (illegal instruction)");
            return None;
        }
        assert!(output.status.success(), "llama-server --version: {output:?}");
        Some(llama)
    }

    fn program(&self) -> PathBuf {
        self.folder.join("llama-server")
    }

    fn prepare(&self, mut command: Command) -> Command {
        command.envs(self.environment());
        command
    }

    /// Environment in which `llama-server` is found by its name, and finds its libraries.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.folder.clone()).chain(std::env::split_paths(&path));
        vec![
            ("PATH", std::env::join_paths(folders).unwrap()),
            ("LD_LIBRARY_PATH", self.folder.clone().into_os_string()),
        ]
    }

    /// Arguments for one server, without its address: an agent that launches it adds its own.
    pub(crate) fn arguments(alias: &str, more: &[&str]) -> Vec<String> {
        let model = tiny_model();
        let base = ["-m", &model, "--alias", alias, "--metrics", "--slots", "-ngl", "0", "-c", "2048", "-np", "2"];
        base.iter().chain(["-t", "1", "--no-webui"].iter()).chain(more).map(|&text| text.to_owned()).collect()
    }

    /// A server that runs by itself.
    #[track_caller]
    pub(crate) fn start(&self, sandbox: &Sandbox, alias: &str, more: &[&str]) -> (Process, String) {
        self.start_at(sandbox, alias, free_address().port(), more)
    }

    #[track_caller]
    pub(crate) fn start_at(&self, sandbox: &Sandbox, alias: &str, port: u16, more: &[&str]) -> (Process, String) {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut command = self.prepare(sandbox.command(self.program()));
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(Self::arguments(alias, more));
        let mut process = sandbox.start(alias, command);
        wait_for("llama-server to load its model", PATIENCE, || {
            process.assert_running();
            Endpoint::open(address).get("/health").ok().filter(|answer| answer.status == 200)
        });
        (process, format!("http://{address}"))
    }
}

/// A chat template that lets the small model call tools.
pub(crate) fn tools_template() -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tools.jinja").to_string_lossy().into_owned()
}

//! Nodes: the executable under test, each with a state directory of its own.

use super::{PATIENCE, engine::DemoEngine, http::Endpoint, process::Process, sandbox::Sandbox, wait_for};
use serde_json::Value;
use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Output},
};

/// The executable under test: what this build made, or another one that `DUNLIN_TEST_EXECUTABLE` names, such as that of
/// a release.
pub(crate) fn executable() -> PathBuf {
    std::env::var_os("DUNLIN_TEST_EXECUTABLE").map_or_else(|| env!("CARGO_BIN_EXE_dunlin").into(), PathBuf::from)
}

/// A state directory, and where its commands run.
pub(crate) struct Home<'a> {
    pub(crate) sandbox: &'a Sandbox,
    name: String,
    folder: PathBuf,
    executable: PathBuf,
    /// A command that runs the executable in another place than this.
    within: Vec<String>,
    /// Environment of the node itself.
    environment: Vec<(&'static str, OsString)>,
}

impl<'a> Home<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox, name: &str) -> Self {
        let folder = sandbox.folder().join(name);
        let (name, executable) = (name.to_owned(), executable());
        Self { sandbox, name, folder, executable, within: Vec::new(), environment: Vec::new() }
    }

    /// As `new`, its commands in a network namespace.
    #[cfg(target_os = "linux")]
    pub(crate) fn within(sandbox: &'a Sandbox, name: &str, namespace: &str) -> Self {
        Self::new(sandbox, name).run_by(&["ip", "netns", "exec", namespace])
    }

    /// Its commands are run by another one, which gets them as its last arguments.
    pub(crate) fn run_by(self, within: &[&str]) -> Self {
        Self { within: within.iter().map(|&word| word.to_owned()).collect(), ..self }
    }

    /// Its commands are those of another build.
    pub(crate) fn of(self, executable: &std::path::Path) -> Self {
        Self { executable: executable.to_owned(), ..self }
    }

    /// The state directory.
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// `dunlin ARGS` with this state directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.within.split_first() {
            None => self.sandbox.command(&self.executable),
            Some((program, args)) => {
                let mut command = self.sandbox.command(program);
                command.args(args).arg(&self.executable);
                command
            }
        };
        command.arg("--home").arg(&self.folder).args(args);
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What a command prints on standard output.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dunlin {args:?}: {}\n{error}", output.status);
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A listing, as JSON.
    #[track_caller]
    pub(crate) fn list(&self, args: &[&str]) -> Value {
        let text = self.ask(&[args, &["--output", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in what {args:?} printed: {text}"))
    }

    /// Sets variables in the environment of the node that is started from here.
    pub(crate) fn with_environment(self, environment: Vec<(&'static str, OsString)>) -> Self {
        Self { environment, ..self }
    }

    fn configured(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Joins the mesh of `token`.
    #[track_caller]
    pub(crate) fn join(&self, token: &str) {
        self.ask(&["join", token]);
    }

    /// Starts a command that goes on, and waits until its node answers.
    #[track_caller]
    pub(crate) fn start(self, args: &[&str]) -> Node<'a> {
        let process = self.sandbox.start(&self.name, self.configured(args));
        let mut node = Node { home: self, process };
        node.wait_until_up();
        node
    }
}

/// A running node.
pub(crate) struct Node<'a> {
    pub(crate) home: Home<'a>,
    pub(crate) process: Process,
}

/// Loopback, any free port, TCP and QUIC, and nobody else's mDNS.
pub(crate) const LOOPBACK: [&str; 5] =
    ["--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];

impl<'a> Node<'a> {
    #[track_caller]
    fn wait_until_up(&mut self) {
        wait_for("`dunlin status` to succeed", PATIENCE, || {
            self.process.assert_running();
            self.home.run(&["status"]).status.success().then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        self.home.list(&["status"])
    }

    /// The endpoint, with a key made for it.
    #[track_caller]
    pub(crate) fn endpoint(&self) -> Endpoint {
        let status = self.status();
        let url = status["endpoint"].as_str().unwrap_or_else(|| panic!("no endpoint in the status: {status}"));
        let address = url.strip_prefix("http://").unwrap().parse().unwrap();
        Endpoint { address, key: Some(self.home.ask(&["keys", "create"])) }
    }

    /// Replicas that this node knows to be ready for `model`.
    #[track_caller]
    pub(crate) fn replicas(&self, model: &str) -> u64 {
        let models = self.home.list(&["models"]);
        let of_model = models.as_array().into_iter().flatten().find(|entry| entry["model"] == model);
        of_model.and_then(|entry| entry["ready"].as_u64()).unwrap_or(0)
    }

    #[track_caller]
    pub(crate) fn wait_for_replicas(&self, model: &str, count: u64) {
        wait_for(&format!("{count} replicas of {model}"), PATIENCE, || (self.replicas(model) == count).then_some(()));
    }

    /// Waits until so many replicas of `model` are known to go on to the letter: their agents have tested the engines.
    #[track_caller]
    pub(crate) fn wait_for_exact(&self, model: &str, count: u64) {
        wait_for(&format!("{count} replicas of {model} that go on"), PATIENCE, || {
            let models = self.home.list(&["models"]);
            let of_model = models.as_array().into_iter().flatten().find(|entry| entry["model"] == model).cloned();
            (of_model?["exact"].as_u64() == Some(count)).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn peer_id(&self) -> String {
        self.status()["peer"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn listen_addresses(&self) -> Vec<String> {
        let status = self.status();
        let addresses = status["listen"].as_array().unwrap_or_else(|| panic!("no addresses in the status: {status}"));
        addresses.iter().map(|address| address.as_str().unwrap().to_owned()).collect()
    }

    /// Ends the process, keeps the state directory, and starts it again with `args`.
    #[track_caller]
    pub(crate) fn restart(&mut self, args: &[&str]) {
        if self.process.try_exit().is_none() {
            self.process.signal(rustix::process::Signal::TERM);
            self.process.wait(PATIENCE);
        }
        let command = self.home.configured(args);
        self.process = self.home.sandbox.start(&format!("{}-again", self.home.name), command);
        self.wait_until_up();
    }
}

/// A mesh on loopback: one proxy that also issues, and agents that it invited.
pub(crate) struct Mesh<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) proxy: Node<'a>,
    pub(crate) endpoint: Endpoint,
}

impl<'a> Mesh<'a> {
    #[track_caller]
    pub(crate) fn new(sandbox: &'a Sandbox, proxy_args: &[&str]) -> Self {
        Self::listening(sandbox, &[&LOOPBACK[..], proxy_args].concat())
    }

    /// As `new`, where the proxy listens being among `proxy_args`.
    #[track_caller]
    pub(crate) fn listening(sandbox: &'a Sandbox, proxy_args: &[&str]) -> Self {
        let home = Home::new(sandbox, "proxy");
        home.ask(&["mesh", "create", "--name", "proxy"]);
        let proxy = home.start(&[&["proxy", "--http", "127.0.0.1:0"], proxy_args].concat());
        let endpoint = proxy.endpoint();
        Self { sandbox, proxy, endpoint }
    }

    /// The state directory of a new member.
    #[track_caller]
    pub(crate) fn member(&self, name: &str, invite: &[&str]) -> Home<'a> {
        let token = self.proxy.home.ask(&[&["invite"], invite].concat());
        let home = Home::new(self.sandbox, name);
        home.join(&token);
        home
    }

    /// An agent with `args` of its own.
    #[track_caller]
    pub(crate) fn agent(&self, name: &str, args: &[&str]) -> Node<'a> {
        let home = self.member(name, &["--role", "agent"]);
        home.start(&[&["agent"], &LOOPBACK[..], args].concat())
    }

    /// The same under a name that other members see.
    #[track_caller]
    pub(crate) fn named_agent(&self, name: &str, args: &[&str]) -> Node<'a> {
        let token = self.proxy.home.ask(&["invite", "--role", "agent"]);
        let home = Home::new(self.sandbox, name);
        home.ask(&["join", &token, "--name", name]);
        home.start(&[&["agent"], &LOOPBACK[..], args].concat())
    }

    /// An agent beside a demo engine.
    #[track_caller]
    pub(crate) fn agent_of(&self, name: &str, engine: &DemoEngine) -> Node<'a> {
        self.agent(name, &["--engine", &engine.url()])
    }
}

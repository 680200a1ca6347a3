//! Engines in containers, with a stand-in for docker that writes down how it was called and runs the demo engine.

use crate::harness::{
    PATIENCE,
    node::{LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use std::{ffi::OsString, path::PathBuf};

/// A folder with a `docker` in it.
struct StandIn {
    folder: PathBuf,
}

impl StandIn {
    fn new(sandbox: &Sandbox) -> Self {
        let folder = sandbox.folder().join("stand-in");
        std::fs::create_dir_all(&folder).unwrap();
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("agent/tests/data/container-cli.py");
        std::os::unix::fs::symlink(script, folder.join("docker")).unwrap();
        Self { folder }
    }

    fn environment(&self) -> Vec<(&'static str, OsString)> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.folder.clone()).chain(std::env::split_paths(&path));
        vec![
            ("PATH", std::env::join_paths(folders).unwrap()),
            ("STAND_IN_DIR", self.folder.clone().into_os_string()),
            ("HF_TOKEN", "secret".into()),
        ]
    }

    /// How it was called so far, the arguments of each call joined.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        let call = |line: &str| serde_json::from_str::<Vec<String>>(line).unwrap().join(" ");
        text.lines().map(call).collect()
    }

    fn agent<'a>(&self, mesh: &Mesh<'a>) -> Node<'a> {
        mesh.member("a", &["--role", "agent"]).with_environment(self.environment()).start(&args())
    }
}

fn args() -> Vec<&'static str> {
    let container = ["--container", "docker", "--gpus", "device=0,1", "--container-arg=--memory=1g"];
    let settings = ["--set", "launch.image=demo:1", "--set", "launch.container.cache=/cache"];
    let token = ["--set", "launch.container.pass_env=[\"HF_TOKEN\"]"];
    let launch = ["agent", "--launch", "demo", "--model", "contained"];
    [&launch[..], &container, &settings, &token, &LOOPBACK, &["--", "--slots", "3"]].concat()
}

/// Processes of the engine itself.
fn engines(sandbox: &Sandbox) -> Vec<(i32, String)> {
    let is_engine =
        |line: &str| line.contains("demo-engine") && !line.contains("run --rm") && !line.contains(" agent ");
    sandbox.processes().into_iter().filter(|(_, line)| is_engine(line)).collect()
}

#[test]
fn an_engine_in_a_container_serves_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let docker = StandIn::new(&sandbox);
    let mesh = Mesh::new(&sandbox, &[]);
    let mut agent = docker.agent(&mesh);
    mesh.proxy.wait_for_replicas("contained", 1);
    mesh.endpoint.chat("contained", "hello", 4).unwrap().content();

    let run = docker.calls().into_iter().find(|call| call.starts_with("run ")).unwrap();
    for part in [
        "run --rm --name dunlin-",
        "--label dev.dunlin.agent=",
        "--publish 127.0.0.1:",
        "--gpus \"device=0,1\"",
        "--volume dunlin-demo:/cache",
        "--env HF_TOKEN ",
        "--init --memory=1g demo:1 demo-engine --http 0.0.0.0:",
        "--model contained --slots 3",
    ] {
        assert!(run.contains(part), "{part:?} is not in {run:?}");
    }
    assert!(!run.contains("secret"), "a token's value stays out of the command line");
    assert!(mesh.proxy.home.ask(&["logs", "contained"]).contains("demo engine on"), "its output is kept");

    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.wait(PATIENCE).code(), Some(0));
    assert_eq!(engines(&sandbox), []);
}

/// Killing the agent and the command line ends no container. The next agent finds it by its label.
#[test]
fn a_container_of_a_killed_agent_is_found_by_its_label() {
    let sandbox = Sandbox::new();
    let docker = StandIn::new(&sandbox);
    let mesh = Mesh::new(&sandbox, &[]);
    let mut agent = docker.agent(&mesh);
    mesh.proxy.wait_for_replicas("contained", 1);
    let orphan = engines(&sandbox);
    assert_eq!(orphan.len(), 1, "{orphan:?}");

    agent.process.kill();
    let tools = sandbox.processes().into_iter().filter(|(_, line)| line.contains("run --rm"));
    for (pid, _) in tools {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    assert_eq!(engines(&sandbox), orphan, "it goes on without them");
    agent.restart(&args());
    wait_for("the orphan to be gone and one engine to run", PATIENCE, || {
        let now = engines(&sandbox);
        (now.len() == 1 && now != orphan).then_some(())
    });
    assert!(docker.calls().iter().any(|call| call.starts_with("ps --all --quiet --filter label=dev.dunlin.agent=")));
}

/// Who asks twice does not want to wait, and yet no engine may be left on the GPU.
#[test]
fn a_second_signal_takes_the_container_along() {
    let sandbox = Sandbox::new();
    let docker = StandIn::new(&sandbox);
    let mesh = Mesh::new(&sandbox, &[]);
    let mut agent = docker.agent(&mesh);
    mesh.proxy.wait_for_replicas("contained", 1);
    let mut events = mesh.endpoint.chat_stream("contained", "a long story", 4000).unwrap().events();
    events.next().unwrap().unwrap();
    agent.process.signal(Signal::TERM);
    wait_for("the first signal to be taken", PATIENCE, || agent.process.output().contains("once more").then_some(()));
    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.wait(PATIENCE).code(), Some(143));
    wait_for("the engine to be gone", PATIENCE, || engines(&sandbox).is_empty().then_some(()));
}

#[test]
fn what_docker_says_of_a_missing_image_is_kept() {
    let sandbox = Sandbox::new();
    let docker = StandIn::new(&sandbox);
    let mesh = Mesh::new(&sandbox, &[]);
    let home = mesh.member("a", &["--role", "agent"]).with_environment(docker.environment());
    let container = ["agent", "--launch", "demo", "--container", "docker", "--set", "launch.image=missing:1"];
    let agent = home.start(&[&container[..], &LOOPBACK].concat());
    wait_for("the failure to show", PATIENCE, || {
        let status = agent.status();
        let lines = status["engines"][0]["last_output"].to_string();
        (lines.contains("Unable to find image missing:1") && lines.contains("could not be run")).then_some(())
    });
    let other = mesh.member("b", &["--role", "agent"]);
    let missing = other.run(&["agent", "--launch", "demo", "--container", "docker"]);
    let error = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && error.contains("launch.image"), "{error}");
}

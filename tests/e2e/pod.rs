//! The containers of a replica's pod as processes: the agent as a sidecar, and `dunlin engine` around an engine.

use crate::harness::{
    PATIENCE,
    engine::free_address,
    http::Endpoint,
    hub::{Hub, Reply, content},
    load::{End, Load, Plan},
    node::{LOOPBACK, Mesh, Node},
    process::Process,
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// One pod: the agent's container, and what its shim is started with.
struct Pod<'a> {
    sandbox: &'a Sandbox,
    agent: Node<'a>,
    args: Vec<String>,
    folder: PathBuf,
    engine: SocketAddr,
    ready: SocketAddr,
}

impl<'a> Pod<'a> {
    #[track_caller]
    fn new(sandbox: &'a Sandbox, mesh: &Mesh<'a>) -> Self {
        let home = mesh.member("pod", &["--role", "agent"]);
        let (folder, engine, ready) = (sandbox.folder().join("shared"), free_address(), free_address());
        let mut args: Vec<String> = ["agent"].iter().chain(&LOOPBACK).map(|&arg| arg.to_owned()).collect();
        args.extend(
            ["--engine", &format!("http://{engine}"), "--runtime", "demo", "--model", "demo"].map(str::to_owned),
        );
        args.extend(["--sidecar", folder.to_str().unwrap(), "--ready-http", &ready.to_string()].map(str::to_owned));
        let agent = home.start(&args.iter().map(String::as_str).collect::<Vec<_>>());
        Self { sandbox, agent, args, folder, engine, ready }
    }

    fn executable(&self) -> PathBuf {
        self.folder.join("dunlin")
    }

    /// The engine's container, with `command` in it.
    fn shim(&self, name: &str, alone_after: &str, command: &[&str]) -> Process {
        let mut shim = self.sandbox.command(self.executable());
        shim.args(["engine", "--alone-after", alone_after, "--"]).args(command);
        self.sandbox.start(name, shim)
    }

    /// The engine's container with the demo engine in it.
    fn demo(&self, name: &str, more: &[&str]) -> Process {
        let (executable, address) = (self.executable(), self.engine.to_string());
        let command = [&[executable.to_str().unwrap(), "demo-engine", "--http", &address], more].concat();
        self.shim(name, "3600", &command)
    }

    fn engine(&self) -> Value {
        self.agent.home.list(&["status"])["engines"][0].clone()
    }

    fn is_ready(&self) -> bool {
        Endpoint::open(self.ready).get("/ready").is_ok_and(|answer| answer.status == 200)
    }

    #[track_caller]
    fn wait_until_ready(&self) {
        wait_for("the pod to be ready", PATIENCE, || self.is_ready().then_some(()));
    }

    /// Process id of the engine, once it runs.
    #[track_caller]
    fn engine_pid(&self) -> i32 {
        wait_for("the engine to run", PATIENCE, || {
            self.engine()["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
        })
    }

    /// Ends the agent without a word, and starts it anew.
    fn replace_agent(&mut self) {
        self.agent.process.kill();
        self.agent.restart(&self.args.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn chat(mesh: &Mesh<'_>) -> u16 {
    mesh.endpoint.chat("demo", "Hello", 5).unwrap().status
}

/// From an empty folder to an answer through a proxy, and to an orderly end that cuts nothing off.
#[test]
fn an_engine_in_a_container_of_its_own_serves_and_finishes_its_requests() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let pod = Pod::new(&sandbox, &mesh);
    let not_ready = Endpoint::open(pod.ready).get("/ready").unwrap();
    assert_eq!(not_ready.status, 503);
    assert_eq!(Endpoint::open(pod.ready).get("/metrics").unwrap().status, 404, "the port carries nothing else");

    let mut shim = pod.demo("shim", &["--tokens-per-second", "20", "--slots", "4"]);
    pod.wait_until_ready();
    mesh.proxy.wait_for_replicas("demo", 1);
    assert_eq!(pod.engine()["process"]["state"], "in_container");
    assert!(shim.output().contains("demo engine on"), "it is teed to the container's own output");
    let logs = pod.agent.home.ask(&["logs", "demo"]);
    assert!(logs.contains("demo engine on"), "{logs}");

    let load = Load::start(&mesh.endpoint, &Plan { clients: 4, model: "demo".into(), tokens: 40, stream: true });
    load.wait_for_more(1);
    std::thread::sleep(Duration::from_millis(500));
    let engine = pod.engine_pid();
    shim.signal(Signal::TERM);
    assert_eq!(shim.wait(PATIENCE).code(), Some(0), "{}", shim.output());
    assert!(kill_process(Pid::from_raw(engine).unwrap(), Signal::CONT).is_err(), "the engine ended with its shim");
    let report = load.finish();
    let broken: Vec<_> = report.outcomes.iter().filter(|outcome| matches!(outcome.end, End::Broken(_))).collect();
    assert!(broken.is_empty(), "{broken:?}");
    assert!(!pod.is_ready());
}

/// A killed agent is not noticed by the engine; the next one has all that was written meanwhile, once, in order.
#[test]
fn an_agent_is_replaced_under_a_running_engine() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let mut pod = Pod::new(&sandbox, &mesh);
    let script = format!(
        "i=0; (while :; do i=$((i+1)); echo line $i; sleep 0.01; done) & exec {} demo-engine --http {}",
        pod.executable().display(),
        pod.engine,
    );
    let mut shim = pod.shim("shim", "3600", &["sh", "-c", &script]);
    pod.wait_until_ready();
    let engine = pod.engine_pid();
    pod.replace_agent();
    pod.wait_until_ready();
    assert_eq!(pod.engine_pid(), engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    assert_eq!(chat(&mesh), 200);
    shim.assert_running();
    let numbers = wait_for("lines of after the restart", PATIENCE, || {
        let logs = pod.agent.home.ask(&["logs", "demo", "--tail", "100000"]);
        let numbers: Vec<u64> = logs.lines().filter_map(|line| line.rsplit_once("line ")?.1.parse().ok()).collect();
        (numbers.len() > 300).then_some(numbers)
    });
    let mut expected = numbers[0];
    for number in &numbers {
        // What was written but not confirmed when the agent was killed comes again.
        assert!(*number <= expected, "{expected} is missing before {number}: {numbers:?}");
        expected = expected.max(number + 1);
    }
    let twice = numbers.len() as u64 - (expected - numbers[0]);
    assert!(twice <= 5, "{twice} lines came twice");
}

/// An engine that ends again and again is started again by the agent's word, ever later, and the agent says why.
#[test]
fn an_engine_that_crashes_is_started_again_ever_later() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let pod = Pod::new(&sandbox, &mesh);
    let mut shim = pod.shim("shim", "3600", &["sh", "-c", "echo out of memory >&2; exit 3"]);
    let process = wait_for("a crash loop", Duration::from_secs(30), || {
        let process = pod.engine()["process"].clone();
        (process["state"] == "crash_loop").then_some(process)
    });
    assert!(process["exit"].as_str().unwrap().contains("exit status: 3"), "{process}");
    assert!(process["delay_s"].as_u64().unwrap() >= 4, "{process}");
    let logs = pod.agent.home.ask(&["logs", "demo", "--previous"]);
    assert!(logs.contains("out of memory"), "{logs}");
    assert_eq!(shim.output().matches("out of memory").count(), 5);
    let missing = Endpoint::open(pod.ready).get("/ready").unwrap();
    assert!(missing.status == 503 && missing.text().contains("exit status: 3"), "{}", missing.text());
    // It waits for nobody's word to end.
    let asked = Instant::now();
    shim.signal(Signal::TERM);
    assert_eq!(shim.wait(PATIENCE).code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
}

/// A program that isn't there is said to be so.
#[test]
fn a_program_that_is_not_in_the_container_is_named() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let pod = Pod::new(&sandbox, &mesh);
    let _shim = pod.shim("shim", "3600", &["/no/such/engine"]);
    wait_for("the reason", PATIENCE, || {
        let exit = pod.engine()["process"]["exit"].clone();
        exit.as_str().is_some_and(|exit| exit.contains("`/no/such/engine` was not found")).then_some(())
    });
}

/// Without a socket, or with a broken one, the engine runs all the same, signals reach it, and it ends when it is told to.
#[test]
fn without_an_agent_the_engine_runs_all_the_same() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let mut pod = Pod::new(&sandbox, &mesh);
    pod.agent.process.kill();
    std::fs::remove_file(pod.folder.join("agent.sock")).unwrap();
    let script =
        "trap 'echo told' USR1; trap 'echo bye; exit 0' TERM; (sleep 0.2 & ) ; echo up; while :; do sleep 0.05; done";
    let mut shim = pod.shim("shim", "0.5", &["sh", "-c", script]);
    wait_for("the engine to start alone", PATIENCE, || shim.output().contains("up").then_some(()));
    shim.signal(Signal::USR1);
    wait_for("the signal to be passed on", PATIENCE, || shim.output().contains("told").then_some(()));
    // The agent comes back, and has what was written before.
    pod.agent.restart(&pod.args.iter().map(String::as_str).collect::<Vec<_>>());
    let pid = pod.engine_pid();
    let logs = wait_for("the output", PATIENCE, || {
        let logs = pod.agent.home.ask(&["logs", "demo"]);
        logs.contains("told").then_some(logs)
    });
    assert!(logs.contains("up"), "{logs}");
    assert_eq!(zombies_under(shim.id()), 0, "what the engine left behind is buried");
    pod.agent.process.kill();
    std::thread::sleep(Duration::from_millis(300));
    shim.signal(Signal::TERM);
    assert_eq!(shim.wait(PATIENCE).code(), Some(0));
    assert!(shim.output().contains("bye"), "{}", shim.output());
    assert!(kill_process(Pid::from_raw(pid).unwrap(), Signal::CONT).is_err());
}

/// The loader tells the agent how far it has come, and the agent tells people.
#[test]
fn the_loader_tells_the_agent_how_far_it_is() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let pod = Pod::new(&sandbox, &mesh);
    let body = content(21, 12 << 20);
    let served = std::sync::Arc::clone(&body);
    let hub = Hub::start(move |request| Reply::file(request, &served, "\"v1\""));
    hub.set_pace(3 << 20);
    let mut fetch = sandbox.command(pod.executable());
    fetch
        .args(["fetch", &format!("{}/weights.bin", hub.url()), "--connections", "1", "--to"])
        .arg(sandbox.folder().join("models"));
    let mut fetch = sandbox.start("fetch", fetch);
    let news = wait_for("news of the loader", PATIENCE, || {
        let news = pod.engine()["fetching"].clone();
        (news["bytes_done"].as_u64().is_some_and(|done| done > 0) && news["bytes"] == 12 << 20).then_some(news)
    });
    assert_eq!((&news["files"], &news["ended"]), (&1.into(), &false.into()), "{news}");
    let status = pod.agent.home.ask(&["status"]);
    assert!(status.contains("its weights are being fetched") && status.contains("of 12.6 MB"), "{status}");
    assert!(fetch.wait(PATIENCE).success(), "{}", fetch.output());
    wait_for("the end of it", PATIENCE, || (pod.engine()["fetching"]["ended"] == true).then_some(()));
}

fn zombies_under(parent: i32) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let of_parent = |stat: &String| {
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        Some(words.next()? == "Z" && words.next()?.parse() == Ok(parent))
    };
    stats.filter(|stat| of_parent(stat) == Some(true)).count()
}

/// Whatever connects to the socket, the agent goes on.
#[test]
fn nonsense_on_the_socket_disturbs_nobody() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let pod = Pod::new(&sandbox, &mesh);
    let _shim = pod.demo("shim", &[]);
    pod.wait_until_ready();
    let socket = pod.folder.join("agent.sock");
    let silent: Vec<_> = (0..8).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"dunlin\x00\x00",
        b"dunlin\x00\x01\xff\xff\xff\xff",
        b"dunlin\x00\x01\x00\x00\x00\x04junk",
        b"dunlin\xff\xff\x00\x00\x00\x01\x07",
    ] {
        assert!(is_hung_up_on(&socket, bytes), "{bytes:?}");
    }
    drop(silent);
    mesh.proxy.wait_for_replicas("demo", 1);
    assert_eq!(chat(&mesh), 200);
    assert_eq!(pod.engine()["process"]["state"], "in_container");
}

/// Whether whoever says so is hung up on in time.
fn is_hung_up_on(socket: &Path, bytes: &[u8]) -> bool {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

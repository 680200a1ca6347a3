//! What a newcomer does first: one machine, one command.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::Endpoint,
    node::{Home, LOOPBACK, Mesh},
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn up(more: &[&'static str]) -> Vec<&'static str> {
    [&["up", "--http", "127.0.0.1:0"], &LOOPBACK[..], more].concat()
}

#[test]
fn up_then_chat() {
    let sandbox = Sandbox::new();
    // An engine is named so that none that happens to run on this machine is found.
    let mut node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    node.wait_for_replicas("demo", 1);

    let answer = node.home.ask(&["chat", "demo", "Why do dunlins flock?"]);
    assert!(!answer.trim().is_empty(), "chat printed nothing");
    let said = node.process.output();
    assert!(said.contains("dunlin join"), "`up` says how to join another machine:\n{said}");

    // The key that `up` printed works, and is asked for.
    let endpoint = node.endpoint();
    let printed = said.split_whitespace().find(|word| word.starts_with("sk-dunlin-") || word.starts_with("dunlin-"));
    let printed = printed.unwrap_or_else(|| panic!("no key in:\n{said}")).trim_matches(|c: char| !c.is_alphanumeric());
    let with_printed = Endpoint { key: Some(printed.to_owned()), ..endpoint.clone() };
    assert_eq!(with_printed.get("/v1/models").unwrap().status, 200);
    assert_eq!(Endpoint::open(endpoint.address).get("/v1/models").unwrap().status, 401);

    let streamed = endpoint.chat_stream("demo", "Why do dunlins flock?", 16).unwrap().events().collect_chat();
    assert!(streamed.is_whole(), "{streamed:?}");
    assert!(!streamed.text.is_empty());

    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait(PATIENCE).code(), Some(0));
    assert_eq!(sandbox.processes(), [], "`up` leaves nothing running");
}

/// Who asks twice does not want to wait, and yet no engine may be left on the GPU.
#[test]
fn a_second_signal_ends_it_at_once_with_its_engines() {
    let sandbox = Sandbox::new();
    let mut node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    node.wait_for_replicas("demo", 1);
    // Something to wait for.
    let mut events = node.endpoint().chat_stream("demo", "a long story", 4000).unwrap().events();
    events.next().unwrap().unwrap();
    node.process.signal(Signal::TERM);
    wait_for("the first signal to be taken", PATIENCE, || node.process.output().contains("once more").then_some(()));
    assert!(sandbox.processes().len() >= 2, "node and engine finish what they have");
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait(PATIENCE).code(), Some(143));
    wait_for("the engine to be gone", PATIENCE, || sandbox.processes().is_empty().then_some(()));
}

/// Over QUIC nobody hears of a process's end from its kernel: without a word, ten seconds of silence would tell.
#[test]
fn a_second_signal_still_says_goodbye() {
    let sandbox = Sandbox::new();
    let quic = ["--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let mesh = Mesh::listening(&sandbox, &quic);
    let home = mesh.member("a", &["--role", "agent"]);
    let mut agent = home.start(&[&["agent", "--launch", "demo"], &quic[..]].concat());
    let agent_id = agent.peer_id();
    mesh.proxy.wait_for_replicas("demo", 1);
    let mut events = mesh.endpoint.chat_stream("demo", "a long story", 4000).unwrap().events();
    events.next().unwrap().unwrap();
    agent.process.signal(Signal::TERM);
    wait_for("the first signal to be taken", PATIENCE, || agent.process.output().contains("once more").then_some(()));
    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.wait(PATIENCE).code(), Some(143));
    let (ended, peer) = (Instant::now(), agent_id);
    wait_for("the proxy to hear of the end", PATIENCE, || {
        let peers = mesh.proxy.home.list(&["peers"]);
        let of_agent = peers.as_array().unwrap().iter().find(|known| known["peer"] == peer);
        of_agent.is_none_or(|known| known["reachability"] == "disconnected").then_some(())
    });
    assert!(ended.elapsed() < Duration::from_secs(5), "told after {:?}", ended.elapsed());
}

#[test]
fn up_again_keeps_mesh_peer_and_keys() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let url = engine.url();
    let args: Vec<&str> = [&["up", "--http", "127.0.0.1:0", "--engine", &url], &LOOPBACK[..]].concat();
    let mut node = Home::new(&sandbox, "home").start(&args);
    let (peer, key) = (node.peer_id(), node.endpoint().key);
    let mesh = node.status()["mesh"].clone();
    node.restart(&args);
    assert_eq!(node.peer_id(), peer);
    assert_eq!(node.status()["mesh"], mesh);
    let again = Endpoint { key, ..node.endpoint() };
    node.wait_for_replicas("demo", 1);
    again.chat("demo", "still there?", 4).unwrap().content();
}

#[test]
fn one_state_directory_runs_one_node() {
    let sandbox = Sandbox::new();
    let node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    let second = node.home.run(&up(&["--launch", "demo"]));
    assert_eq!(second.status.code(), Some(1));
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(error.contains(&node.process.id().to_string()), "it names the process that holds it: {error}");
}

#[test]
fn without_a_node_commands_say_so() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "nobody");
    for (command, code) in [("status", 3), ("peers", 3), ("models", 3), ("chat", 1)] {
        let output = home.run(&[command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("dunlin up"), "{command}: {output:?}");
    }
    assert_eq!(home.run(&["serve"]).status.code(), Some(2));
}

/// A mesh can't be unmade: whatever keeps `up` from starting is found before one is made.
#[test]
fn up_that_cannot_start_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (http, udp) = (taken.local_addr().unwrap().to_string(), taken_udp.local_addr().unwrap());
    let listen = format!("/ip4/127.0.0.1/udp/{}/quic-v1", udp.port());
    let home = Home::new(&sandbox, "home");
    for (args, wanted) in [
        (&["--launch", "demo", "--http", &http][..], "--http ADDR:PORT"),
        (&["--launch", "demo", "--http", "127.0.0.1:0", "--listen", &listen], "--listen"),
        (&["--launch", "demo", "--http", "127.0.0.1:0", "--metrics-http", &http], http.as_str()),
        (&["--launch", "nonsense", "--http", "127.0.0.1:0"], "nonsense"),
    ] {
        let output = home.run(&[&["up", "--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(wanted), "{args:?}: {said}");
        assert!(!sandbox.folder().join("home/mesh.key").exists(), "{args:?} made a mesh");
        assert!(!sandbox.folder().join("home/certificate").exists(), "{args:?} made a certificate");
    }
}

/// Whoever was invited and could not join does not want a mesh of its own, at least not without being asked.
#[test]
fn up_after_a_failed_join_makes_no_other_mesh() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let token = mesh.proxy.home.ask(&["invite"]);
    let home = Home::new(&sandbox, "home");
    // The only use of this invitation is taken.
    Home::new(&sandbox, "faster").join(&token);
    for token in [token.as_str(), "dunlin1nonsense"] {
        assert_eq!(home.run(&["join", token]).status.code(), Some(1));
        // Not run to its end: an `up` that makes a mesh after all has none.
        let mut refused = sandbox.start("refused", home.command(&up(&["--launch", "demo"])));
        assert_eq!(refused.wait(PATIENCE).code(), Some(1), "{}", refused.output());
        let said = refused.output();
        assert!(said.contains("`dunlin join`") && said.contains("dunlin mesh create && dunlin up"), "{said}");
        assert!(!sandbox.folder().join("home/mesh.key").exists());
    }
    let doctor = home.run(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("`dunlin join` failed"), "{doctor:?}");
    // A join that works ends that.
    home.join(&mesh.proxy.home.ask(&["invite"]));
    let node = home.start(&up(&["--launch", "demo"]));
    assert_eq!(node.status()["mesh"], mesh.proxy.status()["mesh"]);
}

#[test]
fn a_neighbour_of_another_mesh_is_named() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let (other, address) = (mesh.proxy.peer_id(), mesh.proxy.listen_addresses()[0].clone());
    let peer = format!("{address}/p2p/{other}");
    let args: Vec<&str> = [&up(&["--launch", "demo"])[..], &["--peer", &peer]].concat();
    let node = Home::new(&sandbox, "home").start(&args);
    wait_for("the neighbour to be met", PATIENCE, || {
        (node.status()["other_meshes"][0]["peer"] == other.as_str()).then_some(())
    });
    // An engine that starts is a problem to the doctor.
    node.wait_for_replicas("demo", 1);
    let said = node.home.ask(&["doctor"]);
    let line = said.lines().find(|line| line.contains("neighbour"));
    assert!(line.is_some_and(|line| line.contains(&other) && line.contains("another mesh")), "{said}");
    // The other side was not let in either, and says so.
    assert_eq!(mesh.proxy.status()["other_meshes"][0]["peer"], node.peer_id());
}

/// Journals and containers put both streams into one place: log lines then are lines of JSON before or after the summary.
#[test]
fn the_summary_is_one_piece_beside_the_log() {
    let sandbox = Sandbox::new();
    let node = Home::new(&sandbox, "home").start(&up(&["--launch", "demo"]));
    wait_for("log lines after the summary", PATIENCE, || node.process.output().trim_end().ends_with('}').then_some(()));
    let said = node.process.output();
    let is_log: Vec<bool> = said.lines().map(|line| line.starts_with('{')).collect();
    let first = is_log.iter().position(|log| !log).unwrap();
    let last = is_log.iter().rposition(|log| !log).unwrap();
    assert!(is_log.contains(&true), "it logs JSON:\n{said}");
    assert!(!is_log[first..=last].contains(&true), "a log line inside the summary:\n{said}");
    // What it says of addresses is what `status` says.
    let mut told: Vec<String> =
        said.lines().filter_map(|line| line.strip_prefix("listening ")).map(ToOwned::to_owned).collect();
    let mut listed = node.listen_addresses();
    told.sort();
    listed.sort();
    assert_eq!(told, listed);
    let human = Home::new(&sandbox, "human").with_environment(vec![("DUNLIN_LOG_FORMAT", "human".into())]);
    let human = human.start(&up(&["--launch", "demo"]));
    assert!(!human.process.output().contains("\n{"), "{}", human.process.output());
}

/// Many may read a journal.
#[test]
fn a_journal_gets_no_key() {
    let sandbox = Sandbox::new();
    let log = sandbox.folder().join("journal");
    let file = std::fs::File::create(&log).unwrap();
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().unwrap();
    let mut command = Home::new(&sandbox, "home").command(&up(&["--launch", "demo"]));
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    command.stdout(file).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let said = || std::fs::read_to_string(&log).unwrap();
    wait_for("the summary", PATIENCE, || said().contains("dunlin chat").then_some(()));
    let said = said();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.contains("`dunlin keys create` makes one") && said.contains("`dunlin invite`"), "{said}");
    assert!(!said.contains("sk-dunlin-") && !said.contains("dunlin1"), "{said}");
    let keys = Home::new(&sandbox, "home").list(&["keys"]);
    assert_eq!(keys, serde_json::json!([]), "no key that nobody has seen");
}

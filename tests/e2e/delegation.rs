//! Issuing without the mesh key, and the machines that lose their membership.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use rustix::{
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Output, Stdio},
};

const PROXY: [&str; 3] = ["proxy", "--http", "127.0.0.1:0"];

fn stop(node: &mut Node<'_>) {
    node.process.signal(Signal::TERM);
    node.process.wait(PATIENCE);
}

#[track_caller]
fn refused(output: Output, code: i32, why: &str) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(code) && error.contains(why), "{output:?}");
}

#[test]
fn a_mesh_goes_on_without_its_key_until_the_key_says_otherwise() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mut mesh = Mesh::new(&sandbox, &[]);
    let proxy = [&PROXY[..], &LOOPBACK[..]].concat();
    let delegate = mesh.member("delegate", &["--role", "proxy"]).start(&proxy);
    let peer = delegate.peer_id();
    refused(delegate.home.run(&["invite"]), 1, "may not issue");
    wait_for("the two to meet", PATIENCE, || {
        let peers = mesh.proxy.home.list(&["peers"]);
        let met = peers.as_array()?.iter().any(|other| other["peer"] == peer && other["reachability"] == "connected");
        met.then_some(())
    });
    let said = mesh.proxy.home.ask(&["mesh", "delegate", &peer, "--role", "agent", "--life", "7d"]);
    assert!(said.contains(&peer) && said.contains("agent") && said.contains("7 days"), "{said}");
    let shown = mesh.proxy.home.ask(&["mesh", "show"]);
    assert!(shown.contains("mesh key") && shown.contains(&peer), "{shown}");
    assert!(delegate.home.ask(&["mesh", "show"]).contains("issues invitations"));

    // The key goes; what it said stays.
    stop(&mut mesh.proxy);
    let file = sandbox.folder().join("mesh.key");
    let path = file.to_string_lossy().into_owned();
    let output = mesh.proxy.home.run(&["mesh", "key", "export", "--remove", "--file", &path]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("can't be undone"), "{output:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    mesh.proxy.restart(&proxy);
    mesh.endpoint = mesh.proxy.endpoint();
    refused(mesh.proxy.home.run(&["invite"]), 1, "may not issue");

    // The delegate invites, and no more than it may.
    refused(delegate.home.run(&["invite", "--role", "proxy"]), 1, "delegation");
    let token = delegate.home.ask(&["invite"]);
    let home = Home::new(&sandbox, "agent");
    home.join(&token);
    let _agent = home.start(&[&["agent", "--engine", &engine.url()], &LOOPBACK[..]].concat());
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "Hello", 4).unwrap().content();

    // The key comes back, and takes the right away again.
    refused(mesh.proxy.home.run(&["mesh", "undelegate", &peer]), 1, "may not issue");
    stop(&mut mesh.proxy);
    mesh.proxy.home.ask(&["mesh", "key", "import", &path]);
    delegate.wait_for_replicas("demo", 1);
    mesh.proxy.restart(&proxy);
    // At once: the delegate and the agent, which were there all the time, do not listen to its gossip yet.
    assert!(mesh.proxy.home.ask(&["mesh", "undelegate", &peer]).contains("have ended"));
    delegate.wait_for_replicas("demo", 0);
    mesh.proxy.wait_for_replicas("demo", 0);
    refused(delegate.home.run(&["invite"]), 1, "delegation was revoked");
    let again = mesh.proxy.home.ask(&["mesh", "undelegate", &peer]);
    assert!(again.contains("may not issue") && !again.contains("have ended"), "{again}");
}

/// What `status` and `doctor` say, and that it is true.
#[track_caller]
fn says_revoked_and_comes_back(mesh: &Mesh<'_>, mut node: Node<'_>, engine: &DemoEngine) {
    wait_for("the machine to know", PATIENCE, || (node.status()["revoked"] == true).then_some(()));
    let status = node.home.ask(&["status"]);
    assert!(status.contains("was revoked") && status.contains("dunlin join TOKEN"), "{status}");
    let doctor = node.home.run(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.status.code() == Some(1) && said.contains("was revoked"), "{said}");
    assert!(said.contains("ask for a new invitation"), "{said}");
    wait_for("its log to say so", PATIENCE, || node.process.output().contains("dials nobody any more").then_some(()));
    // Time in which it would have dialled, and would have been refused, again and again.
    std::thread::sleep(std::time::Duration::from_secs(4));
    let log = node.process.output();
    let count = |what: &str| log.matches(what).count();
    assert_eq!((count("membership was revoked"), count("refused this one")), (1, 0), "{log}");
    stop(&mut node);
    let token = mesh.proxy.home.ask(&["invite", "--role", "agent"]);
    node.home.join(&token);
    node.restart(&[&["agent", "--engine", &engine.url()], &LOOPBACK[..]].concat());
    assert_eq!(node.status()["revoked"], false);
    mesh.proxy.wait_for_replicas("demo", 1);
}

#[test]
fn a_revoked_machine_is_told_and_can_be_invited_again() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.proxy.home.ask(&["revoke", &agent.peer_id()]);
    mesh.proxy.wait_for_replicas("demo", 0);
    says_revoked_and_comes_back(&mesh, agent, &engine);
}

/// A mesh whose first machine delegated to itself, and has stopped.
fn delegated_to_itself(sandbox: &Sandbox) -> Mesh<'_> {
    let mut mesh = Mesh::new(sandbox, &[]);
    let own = mesh.proxy.peer_id();
    mesh.proxy.home.ask(&["mesh", "delegate", &own]);
    stop(&mut mesh.proxy);
    mesh
}

fn take_the_key_away(mesh: &Mesh<'_>, sandbox: &Sandbox) {
    let path = sandbox.folder().join("mesh.key").to_string_lossy().into_owned();
    mesh.proxy.home.ask(&["mesh", "key", "export", "--remove", "--file", &path]);
}

#[test]
fn a_machine_that_gave_its_key_away_does_not_call_revoked_who_may_still_be_in() {
    let sandbox = Sandbox::new();
    let mut mesh = delegated_to_itself(&sandbox);
    let proxy = [&PROXY[..], &LOOPBACK[..]].concat();
    mesh.proxy.restart(&proxy);
    let peer_of = |home: &Home<'_>| home.list(&["mesh", "show"])["peer"].as_str().unwrap().to_owned();
    // Admitted by the mesh key, and never seen while this machine could not ask it.
    let of_the_key = peer_of(&mesh.member("of-the-key", &["--role", "agent"]));
    stop(&mut mesh.proxy);
    take_the_key_away(&mesh, &sandbox);
    mesh.proxy.restart(&proxy);
    refused(mesh.proxy.home.run(&["revoke", &of_the_key]), 1, "revoke it where the mesh key lies");
    // In this machine's branch, as far as it knows.
    let of_the_branch = peer_of(&mesh.member("of-the-branch", &["--role", "agent"]));
    let output = mesh.proxy.home.run(&["revoke", &of_the_branch]);
    assert!(output.stdout.is_empty(), "{output:?}");
    refused(output, 1, "can't be known whether that ends the membership");
}

#[test]
fn the_only_copy_of_the_key_is_not_removed_for_a_reader_that_may_not_be_there() {
    let sandbox = Sandbox::new();
    let mesh = delegated_to_itself(&sandbox);
    let home = &mesh.proxy.home;
    let remove = ["mesh", "key", "export", "--remove"];
    refused(home.run(&remove), 2, "--file FILE, or a terminal");
    let mut nowhere = home.command(&remove);
    nowhere.stdout(Stdio::null()).stderr(Stdio::piped());
    let nowhere = nowhere.spawn().unwrap().wait_with_output().unwrap();
    refused(nowhere, 2, "--file FILE, or a terminal");
    let mut closed = sandbox.command("sh");
    closed.args(["-c", r#"exec "$@" >&-"#, "sh"]).arg(home.command(&remove).get_program());
    closed.args(home.command(&remove).get_args());
    refused(closed.output().unwrap(), 2, "--file FILE, or a terminal");
    let key = home.ask(&["mesh", "key", "export"]);

    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let side = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = home.command(&remove);
    assert!(command.stdout(side.try_clone().unwrap()).stderr(Stdio::null()).status().unwrap().success());
    let mut shown = String::new();
    BufReader::new(std::fs::File::from(terminal)).read_line(&mut shown).unwrap();
    assert_eq!(shown.trim_end(), key);
    refused(home.run(&["mesh", "key", "export"]), 1, "does not lie on this machine");
}

#[test]
fn the_only_key_stays_where_it_is() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "home");
    home.ask(&["mesh", "create"]);
    refused(home.run(&["mesh", "key", "export", "--remove"]), 1, "mesh delegate");
    let key = home.ask(&["mesh", "key", "export"]);
    assert_eq!(key.split_whitespace().count(), 1, "the key alone");
    let file = sandbox.folder().join("key");
    std::fs::write(&file, &key).unwrap();
    let path = file.to_string_lossy().into_owned();
    refused(home.run(&["mesh", "key", "export", "--file", &path]), 1, "exists");
    let other = Home::new(&sandbox, "other");
    other.ask(&["mesh", "key", "import", &path]);
    let mesh = |home: &Home<'_>| home.list(&["mesh", "show"])["mesh"].clone();
    assert_eq!(mesh(&other), mesh(&home), "a mesh that lost all its machines begins anew under its key");
    std::fs::write(&file, &key.as_bytes()[..40]).unwrap();
    refused(Home::new(&sandbox, "third").run(&["mesh", "key", "import", &path]), 2, "damaged");
}

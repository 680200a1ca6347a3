//! Disks that are full or can't be written, and files that were damaged: what needs the disk says so, and says what to do;
//! requests don't need it.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    load::{Load, Plan},
    node::{Home, LOOPBACK, Mesh, Node},
    process::Process,
    sandbox::Sandbox,
    skipped, wait_for,
};
use rustix::process::Signal;
use std::process::Output;

/// A small disk under a state directory, seen only by what runs within.
struct Disk {
    holder: Process,
    folder: String,
}

impl Disk {
    /// At the state directory of `name`; `None`, said loudly, where that may not be.
    fn new(sandbox: &Sandbox, name: &str) -> Option<Self> {
        let folder = sandbox.folder().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.to_string_lossy().into_owned();
        let mut command = sandbox.command("unshare");
        let hold = "mount -t tmpfs -o size=1m,mode=700 tmpfs \"$0\" && echo mounted && exec sleep infinity";
        command.args(["--mount", "--propagation", "private", "sh", "-c", hold, &folder]);
        let mut holder = sandbox.start(&format!("{name}-disk"), command);
        let mounted = wait_for("the disk", PATIENCE, || match holder.try_exit() {
            Some(_) => Some(false),
            None => holder.output().contains("mounted").then_some(true),
        });
        if !mounted {
            skipped(&format!("no mount of its own: {}", holder.output().trim()));
            return None;
        }
        Some(Self { holder, folder })
    }

    fn home<'a>(&self, sandbox: &'a Sandbox, name: &str) -> Home<'a> {
        Home::new(sandbox, name).run_by(&["nsenter", &format!("--mount=/proc/{}/ns/mnt", self.holder.id()), "--"])
    }

    /// Runs a shell's words beside the disk.
    fn sh(&self, sandbox: &Sandbox, words: &str) {
        let mut command = sandbox.command("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).args(["--", "sh", "-c", words, &self.folder]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
    }

    fn fill(&self, sandbox: &Sandbox) {
        self.sh(sandbox, "dd if=/dev/zero of=\"$0/filler\" bs=512 2>/dev/null; test -s \"$0/filler\"");
    }

    fn empty(&self, sandbox: &Sandbox) {
        self.sh(sandbox, "rm \"$0/filler\"");
    }
}

/// That it failed, and what it said of it.
#[track_caller]
fn failed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: ") && !said.contains("panicked"), "{said}");
    said
}

/// A peer that there is not.
const SOMEBODY: &str = "12D3KooWA6JcbLTvSENRExXUaAULdXpyFKDriD9zFjXQXZxmaz2x";
const PROXY: [&str; 3] = ["proxy", "--http", "127.0.0.1:0"];

/// A mesh whose proxy has its state on `disk`.
fn mesh<'a>(sandbox: &'a Sandbox, disk: &Disk) -> Mesh<'a> {
    let home = disk.home(sandbox, "proxy");
    home.ask(&["mesh", "create"]);
    let proxy = home.start(&[&PROXY, &LOOPBACK[..]].concat());
    Mesh { sandbox, endpoint: proxy.endpoint(), proxy }
}

fn load(mesh: &Mesh<'_>) -> Load {
    let load = Load::start(&mesh.endpoint, &Plan { clients: 4, model: "demo".into(), tokens: 20, stream: true });
    load.wait_for_more(10);
    load
}

/// Tells it to end, and to start again, which fails.
fn start_again(proxy: &mut Node<'_>) -> String {
    proxy.process.signal(Signal::TERM);
    assert_eq!(proxy.process.wait(PATIENCE).code(), Some(0), "{}", proxy.process.output());
    failed(&proxy.home.run(&[&PROXY, &LOOPBACK[..]].concat()))
}

#[test]
fn a_full_disk_costs_what_has_to_be_written_and_no_request() {
    let sandbox = Sandbox::new();
    let Some(disk) = Disk::new(&sandbox, "proxy") else { return };
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "100"]);
    let mut mesh = mesh(&sandbox, &disk);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let load = load(&mesh);

    disk.fill(&sandbox);
    for command in [&["keys", "create"][..], &["invite"], &["revoke", SOMEBODY]] {
        let said = failed(&mesh.proxy.home.run(command));
        assert!(said.contains("full") || said.contains("No space left"), "{command:?}: {said}");
    }
    let said = failed(&mesh.proxy.home.run(&["invite"]));
    assert!(said.contains("free some space"), "{said}");
    // A new replica is found, with nothing written of it.
    let second = mesh_agent_after(&mesh, &disk, &engine, &sandbox);
    mesh.proxy.wait_for_replicas("demo", 2);
    load.wait_for_more(20);
    second.process.signal(Signal::TERM);
    mesh.proxy.wait_for_replicas("demo", 1);

    disk.fill(&sandbox);
    failed(&mesh.proxy.home.run(&["keys", "create"]));
    disk.empty(&sandbox);
    mesh.proxy.home.ask(&["keys", "create"]);
    mesh.proxy.home.ask(&["invite"]);
    load.wait_for_more(10);
    load.finish().assert_all_whole();

    disk.fill(&sandbox);
    let said = start_again(&mut mesh.proxy);
    assert!(said.contains("No space left") && said.contains("free some space"), "{said}");
    disk.empty(&sandbox);
    mesh.proxy.restart(&[&PROXY, &LOOPBACK[..]].concat());
}

/// An agent that joins while there is room for the invitation, and starts when there is none.
fn mesh_agent_after<'a>(mesh: &Mesh<'a>, disk: &Disk, engine: &DemoEngine, sandbox: &'a Sandbox) -> Node<'a> {
    disk.empty(sandbox);
    let home = mesh.member("b", &["--role", "agent"]);
    disk.fill(sandbox);
    home.start(&[&["agent", "--engine", &engine.url()], &LOOPBACK[..]].concat())
}

#[test]
fn a_disk_that_became_read_only_costs_what_has_to_be_written_and_no_request() {
    let sandbox = Sandbox::new();
    let Some(disk) = Disk::new(&sandbox, "proxy") else { return };
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "100"]);
    let mut mesh = mesh(&sandbox, &disk);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let load = load(&mesh);
    // What is open stays open, as with a disk that the kernel no longer trusts: no new file, no name changed.
    disk.sh(&sandbox, "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\"");
    for command in [&["keys", "create"][..], &["invite", "withdraw", "00"], &["revoke", SOMEBODY]] {
        let said = mesh.proxy.home.run(command);
        assert!(!String::from_utf8_lossy(&said.stderr).contains("panicked"), "{command:?}: {said:?}");
    }
    load.wait_for_more(20);
    load.finish().assert_all_whole();
    let said = start_again(&mut mesh.proxy);
    assert!(said.contains("Read-only file system") && said.contains("--home"), "{said}");
}

#[test]
fn a_damaged_file_is_named_with_what_to_do() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "node");
    home.ask(&["mesh", "create"]);
    let args = [&PROXY, &LOOPBACK[..]].concat();
    // Some files are there only once it has run.
    let mut node = home.start(&args);
    node.process.signal(Signal::TERM);
    assert!(node.process.wait(PATIENCE).success());
    let home = node.home;
    let start_with = |file: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let path = home.folder().join(file);
        let right = std::fs::read(&path).unwrap();
        let mut wrong = right.clone();
        damage(&mut wrong);
        std::fs::write(&path, wrong).unwrap();
        let said = failed(&home.run(&args));
        std::fs::write(&path, right).unwrap();
        assert!(said.contains(file), "{file}: {said}");
        assert!(said.contains("restore it from a backup"), "{file}: {said}");
    };
    let cut_short = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    let overwritten = |bytes: &mut Vec<u8>| bytes.fill(0x5a);
    for file in ["identity.key", "mesh.key", "certificate"] {
        start_with(file, &cut_short);
    }
    for file in ["certificate", "issuer.db", "keys.db", "usage.db"] {
        start_with(file, &overwritten);
    }
    // Nothing but a cache: no reason not to start.
    std::fs::write(home.folder().join("known_peers.json"), "[{").unwrap();
    home.start(&args);
}

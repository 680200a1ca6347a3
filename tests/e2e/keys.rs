//! Keys hold on every proxy of a mesh, whatever happens to some of them.

use crate::harness::{
    PATIENCE,
    http::{Endpoint, Streamed},
    netns::{Lab, within},
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const PROXY: [&str; 3] = ["proxy", "--http", "127.0.0.1:0"];
/// What README and docs/keys.md promise.
const SOON: Duration = Duration::from_secs(1);

fn proxy_args() -> Vec<&'static str> {
    [&PROXY[..], &LOOPBACK[..]].concat()
}

/// One more endpoint of a mesh.
#[track_caller]
fn another<'a>(mesh: &Mesh<'a>, name: &str, invite: &[&str]) -> Node<'a> {
    let node = mesh.member(name, &[&["--role", "proxy"], invite].concat()).start(&proxy_args());
    let ready = || says(&node, "/ready").filter(|said| !said.contains("keys"));
    wait_for("the keys to be fetched", PATIENCE, ready);
    node
}

/// Where a node's endpoint is asked with `key`.
fn at(node: &Node<'_>, key: &str) -> Endpoint {
    let status = node.status();
    let url = status["endpoint"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap().parse().unwrap();
    Endpoint { address, key: Some(key.to_owned()) }
}

fn says(node: &Node<'_>, path: &str) -> Option<String> {
    let answer = at(node, "none").get(path).ok()?;
    Some(String::from_utf8_lossy(&answer.body).into_owned())
}

fn opens(endpoint: &Endpoint) -> bool {
    endpoint.get("/v1/models").is_ok_and(|answer| answer.status == 200)
}

/// Waits until all agree, a second at most, counted from `since`.
#[track_caller]
fn all_within_a_second(endpoints: &[Endpoint], open: bool, since: Instant) {
    for endpoint in endpoints {
        while opens(endpoint) != open {
            assert!(since.elapsed() < SOON, "{} not after a second: open {open}", endpoint.address);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The id that is a part of a key.
fn id(key: &str) -> &str {
    key.strip_prefix("sk-dunlin-").unwrap().split_once('-').unwrap().0
}

#[test]
fn a_key_opens_all_proxies_within_a_second_and_so_does_its_end() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let second = another(&mesh, "second", &[]);
    let third = another(&mesh, "third", &["--keys"]);
    let everywhere = |key: &str| [at(&mesh.proxy, key), at(&second, key), at(&third, key)];

    let started = Instant::now();
    let key = mesh.proxy.home.ask(&["keys", "create", "--name", "everywhere", "--tag", "test"]);
    all_within_a_second(&everywhere(&key), true, started);
    // A machine that may make keys is any that was invited for it.
    let other = third.home.ask(&["keys", "create", "--name", "from the third", "--model", "Qwen/*"]);
    all_within_a_second(&everywhere(&other), true, Instant::now());
    let refused = second.home.run(&["keys", "create"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("dunlin invite --keys"), "{refused:?}");
    assert_eq!(second.home.list(&["keys"]), mesh.proxy.home.list(&["keys"]));
    let asked = at(&second, &other).chat("llama", "hello", 1).unwrap();
    assert_eq!(asked.status, 403, "{:?}", String::from_utf8_lossy(&asked.body));

    let started = Instant::now();
    third.home.ask(&["keys", "revoke", id(&key)]);
    all_within_a_second(&everywhere(&key), false, started);
    assert!(everywhere(&other).iter().all(opens));

    // A tenant suspended takes its keys with it, and brings them back.
    mesh.proxy.home.ask(&["tenants", "create", "search"]);
    let of_tenant = mesh.proxy.home.ask(&["keys", "create", "--tenant", "search"]);
    all_within_a_second(&everywhere(&of_tenant), true, Instant::now());
    third.home.ask(&["tenants", "suspend", "search"]);
    all_within_a_second(&everywhere(&of_tenant), false, Instant::now());
    mesh.proxy.home.ask(&["tenants", "resume", "search"]);
    all_within_a_second(&everywhere(&of_tenant), true, Instant::now());
    assert!(!mesh.proxy.home.run(&["tenants", "remove", "search"]).status.success(), "it has a key");
    mesh.proxy.home.ask(&["tenants", "remove", "search", "--keys"]);
    all_within_a_second(&everywhere(&of_tenant), false, Instant::now());
}

#[test]
fn a_proxy_with_an_empty_disk_is_ready_once_it_has_the_keys_again() {
    let sandbox = Sandbox::new();
    let mut mesh = Mesh::new(&sandbox, &[]);
    let mut second = another(&mesh, "second", &[]);
    let key = mesh.proxy.home.ask(&["keys", "create"]);
    all_within_a_second(&[at(&second, &key)], true, Instant::now());
    // It comes back where the other one looks for it.
    let listens = mesh.proxy.listen_addresses().into_iter().find(|address| address.contains("/tcp/")).unwrap();
    let as_before = [&PROXY[..], &["--no-mdns", "--listen", &listens]].concat();

    second.process.kill();
    mesh.proxy.process.kill();
    for file in ["keys.db", "keys.db-wal", "keys.db-shm"] {
        let _ = std::fs::remove_file(second.home.folder().join(file));
    }
    second.restart(&proxy_args());
    let unready = || says(&second, "/ready").unwrap();
    assert!(unready().contains("keys were not fetched"), "{}", unready());
    assert!(!opens(&at(&second, &key)));
    std::thread::sleep(Duration::from_millis(2500));
    assert!(unready().contains("keys were not fetched"), "time alone brings no key");
    mesh.proxy.restart(&as_before);
    wait_for("the keys", PATIENCE, || (!unready().contains("keys were not")).then_some(()));
    assert!(opens(&at(&second, &key)));
}

/// Whatever a command has printed counts, and both sides know the same, wherever the kill came.
#[test]
fn a_change_has_happened_or_not_when_its_proxy_is_killed() {
    let sandbox = Sandbox::new();
    let mut mesh = Mesh::new(&sandbox, &[]);
    let second = another(&mesh, "second", &[]);
    // It comes back where the other one looks for it: it may be killed before it has noted where that is.
    let listens = mesh.proxy.listen_addresses().into_iter().find(|address| address.contains("/tcp/")).unwrap();
    let as_before = [&PROXY[..], &["--no-mdns", "--listen", &listens]].concat();
    let mut printed = Vec::new();
    for round in 0..3 {
        let process = mesh.proxy.process.id();
        // Without a node keys are made in its folder: somebody has to say when it is enough.
        let killed = AtomicBool::new(false);
        let made = std::thread::scope(|scope| {
            let home = &mesh.proxy.home;
            let maker = scope.spawn(|| {
                let mut made = Vec::new();
                while !killed.load(Ordering::Relaxed) {
                    let output = home.run(&["keys", "create", "--name", "again"]);
                    if !output.status.success() {
                        return made;
                    }
                    made.push(String::from_utf8(output.stdout).unwrap().trim().to_owned());
                }
                made
            });
            std::thread::sleep(Duration::from_millis(300 + 170 * round));
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(process).unwrap(),
                rustix::process::Signal::KILL,
            )
            .unwrap();
            killed.store(true, Ordering::Relaxed);
            maker.join().unwrap()
        });
        printed.extend(made);
        mesh.proxy.process.wait(PATIENCE);
        mesh.proxy.restart(&as_before);
    }
    assert!(printed.len() >= 3, "{printed:?}");
    for key in &printed {
        for (name, node) in [("first", &mesh.proxy), ("second", &second)] {
            let endpoint = at(node, key);
            let what = format!("a key that was printed ({}) to open the {name} endpoint", id(key));
            wait_for(&what, PATIENCE, || opens(&endpoint).then_some(()));
        }
    }
    wait_for("the same keys on both", PATIENCE, || {
        (mesh.proxy.home.list(&["keys"]) == second.home.list(&["keys"])).then_some(())
    });
}

/// `--now` ends what runs, on other endpoints too; without it a key's running answers finish.
#[test]
fn running_answers_finish_unless_their_key_is_revoked_for_now() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("agent", &["--launch", "demo", "--", "--tokens-per-second", "20"]);
    let second = another(&mesh, "second", &[]);
    second.wait_for_replicas("demo", 1);
    for now in [false, true] {
        let key = mesh.proxy.home.ask(&["keys", "create"]);
        let endpoint = at(&second, &key);
        all_within_a_second(std::slice::from_ref(&endpoint), true, Instant::now());
        let mut events = endpoint.chat_stream("demo", "hello", 60).unwrap().events();
        let mut streamed = Streamed::default();
        streamed.take(&events.next().unwrap().unwrap());
        let revoked = Instant::now();
        let how: &[&str] = if now { &["--now"] } else { &[] };
        mesh.proxy.home.ask(&[&["keys", "revoke", id(&key)], how].concat());
        for event in events {
            streamed.take(&event.unwrap());
        }
        assert_eq!(streamed.is_whole(), !now, "{streamed:?}");
        if now {
            assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());
            assert!(streamed.error.as_ref().is_some_and(|error| error.contains("revoked")), "{streamed:?}");
        }
        all_within_a_second(std::slice::from_ref(&endpoint), false, Instant::now());
    }
}

/// With `--keys-max-age` an endpoint that hears of no other one takes no key any more, until one is back.
#[test]
fn who_hears_of_no_other_endpoint_takes_keys_for_so_long_only() {
    let sandbox = Sandbox::new();
    let mut mesh = Mesh::new(&sandbox, &[]);
    let careful = mesh.member("careful", &["--role", "proxy"]);
    let careful = careful.start(&[&proxy_args()[..], &["--keys-max-age", "3s"]].concat());
    let key = mesh.proxy.home.ask(&["keys", "create"]);
    let endpoint = at(&careful, &key);
    all_within_a_second(std::slice::from_ref(&endpoint), true, Instant::now());
    let listens = mesh.proxy.listen_addresses().into_iter().find(|address| address.contains("/tcp/")).unwrap();
    // In company it takes them for as long as it likes.
    std::thread::sleep(Duration::from_secs(4));
    assert!(opens(&endpoint));
    mesh.proxy.process.kill();
    let alone = Instant::now();
    let refused = wait_for("keys to be too old", PATIENCE, || {
        endpoint.get("/v1/models").ok().filter(|answer| answer.status != 200)
    });
    assert!(alone.elapsed() > Duration::from_secs(1), "{:?}", alone.elapsed());
    assert!(refused.text().contains("--keys-max-age"), "{} {}", refused.status, refused.text());
    mesh.proxy.restart(&[&PROXY[..], &["--no-mdns", "--listen", &listens]].concat());
    wait_for("keys to be taken again", PATIENCE, || opens(&endpoint).then_some(()));
}

/// A proxy that listens at `address`.
#[track_caller]
fn listening<'a>(home: Home<'a>, address: &str) -> Node<'a> {
    let (tcp, quic) = (format!("/ip4/{address}/tcp/0"), format!("/ip4/{address}/udp/0/quic-v1"));
    home.start(&[&PROXY[..], &["--no-mdns", "--listen", &tcp, "--listen", &quic]].concat())
}

/// Who was cut off when a key was revoked refuses it within a second of its return.
#[test]
fn a_revocation_reaches_who_was_cut_off_once_it_is_back() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let home = Home::within(&sandbox, "first", &near);
    home.ask(&["mesh", "create"]);
    let first = listening(home, "10.78.0.1");
    let home = Home::within(&sandbox, "second", &far);
    home.join(&first.home.ask(&["invite", "--role", "proxy"]));
    let second = listening(home, "10.78.0.2");
    let key = first.home.ask(&["keys", "create"]);
    let endpoint = at(&second, &key);
    within(&far, || wait_for("the key", PATIENCE, || opens(&endpoint).then_some(())));

    lab.cut(&far);
    let output = first.home.run(&["keys", "revoke", id(&key)]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not be told yet"), "{output:?}");
    assert!(within(&far, || opens(&endpoint)), "who is cut off can't know");
    // Long enough for both to give the connection up.
    let connected = |node: &Node<'_>| {
        let peers = node.home.list(&["peers"]);
        peers.as_array().unwrap().iter().any(|peer| peer["reachability"] == "connected")
    };
    wait_for("the end of the connection", PATIENCE, || (!connected(&second) && !connected(&first)).then_some(()));
    lab.mend(&far);
    wait_for("the return", PATIENCE, || connected(&second).then_some(()));
    let back = Instant::now();
    within(&far, || all_within_a_second(std::slice::from_ref(&endpoint), false, back));
}

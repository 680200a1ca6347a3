//! Hosts with a network between them: cut cables, NAT, and distance.

use crate::harness::{
    PATIENCE,
    http::{Endpoint, Streamed, chat_body},
    load::{Load, Plan},
    netns::{Lab, within},
    node::{Home, Node},
    sandbox::Sandbox,
    wait_for,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// A proxy that issues, in a namespace, reachable at `address`.
fn proxy<'a>(sandbox: &'a Sandbox, namespace: &str, address: &str) -> (Node<'a>, Endpoint) {
    let home = Home::within(sandbox, "proxy", namespace);
    home.ask(&["mesh", "create"]);
    let (tcp, quic) = (format!("/ip4/{address}/tcp/0"), format!("/ip4/{address}/udp/0/quic-v1"));
    let args = ["proxy", "--http", "127.0.0.1:0", "--no-mdns", "--listen", &tcp, "--listen", &quic];
    let proxy = home.start(&args);
    let endpoint = proxy.endpoint();
    (proxy, endpoint)
}

/// An agent with a demo engine of its own, in a namespace.
fn agent<'a>(sandbox: &'a Sandbox, proxy: &Node<'_>, name: &str, namespace: &str, listen: &[&str]) -> Node<'a> {
    let token = proxy.home.ask(&["invite", "--role", "agent"]);
    let home = Home::within(sandbox, name, namespace);
    home.join(&token);
    let mut args = vec!["agent", "--no-mdns", "--launch", "demo"];
    for address in listen {
        args.extend(["--listen", address]);
    }
    args.extend(["--", "--tokens-per-second", "100"]);
    home.start(&args)
}

/// One beside the proxy, and one on the host that will vanish.
fn agents<'a>(sandbox: &'a Sandbox, proxy: &Node<'_>, near: &str, far: &str) -> [Node<'a>; 2] {
    let stays = agent(sandbox, proxy, "stays", near, &["/ip4/10.78.0.1/tcp/0"]);
    let listen = ["/ip4/10.78.0.2/tcp/0", "/ip4/10.78.0.2/udp/0/quic-v1"];
    [stays, agent(sandbox, proxy, "vanishes", far, &listen)]
}

/// The newcomer's first command with nothing set, on a host where nothing else runs.
#[test]
fn up_with_all_defaults() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (host, _) = lab.cable("one", "two");
    let node = Home::within(&sandbox, "home", &host).start(&["up"]);
    let said = wait_for("the key", PATIENCE, || Some(node.process.output()).filter(|said| said.contains("key ")));
    assert!(said.contains("http://127.0.0.1:8480/v1"), "{said}");
    assert!(said.contains("demo"), "{said}");
    node.wait_for_replicas("demo", 1);
    let answer = node.home.ask(&["chat", "demo", "Why do dunlins flock?"]);
    assert!(!answer.trim().is_empty());
}

/// A host that vanishes tells nobody: no reset, no goodbye.
#[test]
fn a_vanished_host_fails_nobody_before_the_first_byte() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let (proxy, endpoint) = proxy(&sandbox, &near, "10.78.0.1");
    let [stays, vanishes] = agents(&sandbox, &proxy, &near, &far);
    proxy.wait_for_replicas("demo", 2);
    let load = within(&near, || {
        let plan = Plan { clients: 8, model: "demo".into(), tokens: 20, stream: true };
        let load = Load::start(&endpoint, &plan);
        load.wait_for_more(30);
        load
    });

    lab.cut(&far);
    let cut = Instant::now();
    load.wait_for_more(100);
    let report = load.finish();
    report.assert_none_failed();
    let stays = stays.peer_id();
    // Three seconds of silence make a peer suspect; twice that for a busy machine.
    let noticed = cut + Duration::from_secs(6);
    for outcome in report.outcomes.iter().filter(|outcome| outcome.started > noticed) {
        assert!(outcome.replica.as_ref().is_some_and(|replica| replica.starts_with(&stays)), "{outcome:?}");
    }
    let slowest = report.slowest_first_byte();
    assert!(slowest < Duration::from_secs(20), "{slowest:?} to the first byte");

    lab.mend(&far);
    drop(vanishes);
}

/// A stream from a host that vanishes is silent until the connection is given up, and then goes on from another.
#[test]
fn a_stream_goes_on_when_its_host_vanishes() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let (proxy, endpoint) = proxy(&sandbox, &near, "10.78.0.1");
    let [stays, vanishes] = agents(&sandbox, &proxy, &near, &far);
    proxy.wait_for_exact("demo", 2);
    let gone = vanishes.peer_id();
    let (text, since) = within(&near, || {
        let mut stream = wait_for("a stream from the host that vanishes", PATIENCE, || {
            let stream = endpoint.chat_stream("demo", "cables", 90).unwrap();
            stream.header("x-dunlin-replica").unwrap().starts_with(&gone).then_some(stream)
        });
        let mut first = [0; 2000];
        stream.read_exact(&mut first).unwrap();
        lab.cut(&far);
        let since = Instant::now();
        let mut text = String::from_utf8(first.to_vec()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        (text, since.elapsed())
    });
    assert!(text.contains(&format!(": continued by {}", stays.peer_id())), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let mut streamed = Streamed::default();
    text.lines().filter_map(|line| line.strip_prefix("data: ")).for_each(|data| streamed.take(data));
    let whole = within(&near, || endpoint.chat("demo", "cables", 90)).unwrap().content();
    assert_eq!(streamed.text, whole);
    assert!(since < Duration::from_secs(20), "{since:?}");
    lab.mend(&far);
}

/// A short cut is not the end: nothing is restarted, and the host is back in service by itself.
#[test]
fn a_host_whose_cable_was_pulled_for_a_moment_comes_back() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let (proxy, endpoint) = proxy(&sandbox, &near, "10.78.0.1");
    let _agent = agent(&sandbox, &proxy, "a", &far, &["/ip4/10.78.0.2/tcp/0"]);
    proxy.wait_for_replicas("demo", 1);
    lab.cut(&far);
    std::thread::sleep(Duration::from_secs(15));
    lab.mend(&far);
    let mended = Instant::now();
    wait_for("an answer from the host that was cut off", PATIENCE, || {
        let answer = within(&near, || endpoint.chat("demo", "Hello", 4)).unwrap();
        (answer.status == 200).then_some(())
    });
    assert!(mended.elapsed() < Duration::from_secs(40), "back after {:?}", mended.elapsed());
}

/// The agent can dial out and nobody can dial in; there is no relay.
#[test]
fn an_agent_behind_nat_serves_a_public_proxy() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (inside, outside) = lab.behind_nat();
    let (proxy, endpoint) = proxy(&sandbox, &outside, "203.0.113.9");
    let agent = agent(&sandbox, &proxy, "natted", &inside, &["/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"]);
    proxy.wait_for_replicas("demo", 1);
    let report = within(&outside, || {
        let load = Load::start(&endpoint, &Plan { clients: 4, model: "demo".into(), tokens: 10, stream: true });
        load.wait_for_more(20);
        load.finish()
    });
    report.assert_all_whole();

    // Nobody was told to dial the agent's loopback: that would be the dialler itself.
    let peers = proxy.home.list(&["peers"]).to_string();
    assert!(peers.contains(&agent.peer_id()), "{peers}");
    assert!(!peers.contains("/ip4/127."), "{peers}");
}

/// C18: an address that means another machine to everybody who reads it is told to nobody, and whoever claims it is served
/// at its real one.
#[test]
fn a_loopback_address_that_a_far_member_claims_is_dialled_by_nobody() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let (proxy, endpoint) = proxy(&sandbox, &near, "10.78.0.1");
    let token = proxy.home.ask(&["invite", "--role", "agent"]);
    let home = Home::within(&sandbox, "liar", &far);
    home.join(&token);
    let own_listener = "/ip4/127.0.0.1/tcp/4480";
    let liar = home.start(&[
        "agent",
        "--no-mdns",
        "--launch",
        "demo",
        "--listen",
        "/ip4/10.78.0.2/tcp/0",
        "--external",
        own_listener,
        "--external",
        "/ip4/0.0.0.0/tcp/1",
        "--external",
        "/ip6/fe80::1/tcp/1",
    ]);
    proxy.wait_for_replicas("demo", 1);
    // A third member learns of it from the proxy's records only.
    let other = agent(&sandbox, &proxy, "other", &near, &["/ip4/10.78.0.1/tcp/0"]);
    proxy.wait_for_replicas("demo", 2);
    for node in [&proxy, &other] {
        let peers = node.home.list(&["peers"]);
        let of_liar = peers.as_array().unwrap().iter().find(|peer| peer["peer"] == liar.peer_id());
        let addresses = of_liar.map(|peer| peer["addresses"].to_string()).unwrap_or_default();
        for useless in ["127.0.0.1", "0.0.0.0", "fe80"] {
            assert!(!addresses.contains(useless), "{addresses}");
        }
    }
    let report = within(&near, || {
        let load = Load::start(&endpoint, &Plan { clients: 2, model: "demo".into(), tokens: 4, stream: true });
        load.wait_for_more(10);
        load.finish()
    });
    report.assert_all_whole();
}

/// A warm request to a far agent takes one round trip, as it would on an open connection to the engine itself.
#[test]
fn a_warm_request_over_a_long_link_takes_one_round_trip() {
    const DELAY_MS: u32 = 25;
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let Some((near, far, _link)) = lab.slow_link(&sandbox, DELAY_MS) else { return };
    let (proxy, endpoint) = proxy(&sandbox, &near, "10.78.0.1");
    let engine: SocketAddr = "10.78.0.2:8000".parse().unwrap();
    let home = Home::within(&sandbox, "agent", &far);
    let http = ["demo-engine", "--http", "10.78.0.2:8000"];
    let _engine = sandbox.start("engine", home.command(&http));
    home.join(&proxy.home.ask(&["invite", "--role", "agent"]));
    let args = ["agent", "--no-mdns", "--engine", "http://10.78.0.2:8000", "--listen", "/ip4/10.78.0.2/tcp/0"];
    let _agent = home.start(&args);
    proxy.wait_for_replicas("demo", 1);

    let (direct, through) = within(&near, || {
        let key = endpoint.key.as_deref();
        (quickest_warm(engine, None), quickest_warm(endpoint.address, key))
    });
    let round_trip = Duration::from_millis(2 * u64::from(DELAY_MS));
    assert!(direct >= round_trip, "{direct:?}: the link is not slow");
    let extra = through.saturating_sub(direct);
    assert!(extra < round_trip / 2, "{extra:?} more than {direct:?} on an open connection to the engine");
}

/// The quickest of some requests on one open connection, the first of them left out.
fn quickest_warm(address: SocketAddr, key: Option<&str>) -> Duration {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let body = chat_body("demo", "Hello", 1, false).to_string();
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\n{authorization}");
    let request = format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut once = || {
        let start = Instant::now();
        socket.write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the connection was closed");
            let line = line.trim_end().to_ascii_lowercase();
            assert!(!line.starts_with("http/1.1") || line.contains(" 200"), "{line}");
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        assert!(length > 0, "answers in one piece have a length");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        start.elapsed()
    };
    once();
    (0..12).map(|_| once()).min().unwrap()
}

/// Two members whose addresses nobody knows: the one that invited has moved to other ports since.
#[test]
fn members_on_one_network_find_each_other_without_addresses() {
    let sandbox = Sandbox::new();
    let Some(mut lab) = Lab::new(&sandbox) else { return };
    let (near, far) = lab.cable("near", "far");
    let (mut proxy, _) = proxy(&sandbox, &near, "10.78.0.1");
    let token = proxy.home.ask(&["invite", "--role", "agent"]);
    let home = Home::within(&sandbox, "agent", &far);
    home.join(&token);
    let before = proxy.listen_addresses();
    proxy.restart(&["proxy", "--http", "127.0.0.1:0", "--listen", "/ip4/10.78.0.1/tcp/0"]);
    assert!(!before.contains(&proxy.listen_addresses()[0]), "{before:?}");
    std::fs::remove_file(sandbox.folder().join("agent/known_peers.json")).unwrap();
    let _agent = home.start(&["agent", "--launch", "demo", "--listen", "/ip4/10.78.0.2/tcp/0"]);
    proxy.wait_for_replicas("demo", 1);
    proxy.endpoint();
}

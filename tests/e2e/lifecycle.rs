//! Replicas, proxies and clients that come and go.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::{DemoEngine, Llama, free_address},
    load::{Load, Plan},
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const FAST: [&str; 4] = ["--tokens-per-second", "200", "--slots", "8"];

fn plan(clients: usize) -> Plan {
    Plan { clients, model: "demo".into(), tokens: 20, stream: true }
}

/// A replica that is added gets its share at once; one that drains finishes what it has. Nobody notices.
#[test]
fn replicas_come_and_go_under_load() {
    let sandbox = Sandbox::new();
    let engines = [DemoEngine::start(&sandbox, "engine-a", &FAST), DemoEngine::start(&sandbox, "engine-b", &FAST)];
    let mesh = Mesh::new(&sandbox, &[]);
    let mut first = mesh.agent_of("a", &engines[0]);
    mesh.proxy.wait_for_replicas("demo", 1);
    let load = Load::start(&mesh.endpoint, &plan(8));
    load.wait_for_more(30);

    let second = mesh.agent_of("b", &engines[1]);
    mesh.proxy.wait_for_replicas("demo", 2);
    load.wait_for_more(60);

    first.process.signal(Signal::TERM);
    assert_eq!(first.process.wait(PATIENCE).code(), Some(0), "a drained agent exits with 0");
    let drained = Instant::now();
    mesh.proxy.wait_for_replicas("demo", 1);
    load.wait_for_more(30);

    let report = load.finish();
    report.assert_all_whole();
    let second = second.peer_id();
    let share = report.by_replica().iter().filter(|(id, _)| id.starts_with(&second)).map(|(_, n)| *n).sum::<usize>();
    assert!(share >= 30, "the added replica answered {share} of {}", report.outcomes.len());
    let late = report.outcomes.iter().filter(|outcome| outcome.started > drained);
    assert!(late.into_iter().all(|outcome| outcome.replica.as_ref().is_some_and(|id| id.starts_with(&second))));
}

/// Every agent and every proxy is replaced, one after the other. Clients know both proxies and ask the other where they
/// get no connection.
#[test]
fn a_rolling_restart_of_everything_is_not_noticed() {
    let sandbox = Sandbox::new();
    let engines = [DemoEngine::start(&sandbox, "engine-a", &FAST), DemoEngine::start(&sandbox, "engine-b", &FAST)];
    // A restarted node is found where it was.
    let fixed = || {
        let (http, mesh) = (free_address(), free_address());
        [http.to_string(), format!("/ip4/127.0.0.1/tcp/{}", mesh.port())]
    };
    let ([http_a, mesh_a], [http_b, mesh_b]) = (fixed(), fixed());
    let args_a = ["proxy", "--no-mdns", "--http", &http_a, "--listen", &mesh_a];
    let args_b = ["proxy", "--no-mdns", "--http", &http_b, "--listen", &mesh_b];
    let home = Home::new(&sandbox, "proxy-a");
    home.ask(&["mesh", "create"]);
    let first = home.start(&args_a);
    let token = first.home.ask(&["invite", "--role", "proxy", "--keys"]);
    let invitations = [0, 1].map(|_| first.home.ask(&["invite", "--role", "agent"]));
    let second = Home::new(&sandbox, "proxy-b");
    second.join(&token);
    let second = second.start(&args_b);
    let agents: Vec<_> = ["a", "b"]
        .into_iter()
        .zip(invitations)
        .map(|(name, invitation)| {
            let home = Home::new(&sandbox, name);
            home.join(&invitation);
            home
        })
        .collect();
    let agent_args = engines.each_ref().map(|engine| {
        let url = engine.url();
        ["agent"]
            .iter()
            .chain(&LOOPBACK)
            .map(|&arg| arg.to_owned())
            .chain(["--engine".to_owned(), url])
            .collect::<Vec<_>>()
    });
    let mut agents: Vec<_> = agents
        .into_iter()
        .zip(&agent_args)
        .map(|(home, args)| {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            (home.start(&args), args)
        })
        .collect();
    let mut proxies = [(first, args_a), (second, args_b)];
    let ready = |proxies: &[(Node<'_>, [&str; 6]); 2]| {
        for (proxy, _) in proxies {
            proxy.wait_for_replicas("demo", 2);
        }
    };
    ready(&proxies);
    let endpoints = proxies.each_ref().map(|(proxy, _)| proxy.endpoint());
    let load = Load::start_at(&endpoints, &plan(8));
    load.wait_for_more(40);
    for n in 0..2 {
        let (agent, args) = &mut agents[n];
        agent.restart(args);
        ready(&proxies);
        load.wait_for_more(40);
        let (proxy, args) = &mut proxies[n];
        proxy.restart(args);
        ready(&proxies);
        load.wait_for_more(40);
    }
    load.finish().assert_all_whole();
}

/// A full disk under the log, or a reader of it that went away: what is said is lost, and nothing else.
#[test]
fn a_log_that_cannot_be_written_costs_nothing_else() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "node");
    let mut shell = sandbox.command("sh");
    let up = home.command(&[&["up", "--http", "127.0.0.1:0", "--launch", "demo"], &LOOPBACK[..]].concat());
    shell.args(["-c", "exec \"$@\" 2>/dev/full", "sh"]).arg(up.get_program()).args(up.get_args());
    let mut process = sandbox.start("up", shell);
    let ready = || home.run(&["models"]).stdout.windows(3).any(|seen| seen == b"1/1").then_some(());
    wait_for("the built-in engine", PATIENCE, || {
        process.assert_running();
        ready()
    });
    let engine = || sandbox.processes().into_iter().find(|(_, line)| line.contains("demo-engine")).map(|(id, _)| id);
    let first = engine().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    wait_for("another engine", PATIENCE, || engine().filter(|id| *id != first));
    wait_for("its first answer", PATIENCE, ready);
    process.signal(Signal::TERM);
    assert_eq!(process.wait(PATIENCE).code(), Some(0));
}

/// A proxy that is restarted knows its keys, finds the replicas again, and lets its clients finish first.
#[test]
fn a_proxy_restarts() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "20"]);
    let mut mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);

    let open = mesh.endpoint.chat_stream("demo", "a long story", 40).unwrap();
    let reader = std::thread::spawn(move || open.events().collect_chat());
    // The same addresses: its agents and clients have no other.
    let http = mesh.endpoint.address.to_string();
    let listen: Vec<String> = mesh.proxy.listen_addresses();
    let mut args = vec!["proxy", "--no-mdns", "--http", &http];
    for address in &listen {
        args.extend(["--listen", address]);
    }
    mesh.proxy.restart(&args);
    let streamed = reader.join().unwrap();
    assert!(streamed.is_whole(), "a stream that was open when the proxy was told to end: {streamed:?}");

    let start = Instant::now();
    wait_for("the restarted proxy to answer", PATIENCE, || {
        (mesh.endpoint.chat("demo", "again", 4).ok()?.status == 200).then_some(())
    });
    assert!(start.elapsed() < Duration::from_secs(20), "back after {:?}", start.elapsed());
}

/// An agent that was killed comes back with other ports; an engine that was killed comes back where it was.
#[test]
fn whatever_returns_is_back_in_service_within_seconds() {
    let sandbox = Sandbox::new();
    let mut engine = DemoEngine::start(&sandbox, "engine", &FAST);
    let mesh = Mesh::new(&sandbox, &[]);
    let mut agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let before = agent.listen_addresses();

    agent.process.kill();
    mesh.proxy.wait_for_replicas("demo", 0);
    let url = engine.url();
    agent.restart(&[&["agent", "--engine", &url], &LOOPBACK[..]].concat());
    assert_ne!(agent.listen_addresses(), before, "the test wants a new address");
    let start = Instant::now();
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    assert!(start.elapsed() < Duration::from_secs(15), "agent back after {:?}", start.elapsed());

    let address = engine.address;
    engine.process.kill();
    mesh.proxy.wait_for_replicas("demo", 0);
    let _engine = DemoEngine::start_at(&sandbox, "engine-again", address, &FAST);
    let start = Instant::now();
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    assert!(start.elapsed() < Duration::from_secs(15), "engine back after {:?}", start.elapsed());
}

/// An agent that is killed and back within a moment, over QUIC: nothing tells the proxy of the end, so that its
/// connection to the dead process stands beside the one to the new process.
#[test]
fn an_agent_restarted_in_a_moment_is_heard_again() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &FAST);
    let quic = ["--no-mdns", "--listen", "/ip4/127.0.0.1/udp/0/quic-v1"];
    let mesh = Mesh::listening(&sandbox, &quic);
    let url = engine.url();
    let args = [&["agent", "--engine", &url], &quic[..]].concat();
    let mut agent = mesh.member("a", &["--role", "agent"]).start(&args);
    mesh.proxy.wait_for_replicas("demo", 1);
    let routed_by_load = || {
        let answer = mesh.endpoint.chat("demo", "hello", 4).unwrap();
        answer.header("x-dunlin-route").is_some_and(|route| route.contains("fresh")).then_some(())
    };
    wait_for("a load report", PATIENCE, routed_by_load);

    agent.process.kill();
    agent.restart(&args);
    // Longer than any report of the killed process counts.
    std::thread::sleep(Duration::from_secs(3));
    let start = Instant::now();
    wait_for("a load report of the new process", PATIENCE, routed_by_load);
    assert!(start.elapsed() < Duration::from_secs(10), "heard again after {:?}", start.elapsed());
}

/// A client that goes away does not leave the engine working for nobody.
#[test]
fn a_hang_up_ends_the_engines_work() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &["--tokens-per-second", "10"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    // The agent's own test of the engine makes it work too.
    mesh.proxy.wait_for_exact("demo", 1);
    assert_eq!(agent.process.output().matches("engine serves").count(), 1, "the test is no news to a person");
    let running = || engine.metric("vllm:num_requests_running");

    let mut events = mesh.endpoint.chat_stream("demo", "a long story", 1000).unwrap().events();
    events.next().unwrap().unwrap();
    assert!(running() >= 1.0);
    drop(events);
    let start = Instant::now();
    wait_for("the engine to stop", PATIENCE, || (running() < 1.0).then_some(()));
    // One second is what is promised; the rest is for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(3), "stopped after {:?}", start.elapsed());
}

/// An agent that is killed cannot end its engine; the next one does.
#[test]
fn orphans_of_a_killed_agent_are_reaped() {
    let clients = Clients::ready();
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    let mesh = Mesh::new(&sandbox, &[]);
    let home = mesh.member("a", &["--role", "agent"]).with_environment(llama.environment());
    let arguments = Llama::arguments("tinykjv", &[]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let args = [&["agent", "--launch", "llamacpp"], &LOOPBACK[..], &["--"], &arguments].concat();
    let mut agent = home.start(&args);
    mesh.proxy.wait_for_replicas("tinykjv", 1);
    let engines = || {
        let all = sandbox.processes();
        all.into_iter()
            .filter(|(_, line)| line.contains("llama-server") && !line.contains("dunlin"))
            .collect::<Vec<_>>()
    };
    let orphans = engines();
    assert_eq!(orphans.len(), 1, "{orphans:?}");

    agent.process.kill();
    assert_eq!(engines().len(), 1, "nobody ended it: {:?}", engines());
    agent.restart(&args);
    wait_for("the orphan to be gone and one engine to run", PATIENCE, || {
        let now = engines();
        (now.len() == 1 && now[0].0 != orphans[0].0).then_some(())
    });
    wait_for("an answer", PATIENCE, || (mesh.endpoint.chat("tinykjv", "hello", 4).ok()?.status == 200).then_some(()));

    agent.process.signal(Signal::TERM);
    assert_eq!(agent.process.wait(PATIENCE).code(), Some(0));
    assert_eq!(engines(), [], "an agent that is told to end takes its engine along");
}

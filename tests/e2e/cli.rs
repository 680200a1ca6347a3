//! The command line as scripts use it.

use crate::harness::{
    PATIENCE,
    engine::DemoEngine,
    http::Endpoint,
    node::{Home, Mesh},
    sandbox::Sandbox,
    skipped, wait_for,
};
use std::{process::Stdio, time::Duration};

#[test]
fn every_listing_is_json_on_demand() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let home = &mesh.proxy.home;
    for listing in [&["status"][..], &["models"], &["keys", "list"], &["mesh", "show"]] {
        let value = home.list(listing);
        assert!(value.is_array() || value.is_object(), "{listing:?}: {value}");
    }
    let peers = home.list(&["peers"]);
    let ids: Vec<&str> = peers.as_array().unwrap().iter().filter_map(|peer| peer["peer"].as_str()).collect();
    assert!(ids.contains(&agent.peer_id().as_str()), "{peers}");
    assert_eq!(agent.status()["engines"][0]["runtime"], "demo");
    // The same for people.
    for listing in ["status", "models", "peers"] {
        assert!(!home.ask(&[listing]).is_empty());
    }
}

#[test]
fn a_revoked_key_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let home = &mesh.proxy.home;
    let key = home.ask(&["keys", "create", "--name", "short-lived"]);
    assert_eq!(key.split_whitespace().count(), 1, "the key alone: {key}");
    let endpoint = Endpoint { key: Some(key.clone()), ..mesh.endpoint.clone() };
    assert_eq!(endpoint.get("/v1/models").unwrap().status, 200);

    let listed = home.list(&["keys", "list"]);
    let entry = listed.as_array().unwrap().iter().find(|entry| entry["name"] == "short-lived").unwrap().clone();
    let id = entry["id"].as_str().unwrap();
    let secret = key.rsplit('-').next().unwrap();
    assert!(!listed.to_string().contains(secret), "secrets are shown once");
    home.ask(&["keys", "revoke", id]);
    assert_eq!(endpoint.get("/v1/models").unwrap().status, 401);
    assert_eq!(mesh.endpoint.get("/v1/models").unwrap().status, 200, "the other key still counts");
    assert_eq!(home.run(&["keys", "revoke", "nonsense"]).status.code(), Some(4));

    let log = mesh.proxy.process.output();
    assert!(!log.contains(secret), "keys are not logged");
}

#[test]
fn chat_works_against_any_endpoint() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let home = Home::new(&sandbox, "nobody");
    let url = engine.url();
    let answer = home.ask(&["chat", "--endpoint", &url, "demo", "Why do dunlins flock?"]);
    assert!(!answer.trim().is_empty());
    let missing = home.run(&["chat", "--endpoint", &url, "no-such-model", "Hello"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-model"), "{missing:?}");
}

#[test]
fn what_an_engine_wrote_can_be_read_and_followed_from_another_machine() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.named_agent("workshop", &["--launch", "demo"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    // By model, by name of the machine, by its peer id.
    for target in ["demo", "workshop", &agent.peer_id()] {
        let logs = mesh.proxy.home.ask(&["logs", target]);
        assert!(logs.contains("demo engine"), "{target}: {logs}");
    }
    let follow = sandbox.start("follow", mesh.proxy.home.command(&["logs", "demo", "-f"]));
    wait_for("followed output", PATIENCE, || follow.output().contains("demo engine").then_some(()));
    assert_eq!(mesh.proxy.home.run(&["logs", "no-such-model"]).status.code(), Some(4));
}

#[test]
fn an_agent_shows_its_engines_to_prometheus_where_it_is_told_to() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--metrics-http", "127.0.0.1:0", "--launch", "demo"]);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 4).unwrap().content();
    let said = agent.process.output();
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
    let page = Endpoint::open(address).get("/metrics").unwrap().text();
    for line in [
        r#"dunlin_agent_engine_up{engine="0"} 1"#,
        r#"dunlin_agent_requests_total{engine="0",outcome="answered"} 1"#,
        r#"dunlin_agent_restarts_total{engine="0"} 0"#,
    ] {
        assert!(page.lines().any(|known| known == line), "{line} in {page}");
    }
}

/// Runs a command that is to fail, and gives what it said.
#[track_caller]
fn failed(home: &Home<'_>, args: &[&str]) -> String {
    let output = home.run(args);
    assert!(!output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All replicas are gone, and the proxy holds the question for one to come back: a person is told what is waited for.
#[test]
fn chat_says_what_it_waits_for() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let mut agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    mesh.endpoint.chat("demo", "hello", 1).unwrap().content();
    agent.process.kill();
    let mut command = mesh.proxy.home.command(&["chat", "demo", "hello"]);
    let chat = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    agent.restart(&["agent", "--no-mdns", "--listen", "/ip4/127.0.0.1/tcp/0", "--engine", &engine.url()]);
    let output = chat.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("waiting for a replica of demo: none is ready now"), "{said}");
}

#[test]
fn keys_are_asked_for_where_the_endpoint_is() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("a", &["--launch", "demo"]);
    for args in [&["keys"][..], &["keys", "list"], &["keys", "create"], &["keys", "revoke", "abc"]] {
        let said = failed(&agent.home, args);
        assert!(said.contains("it is no proxy") && said.contains("on the machine of a proxy"), "{args:?}: {said}");
    }
}

#[test]
fn a_proxy_without_keys_is_told_how_to_get_one_and_a_second_revocation_is_no_first_one() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let home = &mesh.proxy.home;
    let said = |args: &[&str]| {
        let output = home.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    assert!(!said(&["keys"]).contains("keys create") && !said(&["doctor"]).contains("keys create"));
    let keys = home.list(&["keys"]);
    let id = keys[0]["id"].as_str().unwrap();
    assert!(!said(&["keys", "revoke", id]).contains("already"));
    assert!(said(&["keys", "revoke", id]).contains("revoked already"));
    assert!(said(&["keys"]).contains("dunlin keys create"));
    assert!(said(&["doctor"]).contains("dunlin keys create"));
}

#[test]
fn what_the_system_refuses_is_told_with_what_to_do() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "home");
    home.ask(&["mesh", "create"]);
    let path = |name: &str| sandbox.folder().join(name).to_string_lossy().into_owned();
    let (key, missing, file) = (path("mesh.key"), path("missing"), path("file"));
    home.ask(&["mesh", "key", "export", "--file", &key]);
    std::fs::write(&file, "").unwrap();
    let [of_file, within] = ["file", "file/home"].map(|name| Home::new(&sandbox, name));
    for (home, args, wanted) in [
        (&home, &["mesh", "key", "export", "--file", &key][..], "name another file"),
        (&home, &["mesh", "key", "import", &missing], "`dunlin mesh key export` wrote"),
        (&home, &["up", "--config", &missing], "can't read configuration file"),
        (&of_file, &["mesh", "create"], "choose a directory of your own with --home"),
        (&within, &["mesh", "create"], "choose a directory of your own with --home"),
        (&of_file, &["status"], "name its directory with --home"),
    ] {
        let said = failed(home, args);
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}

#[test]
fn a_wrong_value_is_refused_with_the_name_of_its_file() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "home");
    let file = sandbox.folder().join("dunlin.toml");
    let path = file.to_string_lossy().into_owned();
    for (text, key) in [
        ("[[engines]]\nlaunch = 'vlm'\n", "engines[0]"),
        ("[[engines]]\nurl = 'http://127.0.0.1:1'\n[[engines]]\nurl = 'http://a'\nlaunch = 'vllm'\n", "engines[1]"),
        ("worker_threads = 1000\n", "worker_threads"),
        ("discover = [0]\n", "discover"),
        ("[endpoint]\nfirst_byte_timeout_seconds = 0.0\n", "endpoint.first_byte_timeout_seconds"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = failed(&home, &["up", "--config", &path]);
        assert!(said.contains(&path) && said.contains(key), "{text}: {said}");
    }
}

#[test]
fn looking_makes_nothing() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "nobody");
    assert_eq!(home.list(&["keys", "list"]), serde_json::json!([]));
    assert_eq!(home.list(&["keys"]), serde_json::json!([]));
    assert_eq!(home.run(&["keys", "revoke", "abc"]).status.code(), Some(4));
    assert!(!sandbox.folder().join("nobody").exists());
}

/// Runs a command whose standard output takes nothing.
#[cfg(target_os = "linux")]
fn run_into(home: &Home<'_>, args: &[&str], into: impl Into<std::process::Stdio>) -> (Option<i32>, String) {
    let output = home.command(args).stdout(into).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Standard output on a disk without room.
#[cfg(target_os = "linux")]
fn full() -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// A pipe that nobody reads any more.
#[cfg(target_os = "linux")]
fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

#[cfg(target_os = "linux")]
#[test]
fn what_could_not_be_written_is_no_success_and_a_reader_that_goes_away_is() {
    let sandbox = Sandbox::new();
    let home = Home::new(&sandbox, "home");
    home.ask(&["mesh", "create"]);
    for args in [&["mesh", "show"][..], &["keys"], &["mesh", "key", "export"], &["completions", "bash"]] {
        let (code, said) = run_into(&home, args, full());
        assert!(code == Some(1) && said.contains("could not be written"), "{args:?}: {code:?} {said}");
        let (code, said) = run_into(&home, args, unread());
        assert_eq!(code, Some(0), "{args:?}: {said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_key_that_nobody_saw_opens_nothing() {
    let sandbox = Sandbox::new();
    let mesh = Mesh::new(&sandbox, &[]);
    let alone = Home::new(&sandbox, "alone");
    for home in [&mesh.proxy.home, &alone] {
        let create = ["keys", "create", "--name", "lost"];
        for (code, said) in [run_into(home, &create, full()), run_into(home, &create, unread())] {
            assert!(code == Some(1) && said.contains("revoked again"), "{code:?} {said}");
        }
        let keys = home.list(&["keys"]);
        let lost: Vec<_> = keys.as_array().unwrap().iter().filter(|key| key["name"] == "lost").collect();
        assert!(lost.len() == 2 && lost.iter().all(|key| key["revoked"].is_u64()), "{keys}");
    }
}

#[test]
fn a_taken_port_is_answered_with_what_to_do() {
    let sandbox = Sandbox::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
    let home = Home::new(&sandbox, "home");
    let output = home.run(&["up", "--no-mdns", "--http", "127.0.0.1:0", "--launch", "demo", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&address) && said.contains("choose another with --listen"), "{said}");
}

#[test]
fn a_configuration_file_with_a_typing_error_is_refused_with_its_place() {
    let sandbox = Sandbox::new();
    let file = sandbox.folder().join("dunlin.toml");
    std::fs::write(&file, "[endpoint]\nhttp = '127.0.0.1:0'\nhtpt = 1\n").unwrap();
    let home = Home::new(&sandbox, "home");
    let output = home.run(&["up", "--config", &file.to_string_lossy()]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("htpt") && error.contains("line 3"), "{error}");
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_working_node() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    let output = mesh.proxy.home.run(&["doctor"]);
    assert!(output.status.success(), "{output:?}");
    let nobody = Home::new(&sandbox, "nobody").run(&["doctor"]);
    let said = String::from_utf8_lossy(&nobody.stdout).into_owned();
    assert!(said.contains("dunlin up"), "it says what to do: {said}");
}

/// What bash offers for `line`, by the script that `dunlin completions bash` prints.
#[track_caller]
fn completed(home: &Home<'_>, line: &str) -> Vec<String> {
    const PRESS_TAB: &str = r#"
        source <("$DUNLIN" completions bash)
        read -r -a COMP_WORDS <<<"$LINE"
        [[ $LINE != *' ' ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9
        function=$(complete -p dunlin | sed 's/.*-F \([^ ]*\).*/\1/')
        $function dunlin "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut shell = home.sandbox.command("bash");
    shell.args(["-c", PRESS_TAB]).env("LINE", line).env("DUNLIN", env!("CARGO_BIN_EXE_dunlin"));
    shell.env("DUNLIN_HOME", home.folder());
    let output = shell.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|word| word.trim_end().to_owned()).collect()
}

#[test]
fn a_shell_completes_commands_flags_and_the_names_that_the_node_knows() {
    let sandbox = Sandbox::new();
    if sandbox.command("bash").args(["-c", "[ ${BASH_VERSINFO[0]} -ge 4 ]"]).status().is_ok_and(|bash| !bash.success())
    {
        return skipped("bash is older than 4");
    }
    let engine = DemoEngine::start(&sandbox, "engine", &["--model", "qwen/qwen-3"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("qwen/qwen-3", 1);
    let home = &mesh.proxy.home;
    let offers = |line: &str, wanted: &str| {
        let offered = completed(home, line);
        assert!(offered.iter().any(|word| word == wanted), "{line}: {offered:?}");
    };
    offers("dunlin ch", "chat");
    offers("dunlin up --htt", "--http");
    offers("dunlin invite --role re", "relay");
    offers("dunlin chat ", "qwen/qwen-3");
    offers("dunlin logs qw", "qwen/qwen-3");
    offers("dunlin revoke ", &agent.peer_id());
    let keys = home.list(&["keys"]);
    offers("dunlin keys revoke ", keys[0]["id"].as_str().unwrap());
    // Without a node there are no names, and no complaints.
    let nobody = Home::new(&sandbox, "nobody");
    assert!(!completed(&nobody, "dunlin chat ").contains(&"qwen/qwen-3".to_owned()));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(home.ask(&["completions", shell]).contains("DUNLIN_COMPLETE"), "{shell}");
    }
}

#[test]
fn looking_at_the_counts_does_not_change_them() {
    let sandbox = Sandbox::new();
    let engine = DemoEngine::start(&sandbox, "engine", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent_of("a", &engine);
    mesh.proxy.wait_for_replicas("demo", 1);
    assert!(mesh.endpoint.chat_stream("demo", "hello", 4).unwrap().events().collect_chat().is_whole());
    let page = || {
        let mut command = sandbox.command("curl");
        command.args(["--silent", "--unix-socket"]).arg(mesh.proxy.home.folder().join("control.sock"));
        String::from_utf8(command.arg("http://dunlin/metrics").output().unwrap().stdout).unwrap()
    };
    if sandbox.command("curl").arg("--version").output().is_err() {
        return skipped("there is no curl");
    }
    let first = page();
    assert!(first.contains(r#"dunlin_proxy_requests_total{model="demo",status="200",route="#), "{first}");
    let requests = |page: &str| page.lines().filter(|line| line.starts_with("dunlin_proxy_requests_total")).count();
    assert_eq!(requests(&first), requests(&page()));
    // And what `dunlin peers` tells programs of the load.
    wait_for("a report of the agent", PATIENCE, || {
        let peers = mesh.proxy.home.list(&["peers"]);
        let replicas = peers.as_array().unwrap().iter().flat_map(|peer| peer["replicas"].as_array().unwrap().clone());
        replicas.into_iter().any(|replica| replica["measured"]["ttft_us"].is_u64()).then_some(())
    });
}

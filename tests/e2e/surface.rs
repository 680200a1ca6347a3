//! The endpoint as clients of every kind see it: speech by a real Whisper, a large upload, other SDKs and tools, HTTPS.

use crate::harness::{
    PATIENCE,
    clients::Clients,
    engine::{DemoEngine, Llama, free_address},
    http::Endpoint,
    node::Mesh,
    odd::OddEngine,
    process::Process,
    replay::Replay,
    sandbox::Sandbox,
    skipped, wait_for,
};
use std::{process::Output, time::Duration};

#[track_caller]
fn assert_all_ok(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("all ok"), "{}\n{said}\n{error}", output.status);
}

/// Memory that a process has resident, KiB: now and at most so far.
fn memory(process: &Process) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse().unwrap()
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// A form as `curl -F` sends it, the file first.
fn form(audio: &[u8], fields: &[(&str, &str)]) -> (String, Vec<u8>) {
    let file = "--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n";
    let mut body = [file.as_bytes(), audio].concat();
    for (name, value) in fields {
        body.extend(format!("\r\n--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}").bytes());
    }
    body.extend(b"\r\n--edge--\r\n");
    ("multipart/form-data; boundary=edge".to_owned(), body)
}

/// C25: an engine that ignores `model`, lists no models, and answers what is no audio with a bare-text 500.
#[test]
fn c25_speech_is_recognised_by_a_real_whisper_that_knows_no_models() {
    if !std::path::Path::new("/usr/bin/apt-get").exists() {
        return skipped("the recordings come in a package of Debian's");
    }
    let clients = Clients::with(&["speech"]);
    let sandbox = Sandbox::new();
    let address = free_address();
    let mut whisper = sandbox.start("whisper", clients.whisper(&sandbox, address.port()));
    // It reads its model at the first start from a cold disk.
    wait_for("the Whisper server to load its model", 3 * PATIENCE, || {
        whisper.assert_running();
        Endpoint::open(address).get("/health").ok().filter(|answer| answer.status == 200)
    });
    let mesh = Mesh::new(&sandbox, &["--alias", "whisper-1=whisper-base"]);
    // It lists no models, and takes any name: its user says what it is.
    let url = format!("http://{address}");
    let _agent = mesh.agent("speech", &["--engine", &url, "--runtime", "whisper", "--model", "whisper-base"]);
    mesh.proxy.wait_for_replicas("whisper-base", 1);
    let recording = clients.recording();
    assert_all_ok(&clients.python_with(&sandbox, &mesh.endpoint, "speech.py", &[("RECORDING", &recording)]));
    assert_all_ok(&clients.node_with(&sandbox, &mesh.endpoint, "speech.cjs", &[("RECORDING", &recording)]));

    let recording = recording.to_string_lossy();
    assert_all_ok(&clients.shell_with(&sandbox, &mesh.endpoint, "speech.sh", &[("RECORDING", &recording)]));
}

/// As much audio as nobody wants in memory, in a proxy, an agent, or both.
#[cfg(target_os = "linux")]
#[test]
fn a_hundred_megabytes_of_audio_fill_no_memory() {
    const AUDIO: usize = 100 << 20;
    let sandbox = Sandbox::new();
    let engine = OddEngine::start(r#"{"data":[{"id":"ears","owned_by":"odd"}]}"#, "");
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("ears", &["--engine", &engine.url(), "--runtime", "openai"]);
    mesh.proxy.wait_for_replicas("ears", 1);
    let send = |size: usize| {
        let (kind, body) = form(&vec![0x5a; size], &[("model", "ears")]);
        let sent = mesh.endpoint.send("POST", "/v1/audio/transcriptions", &[("Content-Type", &kind)], &body);
        let answer = sent.unwrap().whole().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    // What is needed once, such as threads that read the disk, is no part of it.
    send(3 << 20);
    let before = [memory(&mesh.proxy.process).0, memory(&agent.process).0];
    send(AUDIO);
    for (name, process, before) in [("proxy", &mesh.proxy.process, before[0]), ("agent", &agent.process, before[1])] {
        let most = memory(process).1;
        let more = most.saturating_sub(before);
        println!("{name}: {before} KiB before, {most} KiB at most, {more} KiB more");
        assert!(more < 20 << 10, "{name} took {more} KiB more");
    }
    let left = std::fs::read_dir(mesh.proxy.home.folder().join("uploads")).unwrap().count();
    assert_eq!(left, 0, "the file has no name");
}

#[test]
fn anthropics_sdk_langchain_the_ai_sdk_and_llm_work_unchanged() {
    let clients = Clients::with(&["more"]);
    let sandbox = Sandbox::new();
    let Some(llama) = Llama::available(&clients) else { return };
    let (_chat, chat) = llama.start(&sandbox, "tinykjv", &["--jinja"]);
    let (_embed, embed) = llama.start(&sandbox, "tinykjv-embed", &["--embedding", "--pooling", "mean"]);
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("llama", &["--engine", &chat, "--engine", &embed]);
    mesh.proxy.wait_for_replicas("tinykjv", 1);
    mesh.proxy.wait_for_replicas("tinykjv-embed", 1);
    assert_all_ok(&clients.more(&sandbox, &mesh.endpoint, "more.py"));
    assert_all_ok(&clients.more(&sandbox, &mesh.endpoint, "more.mjs"));
    assert_all_ok(&clients.shell(&sandbox, &mesh.endpoint, "curl.sh"));

    assert_all_ok(&clients.llm(&sandbox, &mesh.endpoint, "tinykjv"));
    // It streams, and does not ask for the usage, which is counted all the same.
    let page = mesh.endpoint.get("/metrics").unwrap().text();
    let counted = |kind: &str| {
        let series = format!(r#"dunlin_proxy_tokens_total{{model="tinykjv",kind="{kind}"}}"#);
        let line = page.lines().find(|line| line.starts_with(&series)).unwrap_or_else(|| panic!("{page}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(counted("completion") >= 8.0 && counted("prompt") > 8.0, "{page}");
}

#[test]
fn https_is_served_to_curl_and_a_new_certificate_is_taken_in() {
    let sandbox = Sandbox::new();
    let (certificate, key) = (sandbox.folder().join("tls.crt"), sandbox.folder().join("tls.key"));
    let make = |name: &str| {
        let mut openssl = sandbox.command("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ]);
        openssl.args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]);
        openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        let output = openssl.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    make("first");
    let home = crate::harness::node::Home::new(&sandbox, "proxy");
    home.ask(&["mesh", "create"]);
    let files = ["--tls-certificate", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let address = free_address().to_string();
    let arguments = [&["proxy", "--http", &address], &crate::harness::node::LOOPBACK[..], &files].concat();
    let node = home.start(&arguments);
    let url = node.status()["endpoint"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("https://{address}"));
    let curl = |more: &[&str]| {
        let mut curl = sandbox.command("curl");
        curl.args(["-sS", "--max-time", "10", "--cacert"]).arg(&certificate).args(more);
        curl.arg(format!("{url}/health")).output().unwrap()
    };
    for (version, said) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let output = curl(&[version, "-w", " %{http_version}"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with(&format!(" {said}")) && text.contains("ok"), "{output:?}");
    }
    make("second");
    // The old one is not trusted any more: curl succeeds once the proxy shows the new one.
    wait_for("the new certificate to be served", PATIENCE, || curl(&[]).status.success().then_some(()));
    // A broken one is not taken.
    let good = std::fs::read(&certificate).unwrap();
    std::fs::write(&certificate, "no certificate").unwrap();
    wait_for("the broken certificate to be told of", PATIENCE, || {
        node.process.output().contains("new certificate is not taken").then_some(())
    });
    std::fs::write(&certificate, good).unwrap();
    assert!(curl(&[]).status.success());
}

#[test]
fn what_vllm_and_sglang_said_reaches_the_sdks() {
    let clients = Clients::with(&["more"]);
    for engine in ["vllm", "sglang"] {
        let sandbox = Sandbox::new();
        let replay = Replay::start(engine);
        let mesh = Mesh::new(&sandbox, &[]);
        let _agent = mesh.agent(engine, &["--engine", &replay.url(), "--runtime", engine]);
        mesh.proxy.wait_for_replicas("smollm2-135m", 1);
        let environment = [("ENGINE", engine)];
        assert_all_ok(&clients.more_with(&sandbox, &mesh.endpoint, "replayed.py", &environment));
        assert_all_ok(&clients.node_with(&sandbox, &mesh.endpoint, "replayed.cjs", &[("ENGINE", engine.as_ref())]));
        assert_all_ok(&clients.more(&sandbox, &mesh.endpoint, "replayed.mjs"));
        assert_all_ok(&clients.llm(&sandbox, &mesh.endpoint, "smollm2-135m"));
    }
}

#[test]
fn what_a_whisper_in_vllm_said_reaches_the_sdk() {
    let clients = Clients::with(&["more"]);
    let sandbox = Sandbox::new();
    let replay = Replay::start("vllm_whisper");
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("whisper", &["--engine", &replay.url(), "--runtime", "vllm"]);
    mesh.proxy.wait_for_replicas("whisper-base", 1);
    assert_all_ok(&clients.python(&sandbox, &mesh.endpoint, "whisper.py"));
}

/// Endpoints of which no real engine runs here.
#[test]
fn speech_images_and_ranking_reach_a_played_engine_and_come_back() {
    let clients = Clients::with(&["more"]);
    let sandbox = Sandbox::new();
    let engine = Replay::start("played");
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("artist", &["--engine", &engine.url(), "--runtime", "openai"]);
    mesh.proxy.wait_for_replicas("artist", 1);
    assert_all_ok(&clients.python(&sandbox, &mesh.endpoint, "played.py"));
    assert_all_ok(&clients.node(&sandbox, &mesh.endpoint, "played.cjs"));
    assert_all_ok(&clients.more(&sandbox, &mesh.endpoint, "played.mjs"));
    assert_all_ok(&clients.shell(&sandbox, &mesh.endpoint, "played.sh"));
}

/// C10: a long prefill has no bytes to send, and balancers in front cut what is silent. The wait is what is tried here: it
/// takes longer than the fifteen seconds after which the first comment is sent.
#[test]
fn c10_comments_keep_a_stream_alive_and_break_no_clients_parser() {
    let clients = Clients::with(&["more"]);
    let sandbox = Sandbox::new();
    let replay = Replay::late("vllm", Duration::from_secs(16));
    let mesh = Mesh::new(&sandbox, &[]);
    let _agent = mesh.agent("slow", &["--engine", &replay.url(), "--runtime", "vllm", "--slots", "16"]);
    mesh.proxy.wait_for_replicas("smollm2-135m", 1);
    let endpoint = &mesh.endpoint;
    std::thread::scope(|scope| {
        let all: [std::thread::ScopedJoinHandle<'_, Output>; 4] = [
            scope.spawn(|| clients.more_with(&sandbox, endpoint, "late.py", &[])),
            scope.spawn(|| clients.node(&sandbox, endpoint, "late.cjs")),
            scope.spawn(|| clients.more(&sandbox, endpoint, "late.mjs")),
            scope.spawn(|| clients.llm_once(&sandbox, endpoint, "smollm2-135m")),
        ];
        // What all of them have read, as it was sent.
        let stream = endpoint.chat_stream("smollm2-135m", "Hello", 8).unwrap();
        let text = stream.whole().unwrap().text();
        assert!(
            text.starts_with(':') && text.contains("\n\ndata: {") && text.trim_end().ends_with("data: [DONE]"),
            "{text}"
        );
        for output in all {
            assert_all_ok(&output.join().unwrap());
        }
    });
}

/// The table of `docs/api.md` says which client asks which endpoint in which of the scripts that these tests run; each
/// script says in its head what it covers.
#[test]
fn the_documented_table_of_clients_is_what_the_scripts_cover() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/clients");
    let mut covered = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        let script = file.file_name().into_string().unwrap();
        for line in std::fs::read_to_string(file.path()).unwrap().lines() {
            let line = line.trim_start_matches(['/', '#', ' ']).trim_end_matches("\"\"\"");
            let Some((what, endpoints)) = line.split_once(": ").filter(|(what, _)| what.starts_with("covers")) else {
                continue;
            };
            let client = what.strip_prefix("covers with ").unwrap_or_else(|| match script.rsplit('.').next() {
                Some("py") => "OpenAI, Python",
                Some("cjs") => "OpenAI, JavaScript",
                Some("mjs") => "AI SDK",
                _ => "curl",
            });
            covered.extend(endpoints.split(' ').map(|path| (path.to_owned(), client.to_owned(), script.clone())));
        }
    }
    let documented = std::fs::read_to_string(folder.join("../../../docs/api.md")).unwrap();
    let rows: Vec<Vec<&str>> = documented
        .lines()
        .skip_while(|line| !line.starts_with("| asked through"))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut told = std::collections::BTreeSet::new();
    for row in &rows[2..] {
        for (client, cell) in rows[0].iter().zip(row).skip(1) {
            for script in cell.split(", ").filter(|script| *script != "-") {
                let path = row[0].trim_matches('`');
                told.insert((path.to_owned(), (*client).to_owned(), script.trim_matches('`').to_owned()));
            }
        }
    }
    assert_eq!(told, covered);
}

/// Requests for an adapter go where it is, else where it can be loaded, and nowhere else.
#[test]
fn adapters_are_loaded_where_they_may_be_and_asked_where_they_are() {
    let sandbox = Sandbox::new();
    let (able, plain) = (DemoEngine::start(&sandbox, "able", &[]), DemoEngine::start(&sandbox, "plain", &[]));
    let mesh = Mesh::new(&sandbox, &[]);
    let allowed = ["--adapter", "sql=/adapters/sql", "--adapter", "law=/adapters/law"];
    let with = mesh.agent("able", &[&["--engine", &able.url()], &allowed[..]].concat());
    let _without = mesh.agent("plain", &["--engine", &plain.url()]);
    mesh.proxy.wait_for_replicas("demo", 2);
    mesh.proxy.wait_for_replicas("sql", 1);
    let listed = mesh.endpoint.get("/v1/models/sql").unwrap().json();
    assert_eq!(listed["parent"], "demo");
    let list = || mesh.proxy.home.list(&["adapters", "list"]);
    let loaded = |name: &str| {
        let list = list();
        let of_name = list.as_array().unwrap().iter().find(|entry| entry["adapter"] == name).cloned();
        of_name.unwrap_or_else(|| panic!("{name}: {list}"))["loaded"].as_bool().unwrap()
    };
    assert!(!loaded("sql") && !loaded("law"));

    // The first request has it loaded.
    for _ in 0..6 {
        let answer = mesh.endpoint.chat("sql", "hello", 4).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-dunlin-replica").unwrap(), format!("{}/0", with.peer_id()));
    }
    assert!(loaded("sql") && !loaded("law"));
    assert!(able.direct().get("/v1/models").unwrap().text().contains("/adapters/sql"));
    assert!(!plain.direct().get("/v1/models").unwrap().text().contains("sql"));

    // The engine drops it behind the mesh's back: it is loaded again, or the client is told in words.
    let gone = able.direct().post("/v1/unload_lora_adapter", &serde_json::json!({"lora_name": "sql"})).unwrap();
    assert_eq!(gone.status, 200);
    let answer = mesh.endpoint.chat("sql", "hello", 4).unwrap();
    assert!(answer.status == 200 || answer.text().contains("does not serve it now"), "{}", answer.text());
    wait_for("the adapter to be loaded again", PATIENCE, || {
        (mesh.endpoint.chat("sql", "hello", 4).unwrap().status == 200).then_some(())
    });

    // By hand.
    assert!(mesh.proxy.home.ask(&["adapters", "load", "law"]).contains("loaded law"));
    assert!(loaded("law"));
    assert!(mesh.proxy.home.ask(&["adapters", "unload", "law"]).contains("unloaded law"));
    wait_for("the adapter to be gone", PATIENCE, || (!loaded("law")).then_some(()));
    let refused = mesh.proxy.home.run(&["adapters", "load", "nobody"]);
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");

    // A second replica that has it takes over when the first goes, and never one that has it not.
    let other = DemoEngine::start(&sandbox, "other", &["--adapter", "sql"]);
    let second = mesh.agent("other", &["--engine", &other.url()]);
    mesh.proxy.wait_for_replicas("sql", 2);
    drop(with);
    let answer = wait_for("the other replica to answer", PATIENCE, || {
        mesh.endpoint.chat("sql", "hello", 4).ok().filter(|answer| answer.status == 200)
    });
    assert_eq!(answer.header("x-dunlin-replica").unwrap(), format!("{}/0", second.peer_id()));
}

/// C13: vLLM's metrics name an adapter only while it has requests, and others' routers did not list those that are loaded.
#[test]
fn c13_an_idle_adapter_stays_listed_and_its_requests_go_where_it_is() {
    let sandbox = Sandbox::new();
    let with = DemoEngine::start(&sandbox, "with", &["--adapter", "sql"]);
    let without = DemoEngine::start(&sandbox, "without", &[]);
    let mesh = Mesh::new(&sandbox, &[]);
    let agent = mesh.agent("with", &["--engine", &with.url()]);
    let _other = mesh.agent("without", &["--engine", &without.url()]);
    mesh.proxy.wait_for_replicas("demo", 2);
    mesh.proxy.wait_for_replicas("sql", 1);
    let named = || with.direct().get("/metrics").unwrap().text().contains("lora_adapters=\"sql");
    let listed = || {
        let list = mesh.endpoint.get("/v1/models").unwrap().json();
        let of_name = list["data"].as_array().unwrap().iter().find(|model| model["id"] == "sql").cloned();
        of_name.is_some_and(|model| model["parent"] == "demo")
    };
    for _ in 0..3 {
        assert!(!named(), "the scene: nothing is asked of it now");
        assert!(listed());
        for _ in 0..4 {
            let answer = mesh.endpoint.chat("sql", "hello", 4).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-dunlin-replica").unwrap(), format!("{}/0", agent.peer_id()));
        }
        // Some readings of the engine's metrics later.
        std::thread::sleep(Duration::from_millis(1200));
    }
    assert!(!without.direct().get("/v1/models").unwrap().text().contains("sql"), "the scene: it has none");
}

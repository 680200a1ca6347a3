//! `dunlin fetch` against a server that does what hubs, buckets and networks do.

use crate::harness::{
    hub::{Hub, Reply, Request, content, sha256},
    process::Process,
    sandbox::Sandbox,
    wait_for,
};
use serde_json::json;
use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const MIB: usize = 1 << 20;
/// A whole fetch.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of the hub in these tests.
const TOKEN: &str = "hf_VerySecretToken";

struct Fetcher<'a> {
    sandbox: &'a Sandbox,
    into: PathBuf,
}

impl<'a> Fetcher<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        Self { sandbox, into: sandbox.folder().join("weights") }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command(env!("CARGO_BIN_EXE_dunlin"));
        command.arg("fetch").args(args).arg("--to").arg(&self.into);
        for name in ["HF_TOKEN", "HF_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs to a good end.
    #[track_caller]
    fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs to a bad end; returns what it says.
    #[track_caller]
    fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn start(&self, name: &str, args: &[&str]) -> Process {
        self.sandbox.start(name, self.command(args))
    }

    #[track_caller]
    fn assert_has(&self, name: &str, wanted: &[u8]) {
        let found = std::fs::read(self.into.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(found == wanted, "{name} differs: {} of {} bytes", found.len(), wanted.len());
    }

    fn has(&self, name: &str) -> bool {
        self.into.join(name).exists()
    }
}

/// A file at `/file`, always the same.
fn one_file(body: &Arc<Vec<u8>>) -> Hub {
    let body = Arc::clone(body);
    Hub::start(move |request| Reply::file(request, &body, "\"v1\""))
}

/// A repository as Hugging Face has it: small files as git has them, large ones at another host.
fn huggingface(large: &Arc<Vec<u8>>, elsewhere: String) -> Hub {
    let large_size = large.len();
    let hash = sha256(large);
    Hub::start(move |request| {
        if request.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
            return Reply::status(401);
        }
        match request.target.as_str() {
            "/api/models/org/model/revision/main?blobs=true" => Reply::text(
                &json!({"sha": "c0ffee", "siblings": [
                    {"rfilename": "config.json", "size": 6, "blobId": "ce013625030ba8dba906f756967f9e9ca394464a"},
                    {"rfilename": "README.md", "size": 6, "blobId": "ce013625030ba8dba906f756967f9e9ca394464a"},
                    {"rfilename": "sub/model 1.safetensors", "size": large_size, "blobId": "x",
                     "lfs": {"sha256": hash, "size": large_size, "pointerSize": 1}},
                    {"rfilename": "model.onnx", "size": 1_000_000_000_000_u64},
                ]})
                .to_string(),
            ),
            "/org/model/resolve/c0ffee/config.json" | "/org/model/resolve/c0ffee/README.md" => {
                Reply::file(request, &Arc::new(b"hello\n".to_vec()), "\"small\"")
            }
            "/org/model/resolve/c0ffee/sub/model%201.safetensors" => Reply::redirect(&elsewhere),
            _ => Reply::status(404),
        }
    })
}

#[test]
fn a_repository_of_a_hub_comes_whole_and_its_token_goes_nowhere_else() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let large = content(1, 9 * MIB + 5);
    let store = one_file(&large);
    let hub = huggingface(&large, format!("{}/signed?sig=abc", store.url()));
    let url = hub.url();
    let args = ["hf://org/model", "--hf-endpoint", &url, "--ignore", "*.onnx,README.md"];
    let denied = fetcher.fail(&args);
    assert!(denied.contains("401") && denied.contains("HF_TOKEN"), "{denied}");

    let output = fetcher.command(&args).env("HF_TOKEN", TOKEN).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.starts_with("2 files, "), "{said}");
    fetcher.assert_has("config.json", b"hello\n");
    fetcher.assert_has("sub/model 1.safetensors", &large);
    assert!(!fetcher.has("README.md") && !fetcher.has("model.onnx"));
    assert!(!said.contains(TOKEN) && !said.contains("sig="), "{said}");
    let at_store = store.requests();
    assert!(!at_store.is_empty() && at_store.iter().all(|request| request.header("authorization").is_none()));

    // What is there is not fetched again.
    let (served, asked) = (store.served() + hub.served(), at_store.len());
    let again = fetcher.command(&args).env("HF_TOKEN", TOKEN).output().unwrap();
    assert!(again.status.success());
    assert!(store.served() + hub.served() < served + 4096 && store.requests().len() == asked);
}

/// The heart of it: killed again and again, at any moment, it goes on where it was, and what comes out is right.
#[test]
fn killed_at_random_it_goes_on_and_comes_to_the_right_end() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let size = 96 * MIB;
    let body = content(2, size);
    let hub = one_file(&body);
    hub.set_pace(6 * MIB as u64);
    let source = format!("{}/file#sha256={}", hub.url(), sha256(&body));
    let mut kills = 0;
    let mut chance = 7_u64;
    let ended = loop {
        let mut process = fetcher.start(&format!("fetch-{kills}"), &[&source]);
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // At any moment, told by what has gone out rather than by a clock: this machine may be busy.
        let enough = hub.served() + (chance >> 33) % (45 * MIB as u64);
        let ended = wait_for("a moment to kill it", PATIENCE, || {
            let status = process.try_exit();
            (status.is_some() || hub.served() > enough).then_some(status)
        });
        if let Some(status) = ended {
            break status;
        }
        process.kill();
        assert!(!fetcher.has("file"), "a name before it is whole");
        kills += 1;
        assert!(kills < 60, "it gets nowhere: {} bytes were served", hub.served());
    };
    assert!(ended.success());
    fetcher.assert_has("file", &body);
    assert!(kills >= 3, "only {kills} kills: nothing was shown");
    // Each kill costs at most the unfinished piece of each of the eight connections, and what was on its way to them.
    let most = (size + kills * 8 * 8 * MIB) as u64;
    assert!(hub.served() < most, "{} bytes for {size}, {kills} kills", hub.served());
}

/// Answers that break off, servers that stumble or want to be left alone for a while.
#[test]
fn a_bad_network_is_borne() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let body = content(3, 40 * MIB);
    let (served, count) = (Arc::clone(&body), AtomicUsize::new(0));
    let hub = Hub::start(move |request| {
        let whole = Reply::file(request, &served, "\"v1\"");
        match count.fetch_add(1, Ordering::Relaxed) % 5 {
            1 => Reply { cut: Some((whole.part.1 - whole.part.0) / 2 + 1), ..whole },
            2 => Reply::status(503),
            3 => Reply::status(429).with("retry-after", "1"),
            _ => whole,
        }
    });
    fetcher.succeed(&[&format!("{}/file", hub.url())]);
    fetcher.assert_has("file", &body);
    assert!(hub.served() < 60 * MIB as u64, "what came before a break comes again: {}", hub.served());
}

#[test]
fn what_is_damaged_is_fetched_once_more_and_never_gets_its_name() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let body = content(4, 5 * MIB);
    let wrong = {
        let mut wrong = body.to_vec();
        wrong[3 * MIB] ^= 1;
        Arc::new(wrong)
    };
    let hub = one_file(&wrong);
    let source = format!("{}/file#sha256={}", hub.url(), sha256(&body));
    let said = fetcher.fail(&[&source]);
    assert!(said.contains("damaged") && said.contains(&sha256(&wrong)), "{said}");
    assert!(!fetcher.has("file"));
    assert!(hub.served() > 10 * MIB as u64 - 1, "it is given a second chance");
    // The next run has the right one.
    let hub = one_file(&body);
    fetcher.succeed(&[&format!("{}/file#sha256={}", hub.url(), sha256(&body))]);
    fetcher.assert_has("file", &body);
}

#[test]
fn versions_are_not_mixed() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let (old, new) = (content(5, 64 * MIB), content(6, 64 * MIB));
    let (first, second, version) = (Arc::clone(&old), Arc::clone(&new), Arc::new(AtomicUsize::new(0)));
    let current = Arc::clone(&version);
    let hub = Hub::start(move |request| match current.load(Ordering::Relaxed) {
        0 => Reply::file(request, &first, "\"v1\""),
        _ => Reply::file(request, &second, "\"v2\""),
    });
    hub.set_pace(4 * MIB as u64);
    let source = format!("{}/file", hub.url());
    let mut process = fetcher.start("first", &[&source]);
    wait_for("some pieces", PATIENCE, || (hub.served() > 40 * MIB as u64).then_some(()));
    process.kill();
    assert!(!fetcher.has("file"));
    version.store(1, Ordering::Relaxed);
    hub.set_pace(0);
    fetcher.succeed(&[&source]);
    fetcher.assert_has("file", &new);
}

/// Servers that know no ranges, and files with nothing in them.
#[test]
fn a_server_without_ranges_will_do() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let body = content(7, 3 * MIB);
    let (served, count) = (Arc::clone(&body), AtomicUsize::new(0));
    let hub = Hub::start(move |request| {
        let whole = Request { headers: Default::default(), ..request.clone() };
        match request.target.as_str() {
            "/empty" => Reply::file(&whole, &Arc::default(), "\"v1\""),
            _ if count.fetch_add(1, Ordering::Relaxed) == 1 => {
                Reply { cut: Some(MIB), ..Reply::file(&whole, &served, "\"v1\"") }
            }
            _ => Reply::file(&whole, &served, "\"v1\""),
        }
    });
    fetcher.succeed(&[&format!("{}/file", hub.url())]);
    fetcher.assert_has("file", &body);
    fetcher.succeed(&[&format!("{}/empty", hub.url())]);
    fetcher.assert_has("empty", b"");
}

/// Two pods on one volume.
#[test]
fn two_at_once_fetch_it_once() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let size = 24 * MIB;
    let body = content(8, size);
    let hub = one_file(&body);
    hub.set_pace(8 * MIB as u64);
    let source = format!("{}/file", hub.url());
    let mut both = [fetcher.start("one", &[&source]), fetcher.start("two", &[&source])];
    for process in &mut both {
        assert!(process.wait(PATIENCE).success(), "{}", process.output());
    }
    fetcher.assert_has("file", &body);
    assert!(hub.served() < (size + MIB) as u64, "{} bytes for {size}", hub.served());
}

/// A bucket of several pages, every request signed, and nothing of the keys said.
#[test]
fn a_bucket_is_listed_page_by_page_and_fetched() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let (small, large) = (content(9, 100), content(10, 5 * MIB));
    let (one, two) = (Arc::clone(&small), Arc::clone(&large));
    let hub = Hub::start(move |request| {
        let signed = request.header("authorization").is_some_and(|value| {
            value.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
                && value.contains("/eu-west-9/s3/aws4_request,")
        });
        if !signed || request.header("x-amz-date").is_none() {
            return Reply::status(403);
        }
        let page = |objects: &[(&str, usize)], next: &str| {
            let contents: String = objects
                .iter()
                .map(|(key, size)| {
                    format!("<Contents><Key>{key}</Key><ETag>&quot;tag&quot;</ETag><Size>{size}</Size></Contents>")
                })
                .collect();
            Reply::text(&format!("<?xml version=\"1.0\"?><ListBucketResult>{contents}{next}</ListBucketResult>"))
        };
        let target = request.target.as_str();
        match target {
            _ if target.starts_with("/weights/?") && target.contains("continuation-token=more%2B1") => {
                page(&[("qwen/8b/sub/large%2B1.bin", 5 * MIB), ("qwen/8b/skip.txt", 1)], "")
            }
            _ if target.starts_with("/weights/?") && target.contains("prefix=qwen%2F8b%2F") => {
                let next = "<NextContinuationToken>more+1</NextContinuationToken>";
                page(&[("qwen/8b/", 0), ("qwen/8b/a+small.json", 100)], next)
            }
            "/weights/qwen/8b/a%20small.json" => Reply::file(request, &one, "\"tag\""),
            "/weights/qwen/8b/sub/large%2B1.bin" => Reply::file(request, &two, "\"tag\""),
            _ => Reply::status(404),
        }
    });
    let url = hub.url();
    let args = ["s3://weights/qwen/8b", "--bucket-endpoint", &url, "--bucket-region", "eu-west-9", "--ignore", "*.txt"];
    let denied = fetcher.fail(&args);
    assert!(denied.contains("403"), "{denied}");
    let keys = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")];
    let output = fetcher.command(&args).envs(keys).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("AKIDEXAMPLE") && !said.contains("hunter2"), "{said}");
    fetcher.assert_has("a small.json", &small);
    fetcher.assert_has("sub/large+1.bin", &large);
    assert!(!fetcher.has("skip.txt"));
    assert!(hub.requests().iter().all(|request| !format!("{request:?}").contains("hunter2")));
}

/// ModelScope's listing, and its token.
#[test]
fn a_repository_of_modelscope_comes_whole() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let body = content(11, 2 * MIB);
    let (served, hash) = (Arc::clone(&body), sha256(&body));
    let hub = Hub::start(move |request| {
        if request.header("cookie") != Some("m_session_id=ms-token") {
            return Reply::status(401);
        }
        match request.target.as_str() {
            "/api/v1/models/org/model/repo/files?Revision=v2&Recursive=true" => Reply::text(
                &json!({"Code": 200, "Message": "", "Data": {"Files": [
                    {"Path": "sub", "Type": "tree", "Size": 0, "Sha256": ""},
                    {"Path": "sub/w.gguf", "Type": "blob", "Size": served.len(), "Sha256": hash},
                ]}})
                .to_string(),
            ),
            "/api/v1/models/org/model/repo?Revision=v2&FilePath=sub%2Fw.gguf" => Reply::file(request, &served, "\"v\""),
            _ => Reply::status(404),
        }
    });
    let url = hub.url();
    let args = ["modelscope://org/model@v2", "--modelscope-endpoint", &url];
    let output = fetcher.command(&args).env("MODELSCOPE_API_TOKEN", "ms-token").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fetcher.assert_has("sub/w.gguf", &body);
}

/// A hub that would write elsewhere, one that says nonsense, one that isn't there.
#[test]
fn a_hostile_or_absent_hub_does_no_harm() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let listing = |files: serde_json::Value| json!({"sha": "c", "siblings": files}).to_string();
    for name in ["../evil", "/tmp/evil", "a/../../evil", ".dunlin-fetch/x"] {
        let text = listing(json!([{"rfilename": name, "size": 1}]));
        let hub = Hub::start(move |_| Reply::text(&text));
        let said = fetcher.fail(&["hf://org/model", "--hf-endpoint", &hub.url()]);
        assert!(said.contains("cannot be kept in a folder"), "{said}");
    }
    let hub = Hub::start(|_| Reply::text("<html>log in first</html>"));
    let said = fetcher.fail(&["hf://org/model", "--hf-endpoint", &hub.url()]);
    assert!(said.contains("not what a hub says"), "{said}");
    let hub = Hub::start(|request| Reply::redirect(&request.target));
    let said = fetcher.fail(&[&format!("{}/file", hub.url())]);
    assert!(said.contains("more than 10 redirects"), "{said}");
    let text = listing(json!([{"rfilename": "a", "size": 1_u64 << 60}]));
    let hub = Hub::start(move |_| Reply::text(&text));
    let said = fetcher.fail(&["hf://org/model", "--hf-endpoint", &hub.url()]);
    assert!(said.contains("give the volume more room"), "{said}");
    assert!(!sandbox.folder().join("evil").exists());
    assert_eq!(fetcher.run(&["--to", "x", "ftp://a/b"]).status.code(), Some(2), "into twice is a usage error");
    assert!(fetcher.fail(&["ftp://a/b"]).contains("hf://ORG/MODEL"));
}

/// A volume that is mounted: copied, or used where it is.
#[test]
fn a_folder_of_this_machine_is_copied_or_looked_at() {
    let sandbox = Sandbox::new();
    let fetcher = Fetcher::new(&sandbox);
    let volume = sandbox.folder().join("volume");
    std::fs::create_dir_all(volume.join("sub")).unwrap();
    let body = content(12, 6 * MIB);
    std::fs::write(volume.join("sub/w.bin"), &*body).unwrap();
    std::fs::write(volume.join("config.json"), "{}").unwrap();
    let source = format!("file://{}", volume.display());
    fetcher.succeed(&[&source]);
    fetcher.assert_has("sub/w.bin", &body);
    let look = |source: &str| {
        let mut command = sandbox.command(env!("CARGO_BIN_EXE_dunlin"));
        command.args(["fetch", source]).output().unwrap()
    };
    let looked = look(&source);
    assert!(looked.status.success() && String::from_utf8_lossy(&looked.stdout).starts_with("2 files"), "{looked:?}");
    let missing = look("file:///no/such/volume");
    assert!(!missing.status.success() && String::from_utf8_lossy(&missing.stderr).contains("/no/such/volume"));
}

use crate::support::{client, config, demo, eventually, script, start};
use dunlin_agent::{
    Agent, Config, EngineConfig, Error, Source,
    engine::{
        discover::discover_on,
        identify::{Identity, identify},
    },
};
use dunlin_protocol::announcement::ReplicaState;
use std::process::{Child, Command, Stdio};

/// A test engine that nobody supervises.
struct Script(Child);

impl Script {
    fn start(port: u16, owner: &str) -> Self {
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/engine.py");
        let mut command = Command::new("python3");
        command.args([engine, "--port", &port.to_string(), "--owner", owner]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}
impl Drop for Script {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn an_engine_that_comes_later_is_found_recognised_and_served() {
    let port = free_port();
    let attached = EngineConfig::new(Source::Attach(format!("http://127.0.0.1:{port}/v1").parse().unwrap()));
    let running = start(vec![attached]).await;
    eventually("refused", || running.engine(0).reason.is_some_and(|reason| reason.contains("cannot connect"))).await;
    let engine = Script::start(port, "script");
    let status = running.ready(0).await;
    assert_eq!((status.runtime.as_str(), status.slots), ("script", 4));
    assert!(status.process.is_none());
    drop(engine);
    eventually("out", || running.engine(0).state == ReplicaState::Starting).await;
    let _engine = Script::start(port, "script");
    running.ready(0).await;
    running.stop().await;
}

#[tokio::test]
async fn kinds_are_told_apart_by_their_answers() {
    let directory = tempfile::tempdir().unwrap();
    let catalogue = config(directory.path()).catalogue;
    for (owner, runtime) in [("vllm", "vllm"), ("llamacpp", "llamacpp"), ("somebody", "openai")] {
        let port = free_port();
        let _engine = Script::start(port, owner);
        let url = format!("http://127.0.0.1:{port}").parse().unwrap();
        let mut identity = None;
        for _ in 0..200 {
            identity = identify(&client(), &url, &catalogue).await;
            if identity.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(
            identity,
            Some(Identity { runtime: runtime.parse().unwrap(), models: vec!["tiny".parse().unwrap()] })
        );
    }
}

/// A Dunlin proxy lists models too. Taking it for an engine would send requests in circles.
#[tokio::test]
async fn a_proxy_is_no_engine() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let _proxy = Script::start(port, "proxy");
    let up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    eventually("up", up).await;
    assert_eq!(discover_on([port], &config(directory.path()).catalogue).await, []);
}

#[tokio::test]
async fn discovery_finds_what_runs_and_nothing_else() {
    let running = start(vec![demo(|_| {}), script("")]).await;
    running.ready(0).await;
    running.ready(1).await;
    let port = |index: usize| running.engine(index).url.unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let found = discover_on([free_port(), port(0), port(1)], &config(directory.path()).catalogue).await;
    let found: Vec<_> = found.iter().map(|found| (found.runtime.as_str(), found.models[0].as_str())).collect();
    assert_eq!(found, [("demo", "demo"), ("script", "tiny")]);
    running.stop().await;
}

#[tokio::test]
async fn wrong_configurations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |engines| Agent::new(Config { engines, ..config(directory.path()) }).unwrap_err();
    assert!(matches!(refused(vec![]), Error::NoEngine));
    let many: Vec<_> = (0..65).map(|_| script("")).collect();
    assert!(matches!(refused(many), Error::TooManyEngines(65)));
    let attach = |url: &str| EngineConfig::new(Source::Attach(url.parse().unwrap()));
    let twice =
        refused(vec![attach("http://127.0.0.1:1/v1"), attach("http://127.0.0.1:2"), attach("http://127.0.0.1:1")]);
    assert!(matches!(&twice, Error::Twice(_)) && twice.to_string().contains("http://127.0.0.1:1 "), "{twice}");
    let launch = |runtime: &str| {
        EngineConfig::new(Source::Launch { runtime: runtime.parse().unwrap(), args: vec![], container: None })
    };
    assert!(matches!(refused(vec![launch("nothing")]), Error::Runtime(_)));
    assert!(matches!(refused(vec![launch("openai")]), Error::NoLaunch(_)));
    let error = refused(vec![launch("parakeet")]).to_string();
    assert!(error.contains("parakeet") && error.contains("--container docker"), "{error}");
}

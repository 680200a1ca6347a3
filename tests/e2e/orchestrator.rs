//! The orchestrator as a process on an API server in memory, with pods whose agents, shims and engines are processes.

use crate::harness::{
    PATIENCE,
    cluster::{Cluster, NAMESPACE, RunningPod},
    engine::free_address,
    node::{Home, LOOPBACK, Mesh, Node},
    sandbox::Sandbox,
    wait_for,
};
use serde_json::Value;

/// Model of the simulated engine, and a BackendRuntime that drains soon.
const MODEL: &str = "\
apiVersion: dunlin.dev/v1alpha1
kind: BackendRuntime
metadata: { name: demo }
spec: { runtime: demo, drainSeconds: 5 }
---
apiVersion: dunlin.dev/v1alpha1
kind: Model
metadata: { name: demo }
spec:
  servedName: demo
  source: { uri: 'ollama://demo' }
  flavors: [{ name: any, resources: { requests: { cpu: 100m } } }]
";

/// One replica of it.
const PLAYGROUND: &str = "\
apiVersion: dunlin.dev/v1alpha1
kind: Playground
metadata: { name: demo }
spec: { model: demo, replicas: 1, runtime: { name: demo } }
";

/// A mesh with an orchestrator that may issue to agents.
struct Scene<'a> {
    sandbox: &'a Sandbox,
    mesh: Mesh<'a>,
    cluster: &'a Cluster,
    orchestrator: Node<'a>,
    args: Vec<String>,
}

impl<'a> Scene<'a> {
    #[track_caller]
    fn new(sandbox: &'a Sandbox, cluster: &'a Cluster) -> Self {
        let mesh = Mesh::new(sandbox, &[]);
        let home = mesh.member("orchestrator", &["--role", "orchestrator"]);
        let home = home.with_environment(vec![("KUBECONFIG", cluster.kubeconfig().into())]);
        let address = format!("/ip4/127.0.0.1/tcp/{}", free_address().port());
        let args = [
            "orchestrator",
            "--no-mdns",
            "--listen",
            &address,
            "--address",
            &address,
            "--identity",
            "one",
            "--cluster",
            "here",
        ];
        let orchestrator = home.start(&args);
        let peer = orchestrator.peer_id();
        mesh.proxy.home.ask(&["mesh", "delegate", &peer, "--role", "agent", "--life", "7d"]);
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { sandbox, mesh, cluster, orchestrator, args }
    }

    #[track_caller]
    fn kill_orchestrator(&mut self) {
        self.orchestrator.process.kill();
        self.orchestrator.restart(&self.args.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The record of the only replica.
    fn replica(&self) -> Option<Value> {
        let playground = self.cluster.playground("demo")?;
        playground["status"]["replicaStates"].as_array()?.first().cloned()
    }

    #[track_caller]
    fn wait_for_phase(&self, phase: &str) -> Value {
        wait_for(&format!("the replica to be {phase}"), PATIENCE, || {
            self.replica().filter(|replica| replica["phase"] == phase)
        })
    }

    #[track_caller]
    fn serves(&self) -> RunningPod<'a> {
        let pod = self.cluster.run_next_pod(self.sandbox);
        pod.wait_until_ready();
        self.wait_for_phase("Ready");
        self.mesh.proxy.wait_for_replicas("demo", 1);
        pod
    }

    fn is_member(&self, peer: &str) -> bool {
        let peers = self.mesh.proxy.home.list(&["peers"]);
        let of_peer = peers.as_array().into_iter().flatten().find(|other| other["peer"] == peer).cloned();
        of_peer.is_some_and(|other| other["reachability"] != "revoked")
    }
}

/// From a Playground to an answer through a proxy, over a killed orchestrator, to the end of the membership with the pod.
#[test]
fn a_replica_lives_from_a_playground_to_an_answer_and_its_membership_ends_with_its_pod() {
    let sandbox = Sandbox::new();
    let cluster = Cluster::new(&sandbox);
    let mut scene = Scene::new(&sandbox, &cluster);
    cluster.apply(MODEL);
    cluster.apply(PLAYGROUND);
    let pod = scene.serves();
    scene.mesh.endpoint.chat("demo", "Hello", 4).unwrap().content();
    let peer = scene.replica().unwrap()["peerId"].as_str().unwrap().to_owned();
    let peers = scene.mesh.proxy.home.list(&["peers"]);
    let agent = peers.as_array().unwrap().iter().find(|other| other["peer"] == peer.as_str()).cloned().unwrap();
    assert_eq!((agent["name"].as_str(), &agent["roles"]), (Some(&*pod.name), &serde_json::json!(["agent"])));

    // The token of a pod whose agent has joined is of no use to anybody else, nor is one of another pod.
    let audience = format!("dunlin.dev/{}", scene.mesh.proxy.status()["mesh"].as_str().unwrap());
    assert!(scene.intrude("thief", &cluster.token(&pod.pod, &audience)).contains("another peer"));

    // Everything is on record: who is killed knows it again, and the replica has served all the time.
    scene.kill_orchestrator();
    wait_for("the replica to be seen again", PATIENCE, || {
        let replica = scene.replica()?;
        (replica["phase"] == "Ready" && replica["peerId"] == peer.as_str()).then_some(())
    });
    scene.mesh.endpoint.chat("demo", "Hello again", 4).unwrap().content();

    assert!(scene.is_member(&peer));
    cluster.delete_playground("demo");
    pod.end_when_told();
    wait_for("the Playground to be gone", PATIENCE, || cluster.playground("demo").is_none().then_some(()));
    wait_for("the membership to end", PATIENCE, || (!scene.is_member(&peer)).then_some(()));
    scene.mesh.proxy.wait_for_replicas("demo", 0);
    scene.orchestrator.process.assert_running();
}

impl Scene<'_> {
    /// What an agent hears that shows `token` for a pod.
    #[track_caller]
    fn intrude(&self, name: &str, token: &str) -> String {
        let file = self.sandbox.folder().join(format!("{name}.token"));
        std::fs::write(&file, token).unwrap();
        let address = format!("{}/p2p/{}", self.orchestrator.listen_addresses()[0], self.orchestrator.peer_id());
        let mesh = self.mesh.proxy.status()["mesh"].as_str().unwrap().to_owned();
        let mut command = self.sandbox.command(crate::harness::node::executable());
        command.arg("--home").arg(self.sandbox.folder().join(name)).args(["agent", "--engine", "http://127.0.0.1:9"]);
        command.args(LOOPBACK).args(["--mesh", &mesh, "--orchestrator", &address, "--token-file"]).arg(&file);
        let mut process = self.sandbox.start(name, command);
        let said = wait_for("a refusal", PATIENCE, || {
            let output = process.output();
            output.contains("not admitted").then_some(output)
        });
        process.kill();
        said
    }
}

/// Whoever is on no record stays outside, with whatever token.
#[test]
fn a_pod_of_ones_own_making_is_not_let_in() {
    let sandbox = Sandbox::new();
    let cluster = Cluster::new(&sandbox);
    let scene = Scene::new(&sandbox, &cluster);
    let audience = format!("dunlin.dev/{}", scene.mesh.proxy.status()["mesh"].as_str().unwrap());
    let planted = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo-0-1", "namespace": NAMESPACE, "uid": "planted"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "here"}, "status": {"phase": "Running"}});
    cluster.fake.load("pods", [planted.clone()]);
    let said = scene.intrude("planted", &cluster.token(&planted, &audience));
    assert!(said.contains("no such pod on record"), "{said}");
    let said = scene.intrude("elsewhere", &cluster.token(&planted, "https://kubernetes.default.svc"));
    assert!(said.contains("token"), "{said}");
}

/// A command fails, and says why. On a machine that stood still for seconds the orchestrator may have lost its lease, and be
/// away for a moment.
#[track_caller]
fn refused(home: &Home<'_>, args: &[&str], why: &str) {
    wait_for(&format!("{args:?} to be refused: {why}"), PATIENCE, || {
        let output = home.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?} is taken");
        said.contains(why).then_some(())
    });
}

/// From `dunlin deploy --wait` to `dunlin delete`, by somebody who never sees Kubernetes.
#[test]
fn operators_run_jobs_over_the_mesh_in_their_namespaces() {
    let sandbox = Sandbox::new();
    let cluster = Cluster::new(&sandbox);
    let scene = Scene::new(&sandbox, &cluster);
    cluster.apply(MODEL);
    let invited = scene.mesh.member("operator", &["--role", "operator,proxy", "--namespace", "default"]);
    let operator = invited.start(&[&["proxy", "--http", "127.0.0.1:0"], &LOOPBACK[..]].concat());
    let home = &operator.home;
    wait_for("the operator to find the orchestrator", PATIENCE, || home.run(&["jobs"]).status.success().then_some(()));
    let models = home.list(&["models", "list"]);
    assert_eq!((&models[0]["served"], &models[0]["cluster"]), (&Value::from("demo"), &Value::from("here")));

    refused(home, &["deploy", "demmo"], "did you mean demo?");
    refused(home, &["deploy", "demo", "--namespace", "other"], "may not operate in namespace other");
    refused(home, &["deploy", "demo", "--cluster", "there"], "this is the orchestrator of cluster here");
    refused(home, &["models", "add", "x", "--source", "hf://a/b", "--flavors-of", "demo"], "may not operate");
    refused(home, &["job", "here/default/none"], "there is no job here/default/none");
    refused(&scene.mesh.proxy.home, &["jobs"], "invite --role operator");

    let deploy = home.command(&["deploy", "demo", "--runtime", "demo", "--wait"]);
    let mut deploy = sandbox.start("deploy", deploy);
    let pod = scene.serves();
    let ended = deploy.wait(PATIENCE);
    let said = deploy.output();
    assert!(ended.success() && said.contains("here/default/demo: 1 of 1 replicas serve demo"), "{said}");
    assert_eq!(home.list(&["jobs"])[0]["ready"], 1);
    assert!(home.ask(&["job", "here/default/demo"]).contains("demo-0-1 Ready"));
    scene.mesh.endpoint.chat("demo", "Hello", 4).unwrap().content();
    let logs = home.ask(&["logs", "here/default/demo"]);
    assert!(logs.contains("demo engine on"), "{logs}");
    assert!(home.ask(&["rollout", "status", "here/default/demo"]).contains("is done"));
    refused(home, &["rollout", "undo", "here/default/demo"], "no revision before");

    home.ask(&["scale", "here/default/demo", "0"]);
    pod.end_when_told();
    wait_for("nothing to be wanted", PATIENCE, || {
        let job = home.list(&["job", "here/default/demo"]);
        (job["wanted"] == 0 && job["ready"] == 0).then_some(())
    });
    let file = sandbox.folder().join("playground.yaml");
    std::fs::write(&file, PLAYGROUND).unwrap();
    home.ask(&["apply", "-f", file.to_str().unwrap()]);
    let again = scene.serves();
    home.ask(&["delete", "here/default/demo"]);
    again.end_when_told();
    wait_for("the job to be gone", PATIENCE, || (home.list(&["jobs"]) == serde_json::json!([])).then_some(()));
}

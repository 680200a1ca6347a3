//! A Kubernetes cluster of processes: an API server in memory on a socket, and a kubelet that runs the containers of pods
//! as processes of the executable under test.

use super::{
    PATIENCE, engine::free_address, http::Endpoint, node::executable, process::Process, sandbox::Sandbox, wait_for,
};
use dunlin_k8s::resources::crds;
use dunlin_k8s_fake::Fake;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tokio::runtime::Runtime;

/// Where everything is.
pub(crate) const NAMESPACE: &str = "default";

/// A cluster with one node and no pods.
pub(crate) struct Cluster {
    pub(crate) fake: Fake,
    client: Client,
    runtime: Runtime,
    kubeconfig: PathBuf,
}

impl Cluster {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let fake = Fake::new(&crds());
        let client = runtime.block_on(async { fake.client("kubelet") });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(fake.clone().serve(listener));
        let kubeconfig = sandbox.folder().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": NAMESPACE}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        fake.load(
            "nodes",
            [json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}, "status": {"allocatable": amounts}})],
        );
        let cluster = Self { fake, client, runtime, kubeconfig };
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        let account = serde_json::from_value(account).unwrap();
        cluster.runtime.block_on(accounts.create(&PostParams::default(), &account)).unwrap();
        cluster
    }

    /// For `KUBECONFIG`.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Applies the objects of a file of YAML.
    #[track_caller]
    pub(crate) fn apply(&self, yaml: &str) {
        let objects: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        for object in objects {
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let types = object.types.clone().unwrap();
            let (group, version) = types.api_version.split_once('/').unwrap();
            let gvk = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
            let resource = ApiResource::from_gvk(&gvk);
            let api: Api<DynamicObject> = match types.kind.as_str() {
                "Playground" => Api::namespaced_with(self.client.clone(), NAMESPACE, &resource),
                _ => Api::all_with(self.client.clone(), &resource),
            };
            let name = object.metadata.name.clone().unwrap();
            let params = PatchParams::apply("test").force();
            self.runtime.block_on(api.patch(&name, &params, &Patch::Apply(&object))).unwrap();
        }
    }

    pub(crate) fn playground(&self, name: &str) -> Option<Value> {
        self.fake.stored("playgrounds", NAMESPACE, name)
    }

    pub(crate) fn delete_playground(&self, name: &str) {
        let resource = ApiResource::erase::<dunlin_k8s::resources::Playground>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), NAMESPACE, &resource);
        self.runtime.block_on(api.delete(name, &DeleteParams::default())).unwrap();
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Takes a pod that nobody has, and runs it.
    #[track_caller]
    pub(crate) fn run_next_pod<'a>(&'a self, sandbox: &'a Sandbox) -> RunningPod<'a> {
        let pod = wait_for("a pod to run", PATIENCE, || {
            self.fake.all("pods").into_iter().find(|pod| pod["spec"]["nodeName"].is_null())
        });
        RunningPod::start(self, sandbox, pod)
    }

    /// A token for this pod, as the kubelet projects it.
    pub(crate) fn token(&self, pod: &Value, audience: &str) -> String {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": 3600,
                     "boundObjectRef": {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}},
        });
        let request = serde_json::from_value(request).unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let terms = PostParams::default();
        let made = accounts.create_token_request("default", &terms, &request);
        self.runtime.block_on(made).unwrap().status.unwrap().token.unwrap()
    }
}

/// The containers of one pod, as processes.
pub(crate) struct RunningPod<'a> {
    cluster: &'a Cluster,
    pub(crate) name: String,
    pub(crate) pod: Value,
    pub(crate) agent: Process,
    pub(crate) engine: Process,
    ready: SocketAddr,
}

impl<'a> RunningPod<'a> {
    #[track_caller]
    fn start(cluster: &'a Cluster, sandbox: &'a Sandbox, pod: Value) -> Self {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let bind = json!({"spec": {"nodeName": "here"}});
        cluster.runtime.block_on(cluster.pods().patch(&name, &PatchParams::default(), &Patch::Merge(bind))).unwrap();
        let folder = sandbox.folder().join(&name);
        let paths = volumes(cluster, &pod, &folder);
        let (ready, engine_at) = (free_address(), free_address());
        let ports = BTreeMap::from([("127.0.0.1:8000", engine_at), ("0.0.0.0:8481", ready)]);
        let place = |text: &str| placed(text, &paths, &ports);
        let [agent] = containers(&pod, "initContainers") else { panic!("one init container: {pod}") };
        let mut command = sandbox.command(executable());
        command
            .args(words(agent, "args"))
            .envs(environment(agent, &name, place))
            .env("DUNLIN_LISTEN", "/ip4/127.0.0.1/tcp/0");
        let agent = sandbox.start(&format!("{name}-agent"), command);
        let shared = paths.iter().find(|(mount, _)| mount == "/dunlin").unwrap().1.join("dunlin");
        wait_for("the agent to share its executable", PATIENCE, || {
            std::net::TcpStream::connect(ready).ok()?;
            shared.exists().then_some(())
        });
        let [engine] = containers(&pod, "containers") else { panic!("one container: {pod}") };
        let line: Vec<String> = words(engine, "command").into_iter().chain(words(engine, "args")).collect();
        let mut command = sandbox.command(place(&line[0]));
        command.args(line[1..].iter().map(|word| place(word))).envs(environment(engine, &name, place));
        let engine = sandbox.start(&format!("{name}-engine"), command);
        let running = Self { cluster, name, pod, agent, engine, ready };
        running.tell(false);
        running
    }

    /// Tells the API server how the pod stands.
    fn tell(&self, ready: bool) {
        let since = "2026-01-01T00:00:00Z";
        let word = if ready { "True" } else { "False" };
        let status = json!({"status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": word, "lastTransitionTime": since}],
            "containerStatuses": [{"name": "engine", "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": {"running": {"startedAt": since}}}]}});
        let pods = self.cluster.pods();
        // It may have gone.
        let _ = self.cluster.runtime.block_on(pods.patch_status(
            &self.name,
            &PatchParams::default(),
            &Patch::Merge(status),
        ));
    }

    /// Waits until the agent says that it serves, as a readiness probe does.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self) {
        wait_for("the pod to be ready", PATIENCE, || {
            Endpoint::open(self.ready).get("/ready").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        self.tell(true);
    }

    /// Waits until it is to end, ends it as the kubelet does, and says that it has gone.
    #[track_caller]
    pub(crate) fn end_when_told(mut self) {
        wait_for("the pod to be deleted", PATIENCE, || {
            let pod = self.cluster.fake.stored("pods", NAMESPACE, &self.name);
            pod.is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        });
        self.engine.signal(Signal::TERM);
        assert_eq!(self.engine.wait(PATIENCE).code(), Some(0), "{}", self.engine.output());
        self.agent.signal(Signal::TERM);
        self.agent.wait(PATIENCE);
        let now = DeleteParams::default().grace_period(0);
        let _ = self.cluster.runtime.block_on(self.cluster.pods().delete(&self.name, &now));
    }
}

fn containers<'p>(pod: &'p Value, field: &str) -> &'p [Value] {
    pod["spec"][field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn words(container: &Value, field: &str) -> Vec<String> {
    container[field].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

fn environment(container: &Value, pod: &str, place: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let variables = container["env"].as_array().into_iter().flatten();
    let value = |variable: &Value| match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
        Some("metadata.name") => pod.to_owned(),
        _ => place(variable["value"].as_str().unwrap_or_default()),
    };
    variables.map(|variable| (variable["name"].as_str().unwrap().to_owned(), value(variable))).collect()
}

/// The folders behind mounts, filled as the kubelet fills them.
fn volumes(cluster: &Cluster, pod: &Value, folder: &Path) -> Vec<(String, PathBuf)> {
    let all = pod["spec"]["volumes"].as_array().unwrap();
    let mounts = containers(pod, "initContainers").iter().chain(containers(pod, "containers"));
    let mut paths = BTreeMap::new();
    for mount in mounts.flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten()) {
        let (name, path) = (mount["name"].as_str().unwrap(), mount["mountPath"].as_str().unwrap());
        let here = folder.join(name);
        std::fs::create_dir_all(&here).unwrap();
        paths.insert(path.to_owned(), here.clone());
        let volume = all.iter().find(|volume| volume["name"] == name).unwrap();
        if let Some(map) = volume["configMap"]["name"].as_str() {
            let map = cluster.fake.stored("configmaps", NAMESPACE, map).expect("the ConfigMap is there before the pod");
            for (file, text) in map["data"].as_object().unwrap() {
                std::fs::write(here.join(file), text.as_str().unwrap()).unwrap();
            }
        }
        let token = &volume["projected"]["sources"][0]["serviceAccountToken"];
        if let Some(audience) = token["audience"].as_str() {
            std::fs::write(here.join(token["path"].as_str().unwrap()), cluster.token(pod, audience)).unwrap();
        }
    }
    paths.into_iter().collect()
}

/// A word of a command line or an environment with paths and ports of a pod, for this machine.
fn placed(text: &str, paths: &[(String, PathBuf)], ports: &BTreeMap<&str, SocketAddr>) -> String {
    let mut text = text.to_owned();
    for (port, here) in ports {
        text = text.replace(port, &here.to_string());
    }
    for (mount, here) in paths {
        if text == *mount || text.starts_with(&format!("{mount}/")) {
            text = text.replacen(mount, &here.to_string_lossy(), 1);
        }
    }
    text
}

//! A cluster to try an orchestrator in, and what can be done to it.

mod sweep;

use crate::rights::Guard;
use dunlin_k8s::{
    controller::{self, Config, Metrics, Terms},
    mesh::Readiness,
    names,
    resources::{BackendRuntime, Model, Phase, Playground, PlaygroundStatus, crds},
    settings::{Patience, Settings},
};
use dunlin_k8s_fake::{
    Fake,
    simulate::{self, Lives},
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest wait for what shall come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a status: a large one takes a while to be read.
const LOOK: Duration = Duration::from_millis(20);

/// A cluster.
pub(crate) struct Cluster {
    pub(crate) fake: Option<Fake>,
    /// The test's own client.
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) lives: Lives,
    /// Of the server in memory.
    pub(crate) guard: Guard,
    simulation: JoinHandle<()>,
    nodes: Vec<String>,
    swept: bool,
}

/// An orchestrator that runs.
pub(crate) struct Orchestrator {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Orchestrator {
    /// Ends it as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }

    /// Ends it as SIGKILL does.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Shows what is logged, if somebody wants to see it.
pub(crate) fn log() {
    if let Ok(filter) = std::env::var("DUNLIN_TEST_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
}

pub(crate) fn kubeconfig() -> Option<String> {
    std::env::var("DUNLIN_TEST_KUBECONFIG").ok().filter(|path| !path.is_empty())
}

/// Whether a scenario has to be left out because it needs a server that can be broken.
pub(crate) fn needs_fake() -> bool {
    let real = kubeconfig().is_some();
    if real {
        println!("*** SKIPPED: needs an API server that can be broken at will");
    }
    real
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let moment = k8s_openapi::jiff::Timestamp::now().as_millisecond() % 100_000_000;
    format!("dunlin-test-{moment}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Patience in thousandths of what people have.
pub(crate) fn hasty() -> Patience {
    Patience {
        debounce: Duration::from_millis(5),
        flavor: Duration::from_millis(300),
        surge: Duration::from_millis(500),
        status: Duration::from_millis(10),
        news: Duration::from_millis(50),
        retry: Duration::from_millis(20),
        retry_most: Duration::from_millis(500),
        call: Duration::from_secs(5),
        ..Patience::default()
    }
}

/// What an orchestrator of this namespace is made from.
pub(crate) fn config(namespace: &str, identity: &str) -> Config {
    Config {
        settings: Settings { image: "dunlin:test".to_owned(), ..Settings::default() },
        patience: hasty(),
        namespace: Some(namespace.to_owned()),
        identity: identity.to_owned(),
        lease_namespace: namespace.to_owned(),
        lease: "dunlin-orchestrator".to_owned(),
        metrics: Metrics::default(),
        terms: Terms { duration: Duration::from_secs(3), renew: Duration::from_millis(500) },
    }
}

impl Cluster {
    /// An empty namespace, on the server that the environment names or on one in memory.
    pub(crate) async fn new() -> Self {
        match kubeconfig() {
            Some(path) => Self::real(&path).await,
            None => Self::fake().await,
        }
    }

    /// On one in memory, whatever the environment says.
    pub(crate) async fn fake() -> Self {
        let fake = Fake::new(&crds());
        let client = fake.client("test");
        let simulator = fake.client("simulator");
        Self::start(Some(fake), client, simulator, true).await
    }

    async fn real(path: &str) -> Self {
        let client = client_of(path).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for crd in crds() {
            let name = crd.name_any();
            definitions
                .patch(&name, &PatchParams::apply("dunlin-test").force(), &Patch::Apply(&crd))
                .await
                .expect("the server takes the definition");
            let established = |crd: &CustomResourceDefinition| {
                let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Established" && one.status == "True"))
            };
            until("the definition is established", async || {
                definitions.get(&name).await.is_ok_and(|crd| established(&crd))
            })
            .await;
        }
        Self::start(None, client.clone(), client, false).await
    }

    async fn start(fake: Option<Fake>, client: Client, simulator: Client, schedules: bool) -> Self {
        log();
        let namespace = unique();
        create(
            None,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            Api::<Namespace>::all(client.clone()),
        )
        .await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        // Where a controller manager runs, it makes this itself.
        let _ = accounts.create(&PostParams::default(), &serde_json::from_value(account).unwrap()).await;
        let lives = Lives::default();
        let guard = fake.as_ref().map(Guard::of).unwrap_or_default();
        let simulation = tokio::spawn(simulate::play(simulator, namespace.clone(), lives.clone(), schedules));
        Self { fake, client, namespace, lives, guard, simulation, nodes: Vec::new(), swept: false }
    }

    pub(crate) fn fake_server(&self) -> &Fake {
        self.fake.as_ref().expect("a server in memory")
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn config(&self, identity: &str) -> Config {
        config(&self.namespace, identity)
    }

    /// Starts an orchestrator.
    pub(crate) fn orchestrator(&self) -> Orchestrator {
        self.orchestrator_with(self.config("one"), "orchestrator")
    }

    pub(crate) fn orchestrator_with(&self, config: Config, name: &'static str) -> Orchestrator {
        let client = self.fake.as_ref().map_or_else(|| self.client.clone(), |fake| fake.client(name));
        let stop = CancellationToken::new();
        let task = tokio::spawn(controller::run(client, config, Arc::new(Readiness), stop.clone()));
        Orchestrator { task, stop }
    }

    /// Adds a node with so many GPUs, which carries `kind` as a label. Returns its name.
    pub(crate) async fn node(&mut self, kind: &str, gpus: u32) -> String {
        let name = format!("{}-n{}", self.namespace, self.nodes.len());
        let amounts = json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "64", "memory": "256Gi", "pods": "110"});
        let status = json!({"capacity": amounts, "allocatable": amounts, "conditions": [
            {"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": null, "lastTransitionTime": null}]});
        let labels = json!({"gpu": format!("{}-{kind}", self.namespace), "kubernetes.io/hostname": name});
        let node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status});
        let nodes: Api<Node> = Api::all(self.client.clone());
        create(None, node, nodes.clone()).await;
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await.unwrap();
        // A real server taints what has just come as not ready.
        nodes.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await.unwrap();
        self.nodes.push(name.clone());
        name
    }

    /// Takes all but one GPU from the first node.
    pub(crate) async fn change_node_to_one_gpu(&self) {
        let patch = json!({"status": {"allocatable": {"nvidia.com/gpu": "1"}, "capacity": {"nvidia.com/gpu": "1"}}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(&self.nodes[0], &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Flavors that take one GPU each of nodes of these kinds.
    pub(crate) fn flavors(&self, kinds: &[&str]) -> Value {
        let flavor = |kind: &&str| json!({"name": kind, "nodeSelector": {"gpu": format!("{}-{kind}", self.namespace)}, "gpu": {"count": 1}, "waitSeconds": 1});
        kinds.iter().map(flavor).collect()
    }

    /// Makes a Model and a BackendRuntime for it, both called like the namespace.
    pub(crate) async fn model(&self, kinds: &[&str]) {
        let name = self.namespace.clone();
        let spec = json!({"servedName": format!("org/{name}"), "source": {"huggingface": {"repo": "org/model"}}, "flavors": self.flavors(kinds)});
        let model =
            json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": spec});
        create(None, model, Api::<Model>::all(self.client.clone())).await;
        let runtime = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "BackendRuntime", "metadata": {"name": name}, "spec": {"runtime": "vllm", "version": "v1", "drainSeconds": 1}});
        create(None, runtime, Api::<BackendRuntime>::all(self.client.clone())).await;
    }

    /// Makes a Playground of that Model.
    pub(crate) async fn playground(&self, name: &str, replicas: i32, more: Value) {
        let mut spec = json!({"model": self.namespace, "replicas": replicas, "runtime": {"name": self.namespace}});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let object = json!({"apiVersion": "dunlin.dev/v1alpha1", "kind": "Playground", "metadata": {"name": name}, "spec": spec});
        create(Some(&self.namespace), object, self.api::<Playground>()).await;
    }

    /// Changes the spec of a Playground, as a user does.
    pub(crate) async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.api::<Playground>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn status(&self, name: &str) -> PlaygroundStatus {
        let playground = self.api::<Playground>().get_opt(name).await.ok().flatten();
        playground.and_then(|playground| playground.status).unwrap_or_default()
    }

    /// Waits until the status of a Playground is such. Returns it.
    pub(crate) async fn settles(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&PlaygroundStatus) -> bool,
    ) -> PlaygroundStatus {
        let start = Instant::now();
        loop {
            let status = self.status(name).await;
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not come; the status is {status:#?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until so many replicas are there, of the wanted revision, and serve. Returns the status.
    pub(crate) async fn serves(&self, name: &str, replicas: i32) -> PlaygroundStatus {
        let generation = self.api::<Playground>().get(name).await.unwrap().metadata.generation.unwrap_or(0);
        let is = |status: &PlaygroundStatus| {
            let counts = [status.replicas, status.ready_replicas, status.updated_replicas, status.desired_replicas];
            counts == [replicas; 4] && status.observed_generation == generation
        };
        self.settles(name, &format!("{replicas} replicas of {name}"), is).await
    }

    /// The pods of a Playground, in order of name.
    pub(crate) async fn pods(&self, name: &str) -> Vec<Pod> {
        let params = ListParams::default().labels(&format!("{}={name}", names::PLAYGROUND));
        let mut pods = self.api::<Pod>().list(&params).await.unwrap().items;
        pods.sort_by_key(ResourceExt::name_any);
        pods
    }

    /// Waits until there are just these pods, which the status records, and no entry without one.
    pub(crate) async fn is_tidy(&self, name: &str, replicas: usize) {
        let tidy = async || {
            let status = self.status(name).await;
            let pods = self.pods(name).await;
            let mut recorded: Vec<Option<String>> =
                status.replica_states.iter().map(|state| state.pod_uid.clone()).collect();
            let mut there: Vec<Option<String>> = pods.iter().map(|pod| pod.metadata.uid.clone()).collect();
            recorded.sort();
            there.sort();
            let ready = status.replica_states.iter().all(|state| state.phase == Phase::Ready);
            // What their agents read.
            let maps = self.api::<ConfigMap>();
            let revisions: BTreeSet<&str> = status.replica_states.iter().map(|state| state.revision.as_str()).collect();
            let read = futures::future::join_all(revisions.iter().map(|name| maps.get_opt(name))).await;
            let all_read = read.iter().all(|found| found.as_ref().is_ok_and(Option::is_some));
            pods.len() == replicas && recorded == there && ready && all_read
        };
        until(&format!("{replicas} pods of {name}, all on record"), tidy).await;
    }

    /// Deletes a Playground, and waits until it has gone.
    pub(crate) async fn delete(&self, name: &str) {
        self.api::<Playground>().delete(name, &DeleteParams::default()).await.unwrap();
        until("the Playground has gone", async || {
            self.api::<Playground>().get_opt(name).await.is_ok_and(|found| found.is_none())
        })
        .await;
    }

    /// Cleans up on a real server; one in memory goes by itself, after a look at what orchestrators asked of it.
    pub(crate) async fn clean(mut self) {
        self.guard.has_refused_nothing();
        if self.fake.is_none() {
            sweep::sweep(&self.client, &self.namespace).await;
        }
        self.swept = true;
    }
}

async fn client_of(path: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    dunlin_k8s::connect(config).unwrap()
}

async fn create<K>(namespace: Option<&str>, mut object: Value, api: Api<K>)
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "{what}: did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A condition's status, reason and message.
pub(crate) fn condition(status: &PlaygroundStatus, kind: &str) -> (String, String, String) {
    let found = status.conditions.iter().find(|condition| condition.kind == kind).cloned().unwrap_or_default();
    (found.status, found.reason, found.message)
}

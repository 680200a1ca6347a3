//! A scheduler and a kubelet, played through a client: the kubelet against a real API server too, for nodes that don't
//! exist.

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How often what could not be done is tried again.
const TICK: Duration = Duration::from_millis(25);

/// What becomes of a pod on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs, and is ready.
    Ready,
    /// It runs, and is not ready.
    Loads,
    /// Its image can't be pulled.
    CannotPull,
    /// A Secret that it names is missing.
    MissingSecret,
    /// It ends.
    Fails,
    /// Its node is lost: nothing is heard of it, and it can't be ended.
    Lost,
}

type Script = Box<dyn Fn(&Pod) -> Life + Send>;

/// What becomes of pods; can be changed while it is played.
#[derive(Clone)]
pub struct Lives(Arc<Mutex<Script>>);

impl Default for Lives {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Box::new(|_| Life::Ready))))
    }
}

impl Lives {
    /// From now on.
    pub fn set(&self, script: impl Fn(&Pod) -> Life + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(script);
    }

    fn of(&self, pod: &Pod) -> Life {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)(pod)
    }
}

/// Plays until dropped: the kubelets of all nodes with this label, and the scheduler unless there is a real one.
pub async fn play(client: Client, namespace: String, lives: Lives, schedules: bool) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let mut events = watch(pods);
    let mut known: BTreeMap<String, Pod> = BTreeMap::new();
    // What has become of a pod, so that those where nothing happens cost nothing.
    let mut become_of: BTreeMap<String, Life> = BTreeMap::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::Apply(pod) | Event::InitApply(pod)) => {
                    let name = pod.metadata.name.clone().unwrap_or_default();
                    become_of.remove(&name);
                    known.insert(name.clone(), pod);
                    if let Some(life) = step(&client, &namespace, &lives, schedules, &mut known, &name).await {
                        become_of.insert(name, life);
                    }
                }
                Some(Event::Delete(pod)) => {
                    let name = pod.metadata.name.unwrap_or_default();
                    known.remove(&name);
                    become_of.remove(&name);
                }
                Some(Event::Init) => {
                    known.clear();
                    become_of.clear();
                }
                Some(Event::InitDone) => {}
                None => return,
            },
            _ = tick.tick() => {
                let moves = |(name, pod): &(&String, &Pod)| become_of.get(*name) != Some(&lives.of(pod));
                let names: Vec<String> = known.iter().filter(moves).map(|(name, _)| name.clone()).collect();
                for name in names {
                    if let Some(life) = step(&client, &namespace, &lives, schedules, &mut known, &name).await {
                        become_of.insert(name, life);
                    }
                }
            }
        }
    }
}

fn watch(pods: Api<Pod>) -> std::pin::Pin<Box<dyn Stream<Item = Event<Pod>> + Send>> {
    let events = watcher(pods, Config::default()).default_backoff();
    events.filter_map(|event| async move { event.ok() }).boxed()
}

/// One pod, one step further. What fails is tried again with the next tick. Returns what has become of it, if that is all.
async fn step(
    client: &Client,
    namespace: &str,
    lives: &Lives,
    schedules: bool,
    known: &mut BTreeMap<String, Pod>,
    name: &str,
) -> Option<Life> {
    let pod = known.get(name).cloned()?;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    if node.is_none() && schedules && pod.metadata.deletion_timestamp.is_none() {
        schedule(client, &api, known, &pod).await;
        return None;
    }
    node?;
    let life = lives.of(&pod);
    if pod.metadata.deletion_timestamp.is_some() {
        if life != Life::Lost {
            let _ = api.delete(name, &DeleteParams::default().grace_period(0)).await;
        }
        return None;
    }
    let status = status(life, &pod);
    if status.is_null() || holds(&pod, &status) {
        return Some(life);
    }
    let _ = api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({ "status": status }))).await;
    None
}

fn status(life: Life, pod: &Pod) -> Value {
    let since = "2026-01-01T00:00:00Z";
    let ready = |word: &str| json!([{"type": "Ready", "status": word, "lastTransitionTime": since}, {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]);
    let container = |state: Value| json!([{"name": "engine", "image": "i:1", "imageID": "", "ready": life == Life::Ready, "restartCount": 0, "state": state}]);
    let waiting = |reason: &str, message: &str| container(json!({"waiting": {"reason": reason, "message": message}}));
    match life {
        Life::Ready => {
            json!({"phase": "Running", "conditions": ready("True"), "containerStatuses": container(json!({"running": {"startedAt": since}}))})
        }
        Life::Loads => {
            json!({"phase": "Running", "conditions": ready("False"), "containerStatuses": container(json!({"running": {"startedAt": since}}))})
        }
        Life::CannotPull => {
            json!({"phase": "Pending", "conditions": ready("False"), "containerStatuses": waiting("ImagePullBackOff", "not found")})
        }
        Life::MissingSecret => {
            json!({"phase": "Pending", "conditions": ready("False"), "containerStatuses": waiting("CreateContainerConfigError", "secret \"hub\" not found")})
        }
        Life::Fails => {
            json!({"phase": "Failed", "reason": "Evicted", "message": "the node had no memory left", "conditions": ready("False")})
        }
        Life::Lost if pod.status.is_some() => Value::Null,
        Life::Lost => Value::Null,
    }
}

/// Whether the pod's status is that already.
fn holds(pod: &Pod, status: &Value) -> bool {
    let is = serde_json::to_value(&pod.status).unwrap_or_default();
    let word = |status: &Value| {
        let ready =
            status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready");
        let state = status["containerStatuses"][0]["state"].as_object().and_then(|state| state.keys().next().cloned());
        (status["phase"].clone(), ready.map(|ready| ready["status"].clone()), state)
    };
    word(&is) == word(status)
}

async fn schedule(client: &Client, api: &Api<Pod>, known: &mut BTreeMap<String, Pod>, pod: &Pod) {
    let nodes: Api<Node> = Api::all(client.clone());
    let Ok(nodes) = nodes.list(&ListParams::default()).await else { return };
    let name = pod.metadata.name.clone().unwrap_or_default();
    let gpus = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let asked = containers.filter_map(|container| {
            container.resources.as_ref()?.requests.as_ref()?.get("nvidia.com/gpu")?.0.parse::<i64>().ok()
        });
        asked.sum::<i64>()
    };
    let free = |node: &Node| {
        let all = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref()?.get("nvidia.com/gpu")?.0.parse::<i64>().ok());
        let here =
            |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == node.metadata.name.as_ref();
        all.unwrap_or(0) - known.values().filter(here).map(&gpus).sum::<i64>()
    };
    let open = |node: &&Node| {
        node.spec
            .as_ref()
            .is_none_or(|spec| spec.unschedulable != Some(true) && spec.taints.as_ref().is_none_or(Vec::is_empty))
    };
    let fits = |node: &&Node| open(node) && suits(pod, node) && free(node) >= gpus(pod);
    let preferred = preferred(pod);
    let best = nodes
        .items
        .iter()
        .filter(fits)
        .min_by_key(|node| (node.metadata.name != preferred, node.metadata.name.clone()));
    let patch = match best {
        Some(node) => {
            let node = node.metadata.name.clone();
            known
                .get_mut(&name)
                .and_then(|pod| pod.spec.as_mut())
                .into_iter()
                .for_each(|spec| spec.node_name.clone_from(&node));
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"nodeName": node}}))).await;
            return;
        }
        None => json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": format!("0/{} nodes are available", nodes.items.len()), "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
    };
    let told = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|all| all.iter().any(|one| one.type_ == "PodScheduled"));
    if !told {
        let _ = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    }
}

fn suits(pod: &Pod, node: &Node) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let label = |term: &NodeSelectorRequirement| {
        let value = node.metadata.labels.as_ref().and_then(|labels| labels.get(&term.key));
        value.is_some_and(|value| term.values.as_ref().is_some_and(|values| values.contains(value)))
    };
    required.is_none_or(|required| {
        required.node_selector_terms.iter().any(|term| term.match_expressions.iter().flatten().all(label))
    })
}

fn preferred(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let first = affinity.preferred_during_scheduling_ignored_during_execution.as_ref()?.first()?;
    first.preference.match_fields.as_ref()?.first()?.values.as_ref()?.first().cloned()
}

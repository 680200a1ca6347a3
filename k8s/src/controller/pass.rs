//! One look at all Playgrounds that are due: planned together, each given its work.

use super::{
    lead::Leader,
    tables::{Key, Sole, Tables, Tracked, key},
    work::{Work, Worker},
};
use crate::{
    decide::{self, Decision, Draft, Facts, Trouble},
    engine,
    manifest::{self, Making},
    names, needs,
    plan::{self, Demand, FlavorNeed},
    resources::{Phase, PlaygroundStatus, ReplicaState},
    revision::{self, Revision, Snapshot, Wanted},
    settings::Settings,
    world::OwnPod,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// A Playground in the middle of a look.
struct Looked {
    key: Key,
    wanted: Result<Wanted, Trouble>,
    known: Vec<Revision>,
    waits: Vec<(String, Duration)>,
    draft: Draft,
    needs: Arc<[FlavorNeed]>,
}

impl Leader {
    /// Looks at everything that is due.
    pub(super) fn pass(&mut self) {
        let now = Instant::now();
        let limit = self.config.patience.playgrounds.saturating_sub(self.jobs.len());
        let is_due = |(key, at): (&Key, &Instant)| {
            let idle = self.tables.playgrounds.get(key).is_some_and(|tracked| !tracked.busy);
            (*at <= now && idle).then(|| key.clone())
        };
        let keys: Vec<Key> = self.due.iter().filter_map(is_due).take(limit).collect();
        let tables = &self.tables;
        self.due.retain(|key, _| !keys.contains(key) && tables.playgrounds.contains_key(key));
        let clock = Timestamp::now();
        let mut looked: Vec<Looked> = keys.into_iter().filter_map(|key| self.look(key, clock)).collect();
        let began = Instant::now();
        self.place(&mut looked, clock);
        self.config.metrics.placed(began.elapsed());
        self.config.metrics.count(&self.tables, u64::try_from(clock.as_millisecond()).unwrap_or(0));
        looked.into_iter().for_each(|looked| self.give_work(looked, clock));
    }

    /// Takes in what has changed. `None` when that is all there is to do.
    fn look(&mut self, key: Key, clock: Timestamp) -> Option<Looked> {
        let tracked = self.tables.playgrounds.get(&key)?;
        if tracked.playground.metadata.deletion_timestamp.is_some() {
            self.finalize(&key, clock);
            return None;
        }
        let known = self.tables.known(&tracked.owner.uid);
        let wanted = wanted(&self.tables, tracked, &known);
        let making = |wanted: &'_ Wanted| (tracked.owner.clone(), wanted.revision.clone());
        let (needs, waits) = match &wanted {
            Ok(wanted) => {
                let (owner, revision) = making(wanted);
                let making = Making { owner: &owner, revision: &revision, settings: &self.config.settings };
                let waits = waits(&revision, self.config.patience.flavor);
                (needs::flavors(making, &mut self.world.vocabulary), waits)
            }
            Err(_) => (Vec::new(), Vec::new()),
        };
        let tracked = self.tables.playgrounds.get_mut(&key)?;
        let status = tracked.status.clone();
        let mut memory = std::mem::take(&mut tracked.memory);
        let draft =
            self.with_facts(&key, &wanted, &waits, clock, |facts| decide::survey(facts, status, &mut memory))?;
        self.tables.playgrounds.get_mut(&key)?.memory = memory;
        Some(Looked { key, wanted, known, waits, draft, needs: needs.into() })
    }

    fn with_facts<T>(
        &self,
        key: &Key,
        wanted: &Result<Wanted, Trouble>,
        waits: &[(String, Duration)],
        now: Timestamp,
        then: impl FnOnce(&Facts<'_>) -> T,
    ) -> Option<T> {
        let tracked = self.tables.playgrounds.get(key)?;
        let none = HashMap::new();
        let pods = self.world.pods_of(&tracked.owner.uid).unwrap_or(&none);
        let sight = |pod: &OwnPod, known: Option<&str>| self.mesh.sight(pod, known);
        let facts = Facts {
            name: &tracked.owner.name,
            playground: &tracked.playground,
            wanted: wanted.as_ref(),
            waits,
            pods,
            sight: &sight,
            patience: &self.config.patience,
            now,
        };
        Some(then(&facts))
    }

    /// Finds places for all that have none.
    fn place(&mut self, looked: &mut [Looked], clock: Timestamp) {
        let mut demand = Vec::new();
        let mut empty = Vec::new();
        for (which, looked) in looked.iter().enumerate() {
            let Some(tracked) = self.tables.playgrounds.get(&looked.key).filter(|_| looked.wanted.is_ok()) else {
                continue;
            };
            for (index, tried) in looked.draft.unplaced(&tracked.memory) {
                let name = &looked.draft.status.replica_states[index].name;
                let key: Arc<str> = format!("{}/{name}", looked.key.0).into();
                let group: Arc<str> = format!("{}/{}", looked.key.0, looked.key.1).into();
                empty.push((which, index, key.clone()));
                demand.push(Demand { key, group, flavors: looked.needs.clone(), wait_for: tried });
            }
        }
        if demand.is_empty() {
            return;
        }
        let mut nodes = self.world.nodes();
        self.reserve(&mut nodes, looked);
        let plan = plan::plan(&demand, &nodes, &BTreeMap::new(), &self.world.vocabulary);
        for (which, index, key) in empty {
            if let Some(place) = plan.places.get(&key) {
                looked[which].draft.fill(index, place, clock);
            }
        }
    }

    /// Room that was given to replicas whose pods no node has taken yet.
    fn reserve(&mut self, nodes: &mut [plan::NodeView], looked: &[Looked]) {
        let mut index: HashMap<Arc<str>, usize> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            index.insert(node.name.clone(), at);
        }
        let fresh: BTreeMap<&Key, &PlaygroundStatus> =
            looked.iter().map(|looked| (&looked.key, &looked.draft.status)).collect();
        for (key, tracked) in &self.tables.playgrounds {
            let status = fresh.get(key).copied().unwrap_or(&tracked.status);
            let pods = self.world.pods_of(&tracked.owner.uid);
            let bound = |state: &ReplicaState| {
                let pod = state.pod_uid.as_ref().and_then(|uid| pods?.get(uid));
                pod.is_some_and(|pod| pod.node.is_some())
            };
            let holds = |state: &&ReplicaState| matches!(state.phase, Phase::Pending | Phase::Placing) && !bound(state);
            let held: Vec<&ReplicaState> = status.replica_states.iter().filter(holds).collect();
            for state in held {
                let (Some(node), Some(flavor)) = (&state.node, &state.flavor) else { continue };
                let Some(&at) = index.get(node.as_str()) else { continue };
                let Some((_, revision)) = self.tables.revisions.get(&key_in(key, &state.revision)) else { continue };
                let making = Making { owner: &tracked.owner, revision, settings: &self.config.settings };
                let needs = needs::flavors(making, &mut self.world.vocabulary);
                if let Some(need) = needs.iter().find(|need| *need.name == **flavor) {
                    nodes[at].free.subtract(&need.needs);
                }
            }
        }
    }

    fn give_work(&mut self, looked: Looked, clock: Timestamp) {
        let Looked { key, wanted, known, waits, draft, .. } = looked;
        let Some(tracked) = self.tables.playgrounds.get_mut(&key) else { return };
        let memory = std::mem::take(&mut tracked.memory);
        let mut decision = self
            .with_facts(&key, &wanted, &waits, clock, |facts| decide::settle(facts, draft, &memory))
            .unwrap_or_default();
        let settings = self.config.settings.clone();
        let Some(tracked) = self.tables.playgrounds.get_mut(&key) else { return };
        tracked.memory = memory;
        let mut work = Work::default();
        if let (Ok(wanted), Some(tracked)) = (&wanted, self.tables.playgrounds.get(&key)) {
            let there = self.there(&key, &wanted.revision.name);
            if let Err(error) = prepare(&mut work, tracked, &there, wanted, &known, &settings, &decision) {
                tracing::error!(namespace = %key.0, name = %key.1, %error, "what was decided can't be made");
            }
        }
        let Some(tracked) = self.tables.playgrounds.get_mut(&key) else { return };
        tracked.status.clone_from(&decision.status);
        work.endings = std::mem::take(&mut decision.endings);
        work.revoked = std::mem::take(&mut decision.revoked);
        work.news = std::mem::take(&mut decision.news);
        let mut again = decision.again.map(|at| wait_until(clock, at));
        if tracked.stored != tracked.status {
            let patience = &self.config.patience;
            let only_news = decide::is_only_news(&tracked.stored, &tracked.status);
            let pause = if only_news { patience.news } else { patience.status };
            let left =
                tracked.written.map_or(Duration::ZERO, |at| (at + pause).saturating_duration_since(Instant::now()));
            // A pod is created only under a name that is stored.
            if left.is_zero() || !work.births.is_empty() {
                work.status = Some(tracked.status.clone());
            } else {
                again = Some(again.map_or(left, |again| again.min(left)));
            }
        }
        if let Some(wait) = again {
            self.look_in(key.clone(), wait);
        }
        self.start(&key, work);
    }

    /// The Playground is to go: its pods first, which finish their requests, then its finalizer. Pods of
    /// lost nodes are not waited for, nor any longer than they were given.
    fn finalize(&mut self, key: &Key, clock: Timestamp) {
        let Some(tracked) = self.tables.playgrounds.get(key) else { return };
        let finalizers = tracked.playground.metadata.finalizers.as_deref().unwrap_or_default();
        if !finalizers.iter().any(|name| name == names::FINALIZER) {
            return;
        }
        let pods = || self.world.pods_of(&tracked.owner.uid).into_iter().flatten();
        let running = pods().filter(|(_, pod)| pod.ends_at.is_none());
        let endings: Vec<_> =
            running.map(|(uid, pod)| decide::Ending { name: pod.name.clone(), uid: uid.clone() }).collect();
        let lost = |pod: &OwnPod| pod.node.as_deref().is_some_and(|node| self.world.is_lost(node));
        let last =
            pods().filter(|(_, pod)| !lost(pod)).filter_map(|(_, pod)| pod.ends_at).max().filter(|at| *at > clock);
        let mut work = Work::default();
        if endings.is_empty() && last.is_none() {
            work.leave = true;
            work.others = finalizers.iter().filter(|name| *name != names::FINALIZER).cloned().collect();
            let states = &tracked.status.replica_states;
            work.revoked = states.iter().filter_map(|state| state.peer_id.clone()).collect();
        }
        work.endings = endings;
        if let Some(last) = last {
            self.look_in(key.clone(), wait_until(clock, last));
        }
        self.start(key, work);
    }

    fn start(&mut self, key: &Key, work: Work) {
        let Some(tracked) = self.tables.playgrounds.get_mut(key).filter(|_| !work.is_empty()) else { return };
        tracked.busy = true;
        let worker = Worker {
            client: self.client.clone(),
            owner: tracked.owner.clone(),
            version: tracked.version.clone(),
            patience: self.config.patience.clone(),
            recorder: self.recorder.clone(),
            mesh: self.mesh.clone(),
        };
        self.jobs.spawn(worker.carry_out(work));
    }

    fn there(&self, key: &Key, revision: &str) -> There {
        let sole = key_in(key, &names::sole(&key.1));
        There {
            policy: self.tables.policies.get(&sole).cloned(),
            budget: self.tables.budgets.get(&sole).cloned(),
            config_map: self.tables.config_maps.get(&key_in(key, revision)).cloned(),
        }
    }
}

/// What is there of a Playground's objects.
struct There {
    policy: Option<Sole>,
    budget: Option<Sole>,
    /// Uid of the controller of the wanted revision's.
    config_map: Option<String>,
}

fn key_in(beside: &Key, name: &str) -> Key {
    key(Some(&beside.0), Some(name))
}

fn wait_until(now: Timestamp, at: Timestamp) -> Duration {
    // A moment later than asked for, so that it has come.
    Duration::try_from(at.duration_since(now)).unwrap_or_default() + Duration::from_millis(5)
}

fn waits(revision: &Revision, default: Duration) -> Vec<(String, Duration)> {
    let flavors = revision.snapshot.flavors().unwrap_or_default();
    flavors.into_iter().map(|flavor| (flavor.name.clone(), decide::wait_of(flavor.wait_seconds, default))).collect()
}

/// What has to be there before, and beside, the pods.
fn prepare(
    work: &mut Work,
    tracked: &Tracked,
    there: &There,
    wanted: &Wanted,
    known: &[Revision],
    settings: &Settings,
    decision: &Decision,
) -> Result<(), manifest::Error> {
    let owner = &tracked.owner;
    let finalizers = tracked.playground.metadata.finalizers.clone().unwrap_or_default();
    if !finalizers.iter().any(|name| name == names::FINALIZER) {
        work.finalizers = Some(finalizers.into_iter().chain([names::FINALIZER.to_owned()]).collect());
    }
    let making = Making { owner, revision: &wanted.revision, settings };
    if wanted.is_new {
        work.revision = Some((manifest::controller_revision(making)?, wanted.revision.clone()));
    }
    if there.config_map.as_ref() != Some(&owner.uid) {
        work.config_map = Some(manifest::config_map(making)?);
    }
    let policy = manifest::network_policy(owner)?;
    if differs(there.policy.as_ref(), owner, &policy, &policy.metadata) {
        work.policy = Some(policy);
    }
    let budget = manifest::disruption_budget(owner)?;
    if differs(there.budget.as_ref(), owner, &budget, &budget.metadata) {
        work.budget = Some(budget);
    }
    let stored = |name: &str| known.iter().find(|revision| revision.name == name);
    for state in &decision.births {
        let revision =
            if state.revision == wanted.revision.name { Some(&wanted.revision) } else { stored(&state.revision) };
        let Some(revision) = revision else { continue };
        let pod = manifest::pod(Making { revision, ..making }, state)?;
        work.births.push((state.clone(), Box::new(pod)));
    }
    let states = &decision.status.replica_states;
    let in_use = |name: &str| name == wanted.revision.name || states.iter().any(|state| state.revision == name);
    work.surplus = revision::surplus(known, in_use);
    Ok(())
}

/// Whether what is there lacks something that is wanted: a server adds fields of its own.
fn differs<K: serde::Serialize>(
    there: Option<&Sole>,
    owner: &manifest::Owner,
    wanted: &K,
    metadata: &kube::api::ObjectMeta,
) -> bool {
    let Some(there) = there else { return true };
    let applied = metadata.annotations.as_ref().and_then(|all| all.get(names::APPLIED));
    let spec = serde_json::to_value(wanted).map(|mut object| object["spec"].take()).unwrap_or_default();
    there.owner != owner.uid || Some(&there.applied) != applied || !includes(&there.spec, &spec)
}

fn includes(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(field, value)| whole.get(field).is_some_and(|found| includes(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| includes(whole, part))
        }
        (whole, part) => whole == part,
    }
}

/// What the replicas of a Playground shall be made from, or what is in the way.
fn wanted(tables: &Tables, tracked: &Tracked, known: &[Revision]) -> Result<Wanted, Trouble> {
    if let Some(error) = &tracked.unreadable {
        let message = format!(
            "the Playground can't be read: {error}. Apply it again; the definitions (CRDs) may be older than it"
        );
        return Err(Trouble::new("Unreadable", message));
    }
    let now = snapshot(tables, tracked);
    let current = tracked.status.revision.as_str();
    let wanted = revision::wanted(&tracked.playground, &tracked.owner.name, current, now.as_ref().ok(), known);
    match (wanted, now) {
        (Some(wanted), _) => check(wanted),
        (None, Err(trouble)) => Err(trouble),
        (None, Ok(_)) => Err(Trouble::new("NoRevision", "no revision could be chosen".to_owned())),
    }
}

fn snapshot(tables: &Tables, tracked: &Tracked) -> Result<Snapshot, Trouble> {
    let spec = &tracked.playground.spec;
    let Some(model_name) = spec.main_model() else {
        return Err(Trouble::new("NoModel", "the Playground names no model: set spec.model".to_owned()));
    };
    let Some((model_name, model)) = tables.model(model_name) else {
        let near = near(model_name, tables.models.iter().map(|(name, _)| name.as_str()));
        return Err(Trouble::new(
            "ModelNotFound",
            format!(
                "there is no Model {model_name:?}, by name or by served name: create it, or correct spec.model{near}"
            ),
        ));
    };
    let model = model
        .as_ref()
        .map_err(|error| Trouble::new("BadModel", format!("the Model {model_name:?} can't be read: {error}")))?;
    let runtime_name = spec.runtime_name();
    let Some(runtime) = tables.runtimes.get(runtime_name) else {
        let near = near(runtime_name, tables.runtimes.iter().map(|(name, _)| name.as_str()));
        return Err(Trouble::new(
            "RuntimeNotFound",
            format!("there is no BackendRuntime {runtime_name:?}: create it, or correct spec.runtime.name{near}"),
        ));
    };
    let runtime = runtime.as_ref().map_err(|error| {
        Trouble::new("BadRuntime", format!("the BackendRuntime {runtime_name:?} can't be read: {error}"))
    })?;
    Ok(Snapshot::of(&tracked.playground, (model_name, &**model), (runtime_name, &**runtime)))
}

/// That an engine can be run on every flavor.
fn check(wanted: Wanted) -> Result<Wanted, Trouble> {
    let snapshot = &wanted.revision.snapshot;
    let flavors = snapshot.flavors().map_err(|name| {
        let all: Vec<&str> = snapshot.model.flavors.iter().map(|flavor| flavor.name.as_str()).collect();
        Trouble::new(
            "FlavorNotFound",
            format!(
                "the Model {:?} has no flavor {name:?}: correct spec.flavors; it has: {}",
                snapshot.model_name,
                all.join(", ")
            ),
        )
    })?;
    for flavor in flavors {
        let (model, runtime) = (&snapshot.model, &snapshot.runtime);
        engine::resolve(
            &snapshot.runtime_name,
            runtime,
            &snapshot.playground,
            flavor,
            &model.source,
            &model.served_name,
        )
        .map_err(|error| Trouble::new("BadRuntime", error.to_string()))?;
    }
    Ok(wanted)
}

/// Some names that there are, for messages.
fn near<'n>(wanted: &str, names: impl Iterator<Item = &'n str>) -> String {
    let wanted = wanted.to_ascii_lowercase();
    let mut names: Vec<&str> = names.collect();
    names.sort_by_key(|name| (!name.contains(&wanted) && !wanted.contains(*name), *name));
    names.truncate(5);
    if names.is_empty() { String::new() } else { format!(". There are: {}", names.join(", ")) }
}

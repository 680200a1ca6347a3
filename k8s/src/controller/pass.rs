//! One look at all Playgrounds that are due: planned together, each given its work.

use super::{
    lead::Leader,
    prepare::{There, prepare},
    tables::{Key, key},
    wanted::{check, wanted},
    work::{Work, Worker},
};
use crate::{
    decide::{self, Draft, Facts, Trouble},
    manifest::Making,
    names, needs,
    plan::{self, Demand, FlavorNeed},
    resources::{Phase, PlaygroundStatus, ReplicaState},
    revision::{Revision, Wanted},
    world::OwnPod,
};
use k8s_openapi::jiff::Timestamp;
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
    known: Vec<Arc<Revision>>,
    waits: Vec<(String, Duration)>,
    draft: Draft,
    needs: Arc<[FlavorNeed]>,
}

impl Leader {
    /// Looks at everything that is due.
    pub(super) fn pass(&mut self) {
        let now = Instant::now();
        let limit = self.config.patience.playgrounds.saturating_sub(self.jobs.len());
        let keys = self.schedule.take(now, limit);
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
        let wanted = wanted(&self.tables, tracked, &known).and_then(|wanted| self.checked(&key, wanted));
        let tracked = self.tables.playgrounds.get(&key)?;
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

    /// Whether an engine can be run on every flavor. A revision's name says all that is in it, so that it is checked once.
    fn checked(&mut self, key: &Key, wanted: Wanted) -> Result<Wanted, Trouble> {
        let Some(tracked) = self.tables.playgrounds.get_mut(key) else { return Ok(wanted) };
        let name = &wanted.revision.name;
        let known = tracked.checked.take().filter(|(checked, _)| checked == name);
        let (name, verdict) = known.unwrap_or_else(|| (name.clone(), check(&wanted.revision.snapshot)));
        tracked.checked = Some((name, verdict.clone()));
        verdict.map(|()| wanted)
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
            refused: tracked.refused.as_ref(),
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
            // Of this revision alone: the others go when these have come.
            let beside: Arc<[Arc<str>]> = looked.draft.occupied().collect();
            for (index, tried) in looked.draft.unplaced(&tracked.memory) {
                let name = &looked.draft.status.replica_states[index].name;
                let key: Arc<str> = format!("{}/{name}", looked.key.0).into();
                let group: Arc<str> = format!("{}/{}", looked.key.0, looked.key.1).into();
                empty.push((which, index, key.clone()));
                let (beside, flavors) = (beside.clone(), looked.needs.clone());
                demand.push(Demand { key, group, beside, flavors, wait_for: tried });
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
        // Nothing of the rest may work, and people have to hear why.
        let mut work = Work { status_first: tracked.refused.is_some(), ..Work::default() };
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
        let Some(tracked) = self.tables.playgrounds.get(key).filter(|_| !work.is_empty()) else { return };
        self.schedule.hold(key.clone());
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

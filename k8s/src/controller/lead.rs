//! The leader's one task: facts in, work out.

use super::{
    Config,
    facts::{self, Fact},
    outcome::{Birth, Done},
    schedule::Schedule,
    tables::{Key, Tables, controller, follow, follow_sole, key, key_of, sole_of},
};
use crate::{
    decide::Trouble,
    mesh::Mesh,
    resources::{Phase, ReplicaState},
    roster::Recorded,
    settings::Patience,
    world::{Concerns, World},
};
use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    runtime::{
        events::{Recorder, Reporter},
        watcher::Event,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Facts that are taken in at once.
const CHUNK: usize = 512;
/// How long work that is under way may take once the end was asked for.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Everything that the leader knows and does.
pub(super) struct Leader {
    pub client: Client,
    pub config: Config,
    pub mesh: Arc<dyn Mesh>,
    pub recorder: Recorder,
    pub world: World,
    pub tables: Tables,
    pub schedule: Schedule,
    pub jobs: JoinSet<Done>,
}

/// Leads until `stop`.
pub(super) async fn lead(client: Client, config: Config, mesh: Arc<dyn Mesh>, stop: CancellationToken) {
    let reporter = Reporter { controller: "dunlin-orchestrator".to_owned(), instance: Some(config.identity.clone()) };
    let facts = facts::all(&client, config.namespace.as_deref());
    let mut leader = Leader {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        config,
        mesh: mesh.clone(),
        world: World::default(),
        tables: Tables::default(),
        schedule: Schedule::default(),
        jobs: JoinSet::new(),
    };
    let mut facts = facts.ready_chunks(CHUNK);
    loop {
        let wake = leader.wake();
        tokio::select! {
            () = stop.cancelled() => break,
            Some(chunk) = facts.next() => chunk.into_iter().for_each(|fact| leader.learn(fact)),
            Some(done) = leader.jobs.join_next(), if !leader.jobs.is_empty() => match done {
                Ok(done) => leader.finish(done),
                Err(error) => tracing::error!(%error, "work on a playground broke off"),
            },
            () = mesh.changed() => leader.look_at_all(),
            () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => leader.pass(),
        }
    }
    // What has been sent is waited for: its outcome belongs into no one's record any more, but half of it is a mess.
    let rest = async { while leader.jobs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_WORK, rest).await;
}

impl Leader {
    /// When there is something to look at, and somebody to do it.
    fn wake(&self) -> Option<Instant> {
        let ready =
            self.tables.is_whole() && self.world.is_whole() && self.jobs.len() < self.config.patience.playgrounds;
        self.schedule.next().filter(|_| ready)
    }

    /// Looks at a Playground after this time, unless it is looked at before.
    pub(super) fn look_in(&mut self, key: Key, wait: Duration) {
        self.schedule.look_at(key, Instant::now() + wait);
    }

    fn look_soon(&mut self, key: Key) {
        self.look_in(key, self.config.patience.debounce);
    }

    fn look_at_all(&mut self) {
        let keys: Vec<Key> = self.tables.playgrounds.keys().cloned().collect();
        keys.into_iter().for_each(|key| self.look_soon(key));
    }

    /// Those that wait for room.
    fn look_at_waiting(&mut self) {
        let waits = |state: &ReplicaState| matches!(state.phase, Phase::Pending | Phase::Placing);
        let waiting =
            self.tables.playgrounds.iter().filter(|(_, tracked)| tracked.status.replica_states.iter().any(waits));
        let keys: Vec<Key> = waiting.map(|(key, _)| key.clone()).collect();
        keys.into_iter().for_each(|key| self.look_soon(key));
    }

    fn look_at_owner(&mut self, uid: Option<&String>) {
        let key = uid.and_then(|uid| self.tables.by_uid.get(uid)).cloned();
        key.into_iter().for_each(|key| self.look_soon(key));
    }

    fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Playground(event) => {
                let changes = self.tables.playground(event);
                for key in &changes.gone {
                    self.mesh.recorded(&key.0, &key.1, None);
                    self.schedule.forget(key);
                }
                for key in changes.seen {
                    self.put_on_roster(&key);
                    self.look_soon(key);
                }
            }
            Fact::Model(event) => {
                follow(&mut self.tables.models, event);
                self.look_at_all();
            }
            Fact::Runtime(event) => {
                follow(&mut self.tables.runtimes, event);
                self.look_at_all();
            }
            Fact::Node(event) => {
                let concerns = self.world.node(*event);
                self.concern(vec![concerns]);
            }
            Fact::Pod(event) => {
                let concerns = self.world.pod(*event);
                self.concern(concerns);
            }
            Fact::Revision(event) => {
                let owner = self.tables.revision(event);
                if let Some(key) = owner.as_ref().and_then(|uid| self.tables.by_uid.get(uid)).cloned() {
                    // It may have come after the status that names it.
                    self.put_on_roster(&key);
                    self.look_soon(key);
                }
            }
            Fact::ConfigMap(event) => self.config_map(event),
            Fact::Policy(event) => {
                let owner = follow_sole(&mut self.tables.policies, event, |object| &object.metadata);
                self.look_at_owner(owner.as_ref());
            }
            Fact::Budget(event) => {
                let owner = follow_sole(&mut self.tables.budgets, event, |object| &object.metadata);
                self.look_at_owner(owner.as_ref());
            }
        }
    }

    /// What is stored of its replicas is what the mesh may let in.
    fn put_on_roster(&self, key: &Key) {
        let Some(tracked) = self.tables.playgrounds.get(key) else { return };
        let ends = tracked.playground.metadata.deletion_timestamp.is_some();
        let recorded = |state: &ReplicaState| {
            let (_, revision) = self.tables.revisions.get(&super::tables::key(Some(&key.0), Some(&state.revision)))?;
            Some(Recorded {
                uid: state.pod_uid.clone()?,
                name: state.name.clone(),
                model: revision.snapshot.model.served_name.clone(),
                peer: state.peer_id.as_deref().and_then(|peer| peer.parse().ok()),
                leaves: ends || matches!(state.phase, Phase::Draining | Phase::Failed),
            })
        };
        let replicas = tracked.stored.replica_states.iter().filter_map(recorded).collect();
        self.mesh.recorded(&key.0, &key.1, Some(replicas));
    }

    fn concern(&mut self, all: Vec<Concerns>) {
        let room = all.iter().any(|concerns| concerns.room);
        for concerns in all {
            self.look_at_owner(concerns.playground.as_ref());
        }
        if room && self.world.is_whole() {
            self.look_at_waiting();
        }
    }

    fn config_map(&mut self, event: Event<kube::core::PartialObjectMeta<k8s_openapi::api::core::v1::ConfigMap>>) {
        let maps = &mut self.tables.config_maps;
        match event {
            Event::Init => maps.begin(),
            Event::InitApply(object) | Event::Apply(object) => {
                if let Some(owner) = controller(&object.metadata) {
                    maps.put(key_of(&object.metadata), owner);
                }
            }
            Event::Delete(object) => {
                let owner = maps.remove(&key_of(&object.metadata));
                self.look_at_owner(owner.as_ref());
            }
            Event::InitDone => drop(maps.finish()),
        }
    }

    fn finish(&mut self, done: Done) {
        let in_namespace = |name: &str| key(Some(&done.key.0), Some(name));
        if let Some(revision) = done.revision {
            self.tables.put_revision(in_namespace(&revision.name), done.uid.clone(), revision);
        }
        if let Some(name) = &done.config_map {
            self.tables.config_maps.put(in_namespace(name), done.uid.clone());
        }
        for name in &done.dropped {
            self.tables.drop_revision(&in_namespace(name));
            self.tables.config_maps.remove(&in_namespace(name));
        }
        if let Some((object, sole)) =
            done.policy.as_ref().and_then(|object| Some((object, sole_of(object, &object.metadata)?)))
        {
            self.tables.policies.put(key_of(&object.metadata), sole);
        }
        if let Some((object, sole)) =
            done.budget.as_ref().and_then(|object| Some((object, sole_of(object, &object.metadata)?)))
        {
            self.tables.budgets.put(key_of(&object.metadata), sole);
        }
        let patience = self.config.patience.clone();
        let Some(tracked) = self.tables.playgrounds.get_mut(&done.key).filter(|tracked| tracked.owner.uid == done.uid)
        else {
            return;
        };
        self.schedule.release(&done.key);
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        if number(&done.version) > number(&tracked.version) {
            tracked.version = done.version;
        }
        if let Some(finalizers) = done.finalizers {
            tracked.playground.metadata.finalizers = Some(finalizers);
        }
        let stored = done.status.is_some();
        if let Some(status) = done.status {
            tracked.stored = status;
            tracked.written = Some(Instant::now());
        }
        let mut changed = false;
        for (name, birth) in done.births {
            changed |= record_birth(tracked, &name, birth, &patience);
        }
        if stored {
            self.put_on_roster(&done.key);
        }
        let Some(tracked) = self.tables.playgrounds.get_mut(&done.key) else { return };
        let metrics = &self.config.metrics;
        let Some(failure) = done.failure else {
            metrics.worked("done");
            tracked.failures = 0;
            if tracked.refused.take().is_some() || changed {
                self.look_soon(done.key);
            }
            return;
        };
        metrics.worked(if failure.conflict { "conflict" } else { "failed" });
        tracked.failures += 1;
        let is_news = failure.refusal.is_some() && tracked.refused.is_none();
        if let Some(reason) = failure.refusal {
            tracked.refused = Some(Trouble::new(reason, failure.message.clone()));
        }
        let wait = patience.retry.saturating_mul(1 << tracked.failures.min(16)).min(patience.retry_most);
        // A conflict is gone as soon as the watch has told what is newer.
        // That it was refused has to be told.
        let soon = (failure.conflict && tracked.failures < 5) || is_news;
        let wait = if soon { patience.debounce * 2 } else { wait / 2 };
        if failure.conflict {
            tracing::debug!(namespace = %done.key.0, name = %done.key.1, message = failure.message, "somebody else was faster");
        } else {
            tracing::warn!(namespace = %done.key.0, name = %done.key.1, message = failure.message, "a call failed, and is tried again");
        }
        self.look_in(done.key, wait);
    }
}

/// Notes what came of creating a pod. Returns whether there is something to write.
fn record_birth(tracked: &mut super::tables::Tracked, name: &str, birth: Birth, patience: &Patience) -> bool {
    let now = Timestamp::now();
    let states = &mut tracked.status.replica_states;
    let Some(index) = states.iter().position(|state| state.name == name) else { return false };
    match birth {
        Birth::Created(uid) => {
            tracked.memory.created(name, &uid, now);
            let state = &mut states[index];
            state.pod_uid = Some(uid);
            if state.phase == Phase::Pending {
                state.phase = Phase::Placing;
                state.since = Some(crate::decide::stamp(now));
            }
            if state.reason.as_deref() != Some("NoRoom") {
                state.reason = None;
                state.message = None;
            }
        }
        // Its successor takes another name.
        Birth::Taken => {
            tracing::warn!(
                pod = name,
                "there is a pod of that name that is not on record; the replica takes another name"
            );
            states.remove(index);
        }
        Birth::Refused(failure) => {
            tracked.memory.refused(name, now, patience);
            let state = &mut states[index];
            state.phase = Phase::Pending;
            state.reason = failure.refusal.map(str::to_owned);
            state.message = Some(crate::decide::cut(&failure.message));
        }
    }
    true
}

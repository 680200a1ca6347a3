//! The calls for one Playground, in an order in which being killed between any two does no harm.

use super::outcome::{Birth, Done, Failure};
use crate::{
    decide::Ending,
    manifest::Owner,
    mesh::Mesh,
    names,
    resources::{GROUP, Playground, PlaygroundStatus, ReplicaState, VERSION},
    revision::Revision,
    settings::Patience,
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, ObjectReference, Pod},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::{Value, json};
use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};

/// Longest wait until memberships of pods that have gone are ended; that goes on by itself.
const REVOCATION: Duration = Duration::from_secs(3);

/// What is to be done.
#[derive(Default)]
pub(super) struct Work {
    /// Its finalizers, if they are to change.
    pub finalizers: Option<Vec<String>>,
    /// A new revision, as an object and as it is known here.
    pub revision: Option<(ControllerRevision, Arc<Revision>)>,
    pub config_map: Option<ConfigMap>,
    pub policy: Option<NetworkPolicy>,
    pub budget: Option<PodDisruptionBudget>,
    pub status: Option<PlaygroundStatus>,
    /// Write the status before everything else.
    pub status_first: bool,
    pub endings: Vec<Ending>,
    /// Peers whose pods have gone: their memberships end before the record forgets them.
    pub revoked: Vec<String>,
    pub births: Vec<(ReplicaState, Box<Pod>)>,
    /// Names of revisions that may go.
    pub surplus: Vec<String>,
    pub news: Vec<(bool, String, String)>,
    /// Take the finalizer away once all of that is done.
    pub leave: bool,
    /// The finalizers of others, which stay then.
    pub others: Vec<String>,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.finalizers.is_none()
            && self.revision.is_none()
            && self.config_map.is_none()
            && self.policy.is_none()
            && self.budget.is_none()
            && self.status.is_none()
            && self.endings.is_empty()
            && self.revoked.is_empty()
            && self.births.is_empty()
            && self.surplus.is_empty()
            && self.news.is_empty()
            && !self.leave
    }
}

/// Who makes the calls, for whom.
pub(super) struct Worker {
    pub client: Client,
    pub owner: Owner,
    pub version: String,
    pub patience: Patience,
    pub recorder: Recorder,
    pub mesh: Arc<dyn Mesh>,
}

impl Worker {
    /// Does what is to be done, as far as it gets.
    pub(super) async fn carry_out(mut self, work: Work) -> Done {
        let mut done = Done::new(&self.owner);
        if let Err(failure) = self.steps(work, &mut done).await {
            done.failure = Some(failure);
        }
        done.version.clone_from(&self.version);
        done
    }

    async fn steps(&mut self, mut work: Work, done: &mut Done) -> Result<(), Failure> {
        let playgrounds: Api<Playground> = self.api();
        if let Some(status) = work.status.take_if(|_| work.status_first) {
            self.write_status(&playgrounds, &status).await?;
            done.status = Some(status);
        }
        self.revoke(&work.revoked).await;
        if let Some(finalizers) = &work.finalizers {
            self.set_finalizers(&playgrounds, finalizers).await?;
            done.finalizers = Some(finalizers.clone());
        }
        if let Some((object, revision)) = work.revision {
            self.create_ours(object).await?;
            done.revision = Some(revision);
        }
        if let Some(object) = work.config_map {
            let name = object.metadata.name.clone();
            self.create_ours(object).await?;
            done.config_map = name;
        }
        if let Some(object) = &work.policy {
            done.policy = Some(self.apply(object).await?);
        }
        if let Some(object) = &work.budget {
            done.budget = Some(self.apply(object).await?);
        }
        if let Some(status) = work.status {
            self.write_status(&playgrounds, &status).await?;
            done.status = Some(status);
        }
        self.end(&work.endings, done).await?;
        self.create(work.births, done).await?;
        for name in &work.surplus {
            self.call(delete::<ControllerRevision>(&self.api(), name)).await?;
            self.call(delete::<ConfigMap>(&self.api(), name)).await?;
            done.dropped.push(name.clone());
        }
        self.publish(&work.news).await;
        if work.leave {
            self.set_finalizers(&playgrounds, &work.others).await?;
        }
        Ok(())
    }

    /// A mesh that is away does not keep pods from coming and going: who has no pod has no token, and a certificate that
    /// ends by itself.
    async fn revoke(&self, peers: &[String]) {
        let all = futures::future::join_all(peers.iter().map(|peer| self.mesh.revoke(peer)));
        if !tokio::time::timeout(REVOCATION, all).await.is_ok_and(|ended| ended.into_iter().all(|ended| ended)) {
            tracing::warn!(namespace = %self.owner.namespace, name = %self.owner.name, "memberships of pods that have gone are not ended yet");
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.owner.namespace)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.patience.call, call).await {
            Ok(result) => result.map_err(Failure::of),
            Err(_) => Err(Failure::unanswered()),
        }
    }

    fn params() -> PatchParams {
        PatchParams::apply(names::MANAGER).force()
    }

    fn post() -> PostParams {
        PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() }
    }

    /// Takes the version along, so that nothing newer is overwritten.
    async fn set_finalizers(&mut self, playgrounds: &Api<Playground>, finalizers: &[String]) -> Result<(), Failure> {
        let patch = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": self.version } });
        let params = PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        let written = self.call(playgrounds.patch_metadata(&self.owner.name, &params, &Patch::Merge(patch))).await?;
        self.version = written.metadata.resource_version.unwrap_or_default();
        Ok(())
    }

    async fn write_status(&mut self, playgrounds: &Api<Playground>, status: &PlaygroundStatus) -> Result<(), Failure> {
        let patch = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Playground",
            "metadata": { "name": self.owner.name, "resourceVersion": self.version }, "status": status,
        });
        let written =
            self.call(playgrounds.patch_status(&self.owner.name, &Self::params(), &Patch::Apply(patch))).await?;
        self.version = written.metadata.resource_version.unwrap_or_default();
        Ok(())
    }

    /// Creates what has a name of its own. One that is there already is taken only if it is this Playground's.
    async fn create_ours<K>(&self, object: K) -> Result<(), Failure>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + Debug,
    {
        let api: Api<K> = self.api();
        let name = object.meta().name.clone().unwrap_or_default();
        match self.call(api.create(&Self::post(), &object)).await {
            Err(failure) if failure.exists => {}
            result => return result.map(drop),
        }
        let found = self.call(api.get_metadata(&name)).await?;
        if self.owner.controls(found.metadata.owner_references.as_ref()) {
            return Ok(());
        }
        let kind = K::kind(&());
        Err(Failure::refused(
            "NameTaken",
            format!("there is a {kind} {name:?} that belongs to somebody else: delete it, or rename the Playground"),
        ))
    }

    async fn apply<K>(&self, object: &K) -> Result<K, Failure>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + serde::Serialize
            + serde::de::DeserializeOwned
            + Clone
            + Debug,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        let mut value = serde_json::to_value(object).unwrap_or_default();
        value["apiVersion"] = Value::from(K::api_version(&()));
        value["kind"] = Value::from(K::kind(&()));
        self.call(self.api::<K>().patch(&name, &Self::params(), &Patch::Apply(value))).await
    }

    async fn end(&self, endings: &[Ending], done: &mut Done) -> Result<(), Failure> {
        let pods: Api<Pod> = self.api();
        let mut calls: Vec<BoxFuture<'_, Result<(), Failure>>> = Vec::new();
        for ending in endings {
            let pods = &pods;
            calls.push(async move { self.call(end(pods, ending)).await.or_else(Failure::or_gone) }.boxed());
        }
        let results: Vec<_> = stream::iter(calls).buffer_unordered(self.patience.pods).collect().await;
        done.ended = results.iter().filter(|result| result.is_ok()).count();
        results.into_iter().collect()
    }

    async fn create(&self, births: Vec<(ReplicaState, Box<Pod>)>, done: &mut Done) -> Result<(), Failure> {
        let pods: Api<Pod> = self.api();
        let mut calls: Vec<BoxFuture<'_, (String, Result<Birth, Failure>)>> = Vec::new();
        for (state, pod) in births {
            let pods = &pods;
            calls.push(async move { (state.name.clone(), self.bear(pods, &state.name, &pod).await) }.boxed());
        }
        let mut calls = stream::iter(calls).buffer_unordered(self.patience.pods);
        let mut failed = Ok(());
        while let Some((name, birth)) = calls.next().await {
            match birth {
                Ok(birth) => done.births.push((name, birth)),
                Err(failure) => failed = Err(failure),
            }
        }
        failed
    }

    async fn bear(&self, pods: &Api<Pod>, name: &str, pod: &Pod) -> Result<Birth, Failure> {
        match self.call(pods.create(&Self::post(), pod)).await {
            Ok(pod) => Ok(Birth::Created(pod.metadata.uid.unwrap_or_default())),
            Err(failure) if failure.exists => self.clear(pods, name).await.map(|()| Birth::Taken),
            Err(failure) if failure.refusal.is_some() => Ok(Birth::Refused(failure)),
            Err(failure) => Err(failure),
        }
    }

    /// There is a pod of that name, and its uid is not on record. It is not adopted, whatever it looks like: one that
    /// names this Playground as its controller goes, one of somebody else stays, and the replica takes another name.
    async fn clear(&self, pods: &Api<Pod>, name: &str) -> Result<(), Failure> {
        let Some(found) = self.call(pods.get_metadata_opt(name)).await? else { return Ok(()) };
        if !self.owner.controls(found.metadata.owner_references.as_ref()) {
            return Ok(());
        }
        let ending = Ending { name: name.to_owned(), uid: found.metadata.uid.unwrap_or_default() };
        self.call(end(pods, &ending)).await.or_else(Failure::or_gone)
    }

    /// Events are a courtesy: without them the status says it all.
    async fn publish(&self, news: &[(bool, String, String)]) {
        let reference = ObjectReference {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some("Playground".to_owned()),
            namespace: Some(self.owner.namespace.clone()),
            name: Some(self.owner.name.clone()),
            uid: Some(self.owner.uid.clone()),
            ..ObjectReference::default()
        };
        for (bad, reason, message) in news {
            let event = Event {
                type_: if *bad { EventType::Warning } else { EventType::Normal },
                reason: reason.clone(),
                note: Some(message.clone()),
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            if let Err(failure) = self.call(self.recorder.publish(&event, &reference)).await {
                tracing::debug!(message = failure.message, "an event could not be published");
            }
        }
    }
}

async fn end(pods: &Api<Pod>, ending: &Ending) -> Result<(), kube::Error> {
    let preconditions = Preconditions { uid: Some(ending.uid.clone()), ..Preconditions::default() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    pods.delete(&ending.name, &params).await.map(drop)
}

async fn delete<K>(api: &Api<K>, name: &str) -> Result<(), kube::Error>
where
    K: serde::de::DeserializeOwned + Clone + Debug,
{
    match api.delete(name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}

//! Jobs over the mesh: what operators ask for becomes Playgrounds, and what they see of jobs is read from there. Nothing is
//! kept here, so that any orchestrator of the cluster answers alike.

pub mod logs;
mod names;
pub mod routes;
mod source;
mod view;

use crate::{
    names as objects,
    resources::{Flavor, Model, ModelSpec, Playground, PlaygroundSpec, REPLICAS, RuntimeChoice},
    rollout,
};
use dunlin_protocol::{
    jobs::{AddModel, Deploy, Job, JobModel, JobName, JobRevision, Rollout, RolloutState, RolloutStatus},
    pattern::Pattern,
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{DynamicObject, GroupVersionKind},
    discovery::ApiResource,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// Objects in one listing.
const LISTING: u32 = 2_000;
/// Until an answer of the API server.
const CALL: Duration = Duration::from_secs(20);
/// Who owns the fields that come over the mesh.
const MANAGER: &str = "dunlin-jobs";

/// Models that are made when somebody deploys them, and on what they run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoModels {
    /// Repositories of Hugging Face.
    pub allow: Vec<Pattern>,
    /// Their flavors.
    pub flavors: Vec<Flavor>,
}

/// Why an operator did not get what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It asked for something that makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// There is no such thing.
    #[error("{0}")]
    Missing(String),
    /// It is there already, or was changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// Not in its namespaces.
    #[error(
        "this member may not operate in namespace {0}; `dunlin invite --role operator --namespace {0}` makes one that may"
    )]
    Forbidden(String),
    /// The API server refused, or failed.
    #[error("the cluster says: {0}")]
    Cluster(String),
    /// It did not answer.
    #[error("the cluster did not answer within {} s", CALL.as_secs())]
    Silent,
}

/// The jobs of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    client: Client,
    cluster: String,
    /// The only namespace that is looked after; all of them if not set.
    namespace: Option<String>,
    auto: AutoModels,
}

impl Jobs {
    /// The jobs of `cluster`, which operators know by that name; of one namespace only, if its orchestrator looks after no
    /// other.
    #[must_use]
    pub fn new(client: Client, cluster: String, namespace: Option<String>, auto: AutoModels) -> Self {
        Self { client, cluster, namespace, auto }
    }

    /// All of them in the namespaces that `may` see.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list(&self, may: impl Fn(&str) -> bool) -> Result<Vec<Job>, Error> {
        let all = match &self.namespace {
            Some(namespace) => self.playgrounds(namespace),
            None => Api::all(self.client.clone()),
        };
        let listed = call(all.list(&ListParams::default().limit(LISTING))).await?;
        let seen = |playground: &Playground| playground.metadata.namespace.as_deref().is_some_and(&may);
        Ok(listed
            .items
            .iter()
            .filter(|playground| seen(playground))
            .map(|one| view::job(one, &self.cluster, false))
            .collect())
    }

    /// One, with its replicas.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn job(&self, namespace: &str, name: &str) -> Result<Job, Error> {
        Ok(view::job(&self.playground(namespace, name).await?, &self.cluster, true))
    }

    async fn playground(&self, namespace: &str, name: &str) -> Result<Playground, Error> {
        let found = call(self.playgrounds(namespace).get_opt(name)).await?;
        found.ok_or_else(|| Error::Missing(format!("there is no job {}/{namespace}/{name}", self.cluster)))
    }

    fn playgrounds(&self, namespace: &str) -> Api<Playground> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes a job, or changes the one of the same name as far as the order says something.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn deploy(&self, order: &Deploy) -> Result<Job, Error> {
        let replicas = order.replicas.map(replicas).transpose()?;
        let model = self.model(&order.model).await?;
        let name = order.name.clone().unwrap_or_else(|| names::job(&order.model));
        let spec = PlaygroundSpec {
            model: Some(model),
            replicas: replicas.unwrap_or(1),
            runtime: order
                .runtime
                .as_ref()
                .map(|name| RuntimeChoice { name: name.clone(), ..RuntimeChoice::default() }),
            flavors: order.flavors.clone(),
            ..PlaygroundSpec::nothing()
        };
        let playgrounds = self.playgrounds(&order.namespace);
        match call(playgrounds.create(&Self::post(), &Playground::new(&name, spec))).await {
            Ok(made) => Ok(view::job(&made, &self.cluster, true)),
            Err(Error::Conflict(_)) => self.change(order, &name, replicas).await,
            Err(other) => Err(other),
        }
    }

    /// A job of that name is there.
    async fn change(&self, order: &Deploy, name: &str, replicas: Option<i32>) -> Result<Job, Error> {
        let there = self.playground(&order.namespace, name).await?;
        let wanted = self.model(&order.model).await?;
        let served = there.spec.main_model().unwrap_or_default();
        if served != wanted && served != order.model {
            return Err(Error::Conflict(format!(
                "there is a job {name} already, which serves {served}: give this one another name with --name"
            )));
        }
        let mut spec = json!({});
        let set = [
            ("replicas", replicas.map(Value::from)),
            ("runtime", order.runtime.as_ref().map(|name| json!({ "name": name }))),
            ("flavors", (!order.flavors.is_empty()).then(|| json!(order.flavors))),
        ];
        for (field, value) in set {
            value.into_iter().for_each(|value| spec[field] = value);
        }
        self.merge(&order.namespace, name, &json!({ "spec": spec })).await
    }

    /// The name of a model's object; made if it may be.
    async fn model(&self, asked: &str) -> Result<String, Error> {
        match self.known_model(asked).await {
            Ok(model) => Ok(model.metadata.name.unwrap_or_default()),
            Err(Error::Missing(_)) if self.makes(asked) => {
                let order =
                    AddModel { served: asked.to_owned(), source: format!("hf://{asked}"), ..AddModel::default() };
                match self.add(&order).await {
                    // Somebody else was faster.
                    Err(Error::Conflict(_)) => Ok(objects::model(asked)),
                    made => made,
                }
            }
            Err(other) => Err(other),
        }
    }

    fn makes(&self, asked: &str) -> bool {
        !self.auto.flavors.is_empty() && self.auto.allow.iter().any(|pattern| pattern.matches(asked))
    }

    /// A model by what it serves, or by the name of its object.
    async fn known_model(&self, asked: &str) -> Result<Model, Error> {
        let models = Api::<Model>::all(self.client.clone());
        let mut listed = call(models.list(&ListParams::default().limit(LISTING))).await?.items;
        let is_it = |model: &Model| model.spec.served_name == asked || model.metadata.name.as_deref() == Some(asked);
        if let Some(index) = listed.iter().position(is_it) {
            return Ok(listed.swap_remove(index));
        }
        let near = names::near(asked, listed.iter().map(|model| model.spec.served_name.as_str()));
        let hint = if near.is_empty() {
            "`dunlin models list` shows those that there are".to_owned()
        } else {
            format!("did you mean {}?", near.join(", "))
        };
        Err(Error::Missing(format!("cluster {} knows no model {asked}: {hint}", self.cluster)))
    }

    /// The models that there are.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn models(&self) -> Result<Vec<JobModel>, Error> {
        let models = Api::<Model>::all(self.client.clone());
        let listed = call(models.list(&ListParams::default().limit(LISTING))).await?;
        Ok(listed.items.iter().map(|model| view::model(model, &self.cluster)).collect())
    }

    /// How many replicas there shall be.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn scale(&self, namespace: &str, name: &str, count: u32) -> Result<Job, Error> {
        self.merge(namespace, name, &json!({ "spec": { "replicas": replicas(count)? } })).await
    }

    /// Replaces the replicas, waits with that, goes on, or goes back.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn rollout(&self, namespace: &str, name: &str, what: Rollout, now: Timestamp) -> Result<Job, Error> {
        self.playground(namespace, name).await?;
        let client = &self.client;
        let steered = async {
            match what {
                Rollout::Restart => rollout::restart(client, namespace, name, &now.to_string()).await,
                Rollout::Pause => rollout::pause(client, namespace, name, true).await,
                Rollout::Resume => rollout::pause(client, namespace, name, false).await,
                Rollout::Undo { to } => rollout::undo(client, namespace, name, to.as_deref()).await.map(drop),
            }
        };
        timeout(CALL, steered).await.map_err(|_| Error::Silent)?.map_err(|error| match error {
            rollout::Error::Api(error) => refused(error),
            rollout::Error::Malformed(error) => Error::Cluster(error.to_string()),
            none => Error::Missing(none.to_string()),
        })?;
        self.job(namespace, name).await
    }

    /// Where an update stands.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn progress(&self, namespace: &str, name: &str) -> Result<RolloutStatus, Error> {
        let playground = self.playground(namespace, name).await?;
        let history = timeout(CALL, rollout::history(&self.client, namespace, name)).await;
        let history = history.map_err(|_| Error::Silent)?.map_err(|error| Error::Cluster(error.to_string()))?;
        let (state, message) = match rollout::progress(&playground) {
            rollout::Progress::Unseen => (RolloutState::Unseen, "the last change is not seen yet".to_owned()),
            rollout::Progress::Done => (RolloutState::Done, "every replica is of the newest revision".to_owned()),
            rollout::Progress::Going(message) => (RolloutState::Going, message),
            rollout::Progress::Stuck(message) => (RolloutState::Stuck, message),
        };
        let current = playground.status.map(|status| status.revision).unwrap_or_default();
        let revision = |revision: crate::revision::Revision| JobRevision {
            number: revision.number,
            current: revision.name == current,
            name: revision.name,
        };
        Ok(RolloutStatus { state, message, revisions: history.into_iter().map(revision).collect() })
    }

    /// Makes a Model, with the flavors of another.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn add(&self, order: &AddModel) -> Result<String, Error> {
        let source = source::of(&order.source, order.file.as_deref()).map_err(Error::Wrong)?;
        let flavors = match &order.flavors_of {
            None if self.auto.flavors.is_empty() => {
                let hint = "say whose flavors the model gets, with --flavors-of MODEL, or apply a manifest of it";
                return Err(Error::Wrong(hint.to_owned()));
            }
            None => self.auto.flavors.clone(),
            Some(other) => self.known_model(other).await?.spec.flavors,
        };
        let name = objects::model(&order.served);
        let spec = ModelSpec {
            served_name: order.served.clone(),
            family: None,
            source,
            secret_name: None,
            preheat: false,
            flavors,
        };
        let models = Api::<Model>::all(self.client.clone());
        call(models.create(&Self::post(), &Model::new(&name, spec))).await?;
        Ok(name)
    }

    fn post() -> PostParams {
        PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
    }

    async fn merge(&self, namespace: &str, name: &str, change: &Value) -> Result<Job, Error> {
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let changed = call(self.playgrounds(namespace).patch(name, &params, &Patch::Merge(change))).await?;
        Ok(view::job(&changed, &self.cluster, true))
    }

    /// Ends a job; its replicas finish their requests.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete(&self, namespace: &str, name: &str) -> Result<JobName, Error> {
        self.playground(namespace, name).await?;
        call(self.playgrounds(namespace).delete(name, &DeleteParams::default())).await?;
        Ok(JobName { cluster: self.cluster.clone(), namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Applies a Playground or, if `may` operate everywhere, a Model, as `kubectl apply --server-side` does.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn apply(&self, object: &Value, may: impl Fn(&str) -> bool) -> Result<String, Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let kind = text("/kind").unwrap_or_default();
        let name = text("/metadata/name").ok_or_else(|| Error::Wrong("metadata.name is missing".to_owned()))?;
        let namespace = match kind {
            "Playground" => Some(text("/metadata/namespace").unwrap_or(dunlin_protocol::jobs::DEFAULT_NAMESPACE)),
            "Model" => None,
            other => {
                return Err(Error::Wrong(format!(
                    "{other:?} can't be applied over the mesh: only Playground and Model can"
                )));
            }
        };
        if text("/apiVersion") != Some("dunlin.dev/v1alpha1") {
            return Err(Error::Wrong("apiVersion must be dunlin.dev/v1alpha1".to_owned()));
        }
        let scope = namespace.unwrap_or(dunlin_protocol::certificate::EVERY_NAMESPACE);
        if !may(scope) {
            return Err(Error::Forbidden(scope.to_owned()));
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("dunlin.dev", "v1alpha1", kind));
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        // Whoever says it over the mesh means it, whoever set a field before: so does `dunlin scale`.
        call(api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object))).await?;
        Ok(format!("{}/{name}", kind.to_lowercase()))
    }
}

fn replicas(count: u32) -> Result<i32, Error> {
    match i32::try_from(count) {
        Ok(count) if count <= REPLICAS => Ok(count),
        _ => Err(Error::Wrong(format!("{count} replicas; a job has {REPLICAS} at most"))),
    }
}

async fn call<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    timeout(CALL, answer).await.map_err(|_| Error::Silent)?.map_err(refused)
}

fn refused(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.code == 409 => Error::Conflict(status.message.clone()),
        kube::Error::Api(status) if status.code == 404 => Error::Missing(status.message.clone()),
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => Error::Wrong(status.message.clone()),
        other => Error::Cluster(other.to_string()),
    }
}

//! The watches, as one stream.

use crate::{
    names,
    resources::{BackendRuntime, Model, Playground},
};
use futures::{Stream, StreamExt, stream::SelectAll};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Node, Pod},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject},
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, pin::Pin};

/// Something that a watch said.
pub(super) enum Fact {
    /// Custom objects come unread: one that can't be read must not hide the others.
    Playground(Event<DynamicObject>),
    Model(Event<DynamicObject>),
    Runtime(Event<DynamicObject>),
    Node(Box<Event<Node>>),
    Pod(Box<Event<Pod>>),
    Revision(Event<ControllerRevision>),
    ConfigMap(Event<PartialObjectMeta<ConfigMap>>),
    Policy(Event<NetworkPolicy>),
    Budget(Event<PodDisruptionBudget>),
}

type Facts = Pin<Box<dyn Stream<Item = Fact> + Send>>;

/// All watches. They end never: what fails is tried again, ever more slowly.
pub(super) fn all(client: &Client, namespace: Option<&str>) -> SelectAll<Facts> {
    let custom = |resource: ApiResource, namespaced: bool| {
        let api: Api<DynamicObject> = match namespace.filter(|_| namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        watcher(api, watcher::Config::default()).default_backoff()
    };
    let ours = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER));
    let plain = watcher::Config::default();
    let mut all = SelectAll::new();
    let playgrounds = custom(ApiResource::erase::<Playground>(&()), true);
    all.push(facts("playgrounds", playgrounds, Fact::Playground));
    all.push(facts("models", custom(ApiResource::erase::<Model>(&()), false), Fact::Model));
    all.push(facts("backendruntimes", custom(ApiResource::erase::<BackendRuntime>(&()), false), Fact::Runtime));
    all.push(facts("nodes", watcher(Api::all(client.clone()), plain.clone()).default_backoff(), |event| {
        Fact::Node(Box::new(event))
    }));
    all.push(facts("pods", watcher(Api::all(client.clone()), plain).default_backoff(), |event| {
        Fact::Pod(Box::new(event))
    }));
    all.push(facts("controllerrevisions", own(client, namespace, ours.clone()), Fact::Revision));
    all.push(facts("configmaps", own(client, namespace, ours.clone()), Fact::ConfigMap));
    all.push(facts("networkpolicies", own(client, namespace, ours.clone()), Fact::Policy));
    all.push(facts("poddisruptionbudgets", own(client, namespace, ours), Fact::Budget));
    all
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn own<K>(
    client: &Client,
    namespace: Option<&str>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api(client, namespace), config).default_backoff()
}

fn facts<K: Send + 'static>(
    what: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    fact: impl Fn(Event<K>) -> Fact + Send + Copy + 'static,
) -> Facts {
    let events = events.filter_map(move |event| async move {
        match event {
            Ok(event) => Some(fact(event)),
            Err(error) => {
                tracing::warn!(what, %error, "a watch is interrupted, and tried again");
                None
            }
        }
    });
    events.boxed()
}

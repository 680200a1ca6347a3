//! The watches, as one stream.

use crate::{
    names,
    resources::{BackendRuntime, Model, Playground},
};
use futures::{
    FutureExt, Stream, StreamExt,
    future::ready,
    stream::{self, SelectAll},
};
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
use std::{fmt::Debug, pin::Pin, time::Duration};

/// Before a watch begins anew whose start lay too far back.
const ANEW: Duration = Duration::from_secs(1);

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

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;
type Facts = Pin<Box<dyn Stream<Item = Fact> + Send>>;

/// All watches. They end never: what fails is tried again, ever more slowly.
pub(super) fn all(client: &Client, namespace: Option<&str>) -> SelectAll<Facts> {
    let custom = |resource: ApiResource, namespaced: bool| {
        let api: Api<DynamicObject> = match namespace.filter(|_| namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        move || watcher(api.clone(), watcher::Config::default()).default_backoff()
    };
    let plain = watcher::Config::default();
    let mut all = SelectAll::new();
    let playgrounds = custom(ApiResource::erase::<Playground>(&()), true);
    all.push(facts("playgrounds", playgrounds, Fact::Playground));
    all.push(facts("models", custom(ApiResource::erase::<Model>(&()), false), Fact::Model));
    all.push(facts("backendruntimes", custom(ApiResource::erase::<BackendRuntime>(&()), false), Fact::Runtime));
    let nodes = watched(Api::all(client.clone()), plain.clone());
    all.push(facts("nodes", nodes, |event| Fact::Node(Box::new(event))));
    let pods = watched(Api::all(client.clone()), plain);
    all.push(facts("pods", pods, |event| Fact::Pod(Box::new(event))));
    all.push(facts("controllerrevisions", own(client, namespace), Fact::Revision));
    all.push(facts("configmaps", own(client, namespace), Fact::ConfigMap));
    all.push(facts("networkpolicies", own(client, namespace), Fact::Policy));
    all.push(facts("poddisruptionbudgets", own(client, namespace), Fact::Budget));
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

/// Only what this program made.
fn ours() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER))
}

fn watched<K>(api: Api<K>, config: watcher::Config) -> impl Fn() -> Events<K> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    move || watcher(api.clone(), config.clone()).default_backoff().boxed()
}

fn own<K>(client: &Client, namespace: Option<&str>) -> impl Fn() -> Events<K> + Send + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watched(api(client, namespace), ours())
}

/// One watch, as facts. `watch` begins it; a server that does not remember far enough back may refuse to go on, and then it
/// begins anew, which the library does only if that is said in an event.
fn facts<K, E>(
    what: &'static str,
    watch: impl Fn() -> E + Send + 'static,
    fact: impl Fn(Event<K>) -> Fact + Send + Copy + 'static,
) -> Facts
where
    K: Send + 'static,
    E: Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
{
    let rounds = stream::repeat_with(move || {
        let events = watch().flat_map(|event| {
            let end = event.as_ref().is_err_and(is_gone).then(|| tokio::time::sleep(ANEW).map(|()| None).into_stream());
            stream::once(ready(Some(event))).chain(stream::iter(end).flatten())
        });
        events.take_while(|event| ready(event.is_some())).filter_map(ready).boxed()
    });
    let events = rounds.flatten().filter_map(move |event| async move {
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

/// Whether a watch was refused because its start lies too far back.
fn is_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

//! A small Kubernetes API server in memory, for tests of the orchestrator.
//!
//! It speaks the real protocol, so that the real client, its watches and its retries are what is tested: resource
//! versions, uids, generations, label selectors, pages, watches with bookmarks and `410 Gone`, the status and scale
//! subresources, finalizers, garbage collection by owner, server-side apply with ownership of leaves, leases, quotas on
//! pods, token reviews, and the schemas and rules (CEL) of custom resources. What it is not: a scheduler or a kubelet
//! ([`simulate`] plays those), nor complete.
//!
//! Every call can be seen ([`Fake::calls`]), forbidden ([`Fake::allow`]), and made to fail, to hang before it works, or to hang after
//! ([`Fake::on_call`]), which is how a process is killed between any two calls.

mod apply;
mod call;
mod fields;
mod kinds;
mod pods;
mod reply;
mod respond;
mod schema;
mod select;
mod server;
pub mod simulate;
mod store;
mod watch;

pub use call::{Call, Fate, Verb};

use http::Request;
use http_body_util::combinators::BoxBody;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Client, client::Body};
use serde_json::Value;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use store::Store;

/// Body of an answer.
pub type ReplyBody = BoxBody<bytes::Bytes, Infallible>;
type Hook = Box<dyn FnMut(&Call) -> Fate + Send>;
type Rights = Box<dyn FnMut(&Call) -> bool + Send>;

/// The server. Clones are the same one.
#[derive(Clone)]
pub struct Fake {
    store: Arc<Mutex<Store>>,
    gate: Arc<Mutex<Gate>>,
}

#[derive(Default)]
struct Gate {
    calls: Vec<Call>,
    down: bool,
    hook: Option<Hook>,
    rights: Option<Rights>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// An empty cluster with the built-in kinds that an orchestrator meets, and these custom ones.
    #[must_use]
    pub fn new(crds: &[CustomResourceDefinition]) -> Self {
        let mut store = Store::default();
        for crd in crds {
            let crd = serde_json::to_value(crd).unwrap_or_default();
            store.kinds.add_crd(&crd);
        }
        Self { store: Arc::new(Mutex::new(store)), gate: Arc::default() }
    }

    /// A client of it, in namespace `default`, whose calls carry this name. Must be called inside a runtime.
    #[must_use]
    pub fn client(&self, name: &'static str) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move { respond::answer(&fake, request, name).await }
        });
        Client::new(service, "default")
    }

    /// Serves it on a socket until the task is dropped, for clients in other processes.
    ///
    /// # Errors
    /// The socket can't be used.
    pub async fn serve(self, listener: tokio::net::TcpListener) -> std::io::Result<()> {
        server::serve(self, listener).await
    }

    /// All calls so far that were not watches, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.gate).calls.clone()
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        lock(&self.gate).calls.clear();
    }

    /// Decides what becomes of each call from now on.
    pub fn on_call(&self, hook: impl FnMut(&Call) -> Fate + Send + 'static) {
        lock(&self.gate).hook = Some(Box::new(hook));
    }

    /// Every call works again.
    pub fn all_well(&self) {
        lock(&self.gate).hook = None;
    }

    /// Decides who may do what from now on: what this refuses is forbidden. An apply that makes an object asks for `create`
    /// beside `patch`, as on a real server.
    pub fn allow(&self, rights: impl FnMut(&Call) -> bool + Send + 'static) {
        lock(&self.gate).rights = Some(Box::new(rights));
    }

    /// Whether the server can be reached. Going down ends all watches.
    pub fn set_down(&self, down: bool) {
        lock(&self.gate).down = down;
        if down {
            lock(&self.store).watches.close();
        }
    }

    /// Forgets the history: running watches end with `410 Gone`, and none can start from before now.
    pub fn expire_watches(&self) {
        lock(&self.store).expire_watches();
    }

    /// The version of the newest change.
    #[must_use]
    pub fn version(&self) -> u64 {
        lock(&self.store).version()
    }

    /// Number of watches that are open.
    #[must_use]
    pub fn open_watches(&self) -> usize {
        lock(&self.store).watches.open()
    }

    /// Whether objects go when their owners have gone. On unless turned off.
    pub fn collect_garbage(&self, on: bool) {
        lock(&self.store).collects_garbage = on;
    }

    /// Puts objects in as they are, past every check and without a word in the history: for large clusters.
    pub fn load(&self, plural: &str, objects: impl IntoIterator<Item = Value>) {
        lock(&self.store).load(plural, objects);
    }

    /// An object as it is stored, for assertions.
    #[must_use]
    pub fn stored(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        lock(&self.store).stored(plural, namespace, name)
    }

    /// How many objects of a kind are such.
    #[must_use]
    pub fn count(&self, plural: &str, is: impl Fn(&Value) -> bool) -> usize {
        lock(&self.store).count(plural, is)
    }

    /// All objects of a kind as they are stored, in order of namespace and name.
    #[must_use]
    pub fn all(&self, plural: &str) -> Vec<Value> {
        lock(&self.store).all(plural)
    }
}

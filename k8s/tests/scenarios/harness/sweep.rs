//! What is taken off a real server after a scenario.

use super::{Cluster, client_of, kubeconfig};
use dunlin_k8s::resources::{BackendRuntime, Model, Playground};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

impl Drop for Cluster {
    /// A scenario that failed leaves nothing on a real server either.
    fn drop(&mut self) {
        self.simulation.abort();
        let (Some(path), false) = (kubeconfig(), self.swept || self.fake.is_some()) else { return };
        let namespace = self.namespace.clone();
        // The client belongs to a runtime that stands still now.
        let swept = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { sweep(&client_of(&path).await, &namespace).await });
        });
        let _ = swept.join();
    }
}

/// Takes a scenario's objects off a real server: its namespace with all that would hold that up, where nobody else ends
/// pods of nodes that don't exist, and what is called like the namespace.
pub(super) async fn sweep(client: &Client, namespace: &str) {
    let (all, now) = (ListParams::default(), DeleteParams::background());
    let playgrounds: Api<Playground> = Api::namespaced(client.clone(), namespace);
    for playground in playgrounds.list(&all).await.into_iter().flatten() {
        let unheld = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = playgrounds.patch(&playground.name_any(), &PatchParams::default(), &unheld).await;
        let _ = playgrounds.delete(&playground.name_any(), &now).await;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&all).await.into_iter().flatten() {
        let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    }
    let _ = Api::<Namespace>::all(client.clone()).delete(namespace, &now).await;
    delete_called(&Api::<Node>::all(client.clone()), namespace).await;
    delete_called(&Api::<Model>::all(client.clone()), namespace).await;
    delete_called(&Api::<BackendRuntime>::all(client.clone()), namespace).await;
}

async fn delete_called<K>(api: &Api<K>, beginning: &str)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let is_its = |name: &String| name == beginning || name.starts_with(&format!("{beginning}-"));
    let listed = api.list(&ListParams::default()).await.into_iter().flatten();
    for name in listed.map(|object| object.name_any()).filter(is_its) {
        let _ = api.delete(&name, &DeleteParams::background()).await;
    }
}
